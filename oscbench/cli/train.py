"""``oscbench train``: train networks on Ray, from FFCV files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    print_rows,
)
from oscbench.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench train --protocol 2 --loss eos",
            "oscbench train --protocol 2 --loss all --num-workers 2 --cpus-per-worker 1 --epochs 4",
        )
    )(train)


def train(
    protocol: ProtocolOption,
    loss: Annotated[
        str, typer.Option("--loss", help="softmax, garbage, eos, objectosphere, or all (the first three).")
    ] = "softmax",
    data: DataOption = "demo",
    runs: RunsOption = Path("runs"),
    name: NameOption = None,
    seed: SeedOption = 0,
    num_workers: NumWorkersOption = 1,
    cpus_per_worker: CpusPerWorkerOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    address: AddressOption = None,
    local: LocalOption = False,
    network: Annotated[
        str | None, typer.Option("--network", help="tiny or any torchvision classifier; default: resnet50, demo: tiny.")
    ] = None,
    embedding_size: Annotated[
        int | None, typer.Option("--embedding-size", min=1, help="Width of the embedding; default: as many as outputs.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="published, published-sgd or demo (default on demo data).")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Instead of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Per worker.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Instead of the recipe's.")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", min=0, help="L2 penalty.")] = None,
    schedule: Annotated[
        Literal["constant", "cosine"] | None, typer.Option("--schedule", help="Course of the learning rate.")
    ] = None,
    restart_epochs: Annotated[
        int | None, typer.Option("--restart-epochs", min=1, help="First cosine period before a warm restart.")
    ] = None,
    warmup_epochs: Annotated[int | None, typer.Option("--warmup-epochs", min=0, help="Linear warm-up.")] = None,
    label_smoothing: Annotated[float | None, typer.Option("--label-smoothing", help="In [0, 1).")] = None,
    randaugment: Annotated[
        str | None, typer.Option("--randaugment", help="OPERATIONS,MAGNITUDE, for example 2,9.")
    ] = None,
    normalise: Annotated[bool, typer.Option("--normalise", help="ImageNet mean and deviation.")] = False,
    loss_param: Annotated[
        list[str] | None, typer.Option("--loss-param", help="Parameter of the loss: negative_weight=0.5. Repeatable.")
    ] = None,
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Batches per update of the weights.")] = 1,
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="Share batch statistics between workers (GPUs).")
    ] = False,
    full_precision: Annotated[bool, typer.Option("--full-precision", help="No half precision on GPUs.")] = False,
    selection: Annotated[
        Literal["last", "best"] | None, typer.Option("--selection", help="Checkpoint that later stages use.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", min=1, help="Stop after so many epochs without a better γ.")
    ] = None,
    init: Annotated[Path | None, typer.Option("--init", help="Checkpoint to start from, also a published one.")] = None,
    loader: LoaderOption = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on with an interrupted training, or start anew.")
    ] = True,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Train one network per loss; the same command again goes on where it was interrupted."""
    from oscbench.api.train import train as run_train

    result = run_train(
        protocol,
        loss,
        data=data,
        runs=runs,
        name=name,
        seed=seed,
        num_workers=num_workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        address=address,
        local=local,
        network=network,
        embedding_size=embedding_size,
        recipe=recipe,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        schedule=schedule,
        restart_epochs=restart_epochs,
        warmup_epochs=warmup_epochs,
        label_smoothing=label_smoothing,
        randaugment=_randaugment(randaugment),
        normalise=normalise,
        loss_params=loss_param or (),
        accumulate=accumulate,
        sync_batchnorm=sync_batchnorm,
        full_precision=full_precision,
        selection=selection,
        patience=patience,
        init=init,
        loader=loader,
        tensorboard=tensorboard,
        resume=resume,
        yes=yes,
        dry_run=dry_run,
    )
    if dry_run:
        print_plan(result.plan, json)
        return
    print_json(result.reports) if json else print_rows(result.reports)


def _randaugment(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--randaugment {text!r} is not OPERATIONS,MAGNITUDE, for example 2,9")
    return int(parts[0]), int(parts[1])
