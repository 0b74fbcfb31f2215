"""``oscbench extract``: network outputs of all splits as feature sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from oscbench.cli.common import (
    AddressOption,
    CpusPerWorkerOption,
    DataOption,
    DryRunOption,
    GpusPerWorkerOption,
    JsonOption,
    LoaderOption,
    LocalOption,
    NameOption,
    NumWorkersOption,
    ProtocolOption,
    RunsOption,
    SeedOption,
    YesOption,
    examples,
    open_session,
    print_json,
    print_plan,
    training_options,
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
    name: NameOption = None,
    seed: SeedOption = 0,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A file instead of the own training, also a published one.")
    ] = None,
    network: Annotated[str | None, typer.Option("--network", help="Architecture of --checkpoint.")] = None,
    num_workers: NumWorkersOption = 1,
    cpus_per_worker: CpusPerWorkerOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    address: AddressOption = None,
    local: LocalOption = False,
    loader: LoaderOption = "auto",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Write logits, embedding and pooled vectors of train, val and test; what is there is re-used.

    The network is the one last trained (or given by --checkpoint) for this loss and seed.
    """
    from oscbench.cli.train import parse_losses
    from oscbench.stages.features import FeatureRequest, requested_features
    from oscbench.stages.stage import ensure, plan

    if checkpoint is not None and loss == "all":
        raise UsageError("--checkpoint is one network; name its --loss instead of all")
    request = FeatureRequest(
        runs=runs,
        protocol=protocol,
        losses=parse_losses(loss),
        seeds=(seed,),
        data=data,
        name=name,
        checkpoint=checkpoint,
        network=network,
        options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
    )
    wanted = requested_features(request)
    with open_session(address, local) as session:
        if dry_run:
            print_plan(plan(wanted, session), json)
            return
        ensure(wanted, session, yes=yes)
    results: list[dict[str, Any]] = [
        {
            "loss": features.origin.training,
            "network": features.origin.network,
            "recipe": features.origin.recipe,
            "train": features.origin.train,
            "folder": str(features.folder),
            "samples": features.result.samples,
        }
        for features in wanted
    ]
    if json:
        print_json(results)
        return
    for result in results:
        listed = ", ".join(f"{split} {count}" for split, count in result["samples"].items())
        print(f"{result['loss']}: {result['folder']} ({listed})")
