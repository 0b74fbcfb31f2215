"""``oscbench extract``: network outputs of all splits as feature sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from oscbench.cli.common import (
    AddressOption,
    DataOption,
    JsonOption,
    ProtocolOption,
    RunsOption,
    SeedOption,
    YesOption,
    examples,
    print_json,
)
from oscbench.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench extract --protocol 1 --loss softmax",
            "oscbench extract --protocol 2 --loss all --json",
        )
    )(extract)


def extract(
    protocol: ProtocolOption,
    loss: Annotated[str, typer.Option("--loss", help="softmax, garbage, eos, objectosphere, or all.")] = "softmax",
    data: DataOption = "demo",
    runs: RunsOption = Path("runs"),
    name: Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")] = None,
    seed: SeedOption = 0,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A file instead of the own training, also a published one.")
    ] = None,
    network: Annotated[str | None, typer.Option("--network", help="Architecture of --checkpoint.")] = None,
    address: AddressOption = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker; default: 1 where there are.")
    ] = None,
    loader: Annotated[Literal["auto", "ffcv", "pil"], typer.Option("--loader", help="Image loader.")] = "auto",
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Write logits, embedding and pooled vectors of train, val and test; what is there is re-used."""
    from oscbench.cli.train import PUBLISHED_LOSSES
    from oscbench.distributed.stages import Execution, ensure_features
    from oscbench.features import load_feature_folder
    from oscbench.labels import SPLITS
    from oscbench.pipeline import open_workspace

    if checkpoint is not None and loss == "all":
        raise UsageError("--checkpoint is one network; name its --loss instead of all")
    if network is not None and checkpoint is None:
        raise UsageError("--network belongs to --checkpoint; an own training knows its network")
    workspace = open_workspace(runs=runs, data=data, protocol=protocol, name=name)
    execution = Execution(address=address, gpus_per_worker=gpus_per_worker, loader=loader, yes=yes)
    results: list[dict[str, Any]] = []
    for one in PUBLISHED_LOSSES if loss == "all" else (loss,):
        folder = ensure_features(
            workspace, loss=one, seed=seed, checkpoint=checkpoint, network=network, execution=execution
        )
        splits = load_feature_folder(folder)
        counts = {split: len(splits.split(split)) for split in SPLITS}
        results.append({"loss": one, "folder": str(folder), "samples": counts})
    if json:
        print_json(results)
        return
    for result in results:
        listed = ", ".join(f"{split} {count}" for split, count in result["samples"].items())
        print(f"{result['loss']}: {result['folder']} ({listed})")
