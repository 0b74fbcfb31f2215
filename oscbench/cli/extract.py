"""``oscbench extract``: network outputs of all splits as feature sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    print_json,
    print_plan,
)


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
    from oscbench.api.extract import extract as run_extract

    result = run_extract(
        protocol,
        loss,
        data=data,
        runs=runs,
        name=name,
        seed=seed,
        checkpoint=checkpoint,
        network=network,
        num_workers=num_workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        address=address,
        local=local,
        loader=loader,
        yes=yes,
        dry_run=dry_run,
    )
    if dry_run:
        print_plan(result.plan, json)
        return
    if json:
        print_json(result.reports)
        return
    for report in result.reports:
        listed = ", ".join(f"{split} {count}" for split, count in report["samples"].items())
        print(f"{report['loss']}: {report['folder']} ({listed})")
