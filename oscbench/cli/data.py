"""``oscbench data``: the embedded data, conversion into FFCV files, and whether all of it is still as it was."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from oscbench.cli.common import (
    DataOption,
    DryRunOption,
    JsonOption,
    NameOption,
    ProtocolOption,
    RunsOption,
    SeedOption,
    examples,
    print_json,
    print_plan,
)

data_app = typer.Typer(name="data", help="Images: draw the embedded data, convert, verify.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the verb group to the command."""
    app.add_typer(data_app)


@data_app.command(
    "demo",
    epilog=examples(
        "oscbench data demo --out demo-data",
        "oscbench data demo --out small --protocol 2 --per-class 5 --test-per-class 2",
    ),
)
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder that receives train/ and val/.")] = Path("demo-data"),
    per_class: Annotated[
        int, typer.Option("--per-class", help="Images in train/ of known and negative classes.")
    ] = 150,
    test_per_class: Annotated[int, typer.Option("--test-per-class", help="Images in val/ of every class.")] = 40,
    size: Annotated[int, typer.Option("--size", help="Side of the images in pixels.")] = 48,
    seed: SeedOption = 0,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="1, 2, 3, all, or a protocol file.")] = "1",
) -> None:
    """Draws a small ILSVRC-shaped tree of JPEG files in which classes near in WordNet look alike.

    The defaults make 41,410 images for protocol 1: about 70 MB. A second call draws only what is missing.
    """
    from oscbench.data.demo import DemoConfig, draw_demo
    from oscbench.progress import show_progress
    from oscbench.protocols.base import PUBLISHED, load_protocol

    config = DemoConfig(per_class=per_class, test_per_class=test_per_class, size=size, seed=seed)
    for loaded in map(load_protocol, PUBLISHED if protocol == "all" else (protocol,)):
        with show_progress(f"drawing {loaded.slug}") as progress:
            draw_demo(out, config, loaded, progress)
    print(out)


@data_app.command(
    "convert",
    epilog=examples(
        "oscbench data convert --protocol 2 --data demo",
        "oscbench data convert --protocol 2 --data demo --mode raw --json",
    ),
)
def convert(
    protocol: ProtocolOption = "1",
    data: DataOption = "demo",
    runs: RunsOption = Path("runs"),
    name: NameOption = None,
    side: Annotated[
        int | None,
        typer.Option("--side", help="Shorter side of stored images; default: 256, demo: 64, as training takes."),
    ] = None,
    quality: Annotated[int, typer.Option("--quality", help="JPEG quality.")] = 90,
    mode: Annotated[
        Literal["jpeg", "raw", "mix"], typer.Option("--mode", help="Store JPEG, pixels, or some of both.")
    ] = "jpeg",
    raw_share: Annotated[float, typer.Option("--raw-share", help="Share of pixels in a mix.")] = 0.5,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Processes that convert; default: one per CPU.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Writes one FFCV file per split (image, label, sample id) for fast training, with a manifest of checksums.

    Images are resized by PIL to the stored side. An interrupted conversion keeps the splits that were done.
    """
    from oscbench.data.convert import ConvertConfig, require_ffcv
    from oscbench.stages.beton import Beton
    from oscbench.stages.runner import Session
    from oscbench.stages.samples import Samples
    from oscbench.stages.stage import ensure, plan
    from oscbench.stages.workspace import open_workspace

    workspace = open_workspace(runs=runs, data=data, protocol=protocol, name=name)
    config = ConvertConfig(side=side or workspace.stored_side, quality=quality, mode=mode, raw_share=raw_share)
    beton = Beton.of(Samples.of(workspace), config, processes)
    session = Session()  # converts in processes of its own
    if dry_run:
        print_plan(plan([beton], session), as_json)
        return
    require_ffcv()
    ensure([beton], session)
    if as_json:
        document = {"folder": beton.folder, "fingerprint": beton.fingerprint, "config": asdict(beton.config)}
        print_json(document | asdict(beton.result))
        return
    for split, file in beton.result.files.items():
        print(f"{beton.file(split)}  {file.samples} images  {file.bytes / 1e6:.1f} MB")


@data_app.command(
    "verify",
    epilog=examples(
        "oscbench data verify --protocol 2 --data demo",
        "oscbench data verify --protocol 2 --data demo --json",
    ),
)
def verify(
    protocol: ProtocolOption = "1",
    data: DataOption = "demo",
    runs: RunsOption = Path("runs"),
    name: NameOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Finds truncated, altered and missing sample tables, FFCV files and images, and names them.

    Contents are compared with the checksums of the conversion; images that were never converted are decoded.
    """
    from oscbench.data.samples import problem_list
    from oscbench.errors import OscbenchError
    from oscbench.stages.runner import Session
    from oscbench.stages.samples import Samples
    from oscbench.stages.stage import ensure, plan
    from oscbench.stages.verification import verify_data
    from oscbench.stages.workspace import open_workspace

    workspace = open_workspace(runs=runs, data=data, protocol=protocol, name=name)
    samples = Samples.in_use(workspace)
    if samples is None or dry_run:
        samples = Samples.of(workspace)
        if dry_run:
            print_plan(plan([samples], Session()), as_json)
            return
        ensure([samples], Session())
    found = verify_data(samples)
    if as_json:
        print_json({"data": workspace.title, "checked": found.checked, "problems": found.problems})
    if found.problems:
        raise OscbenchError(f"{workspace.title}: {problem_list(list(found.problems), 'problem')}")
    if not as_json:
        print(f"{workspace.title}: {', '.join(found.checked)}: all as they were made")
