"""``oscbench protocol``: the class lists of the published protocols and of one's own, and their sample tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oscbench.cli.common import JsonOption, ProtocolOption, examples, print_json, print_rows

if TYPE_CHECKING:
    from oscbench.data.counts import CountComparison
    from oscbench.protocols.base import Protocol

ProtocolArgument = Annotated[str, typer.Argument(metavar="PROTOCOL", help="1, 2, 3, or a protocol file of one's own.")]
FolderOption = Annotated[Path, typer.Option("--data", help="Folder with train/<wnid>/*.JPEG and val/<wnid>/*.JPEG.")]
NamesHelp = "WordNet names or ids, separated by commas."

protocol_app = typer.Typer(name="protocol", help="Which classes are known, negative and unknown.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the verb group to the command."""
    app.add_typer(protocol_app)


@protocol_app.command("list", epilog=examples("oscbench protocol list", "oscbench protocol list --json"))
def list_protocols(json: JsonOption = False) -> None:
    """Lists the published protocols with their numbers of classes."""
    from oscbench.protocols.base import PUBLISHED, ROLES, load_protocol

    protocols = [load_protocol(name) for name in PUBLISHED]
    rows = [{"protocol": str(p.number)} | {role: len(p.role(role)) for role in ROLES} for p in protocols]
    if json:
        print_json({"protocols": rows})
    else:
        print_rows(rows)


@protocol_app.command("show", epilog=examples("oscbench protocol show 1", "oscbench protocol show 3 --json"))
def show(protocol: ProtocolArgument, json: JsonOption = False) -> None:
    """Shows every class of a protocol: wnid, name, label and its place in the paper's printed list."""
    from oscbench.protocols.base import ROLES, load_protocol, protocol_document

    loaded = load_protocol(protocol)
    if json:
        print_json(protocol_document(loaded))
        return
    print_rows(
        [
            {"role": role, "wnid": c.wnid, "label": c.label, "printed": c.printed_order, "name": c.name}
            for role in ROLES
            for c in loaded.role(role)
        ]
    )


@protocol_app.command(
    "export",
    epilog=examples(
        "oscbench protocol export --protocol 1 --data demo-data --out tables",
        "oscbench protocol export --data demo-data --out tables-7 --seed 7",
    ),
)
def export(
    data: FolderOption,
    protocol: ProtocolOption = "1",
    out: Annotated[Path, typer.Option("--out", help="Folder that receives the tables.")] = Path(),
    seed: Annotated[int, typer.Option("--seed", help="Of the split; 42 gives the published tables.")] = 42,
) -> None:
    """Writes p1_train.csv, p1_val.csv and p1_test.csv: path,label rows of the published split."""
    from oscbench.data.samples import write_samples
    from oscbench.data.splits import make_splits
    from oscbench.protocols.base import load_protocol

    loaded = load_protocol(protocol)
    for split, table in make_splits(loaded, data, seed=seed).items():
        path = out / f"{loaded.slug}_{split}.csv"
        write_samples(path, table)
        print(f"{path}  {len(table)} rows")


@protocol_app.command(
    "build",
    epilog=examples(
        "oscbench protocol build --name dogs --known dog --negative fox,wolf --unknown n03183080 --out dogs.yaml",
        "oscbench protocol build --name cats --known cat,'big cat' --negative bear --unknown bird --out cats.yaml",
    ),
)
def build(
    known: Annotated[str, typer.Option("--known", help=NamesHelp)],
    negative: Annotated[str, typer.Option("--negative", help=NamesHelp)],
    unknown: Annotated[str, typer.Option("--unknown", help=NamesHelp)],
    name: Annotated[str, typer.Option("--name", help="Name in folders and tables.")] = "own",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: NAME.yaml.")] = None,
    json: JsonOption = False,
) -> None:
    """Makes a protocol from WordNet names or ids; --protocol FILE then uses it anywhere."""
    from oscbench.protocols.base import protocol_document, write_protocol
    from oscbench.protocols.build import build_protocol

    built = build_protocol(name, {"known": _split(known), "negative": _split(negative), "unknown": _split(unknown)})
    path = out or Path(f"{name}.yaml")
    write_protocol(path, built)
    if json:
        print_json(protocol_document(built))
    else:
        print(f"{path}  {_sizes(built)}")


@protocol_app.command(
    "verify",
    epilog=examples(
        "oscbench protocol verify --protocol 1 --data demo-data",
        "oscbench protocol verify --protocol 1 --data demo-data --json",
    ),
)
def verify(data: FolderOption, protocol: ProtocolOption = "1", json: JsonOption = False) -> None:
    """Counts the images of every class and compares with the paper's Table 1; names each class that is short."""
    from dataclasses import asdict

    from oscbench.data.counts import verify_counts
    from oscbench.protocols.base import load_protocol

    loaded = load_protocol(protocol)
    comparison = verify_counts(loaded, data)
    if json:
        print_json({"protocol": str(loaded.number or loaded.name), "ok": comparison.ok, **asdict(comparison)})
    else:
        _print_comparison(comparison)
    if not comparison.ok:
        raise typer.Exit(1)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _sizes(protocol: Protocol) -> str:
    from oscbench.protocols.base import ROLES

    return ", ".join(f"{len(protocol.role(role))} {role}" for role in ROLES)


def _print_comparison(comparison: CountComparison) -> None:
    print_rows(
        [
            {
                "folder": c.folder,
                "role": c.role,
                "classes": c.classes,
                "images": c.found,
                "expected": "-" if c.expected is None else c.expected,
            }
            for c in comparison.counts
        ]
    )
    for s in comparison.short:
        print(f"short: {s.folder}/{s.wnid} ({s.name}, {s.role}) has {s.found} images, at least {s.at_least} expected")
    print("all counts agree" if comparison.ok else f"{len(comparison.short)} short classes; counts do not agree")
