"""``oscbench train``: train networks on Ray, from FFCV files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    print_rows,
    training_options,
)
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.stages.training import Training
    from oscbench.stages.workspace import Workspace
    from oscbench.training.recipes import TrainConfig

PUBLISHED_LOSSES = ("softmax", "garbage", "eos")
"""What ``--loss all`` means."""


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench train --protocol 1 --loss eos",
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
    from oscbench.stages.samples import Samples
    from oscbench.stages.stage import ensure, plan
    from oscbench.stages.training import training_of
    from oscbench.stages.workspace import open_workspace

    workspace = open_workspace(runs=runs, data=data, protocol=protocol, name=name)
    changes = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "restart_epochs": restart_epochs,
        "warmup_epochs": warmup_epochs,
        "label_smoothing": label_smoothing,
        "randaugment": _randaugment(randaugment),
        "normalise": normalise or None,
        "selection": selection,
        "patience": patience,
    }
    configs = [
        dataclasses.replace(
            _config(workspace, one, seed, network, recipe, changes),
            loss_params=_loss_params(one, loss_param or []),
            embedding_size=embedding_size,
            workers=num_workers,
            accumulate=accumulate,
            sync_batchnorm=sync_batchnorm,
            mixed_precision=not full_precision,
        )
        for one in parse_losses(loss)
    ]
    options = training_options(num_workers, cpus_per_worker, gpus_per_worker, loader)
    samples = Samples.of(workspace)
    trainings = [
        training_of(workspace, samples, config, options, init=init, tensorboard=tensorboard) for config in configs
    ]
    with open_session(address, local) as session:
        if dry_run:
            print_plan(plan(trainings, session, anew=not resume), json)
            return
        ensure(trainings, session, yes=yes, anew=not resume)
    results = [_summary(training) for training in trainings]
    print_json(results) if json else print_rows(results)


def parse_losses(text: str) -> tuple[str, ...]:
    """Registered losses of ``eos``, ``softmax,eos`` or ``all``."""
    from oscbench.losses import LOSSES

    names = PUBLISHED_LOSSES if text == "all" else tuple(part.strip() for part in text.split(","))
    for name in names:
        LOSSES.info(name)
    return tuple(dict.fromkeys(names))


def _config(
    workspace: Workspace, loss: str, seed: int, network: str | None, recipe: str | None, changes: dict[str, Any]
) -> TrainConfig:
    from oscbench.stages.training import default_config
    from oscbench.training.recipes import recipe_by_name

    config = default_config(workspace, loss=loss, seed=seed)
    chosen = recipe_by_name(recipe) if recipe is not None else config.recipe
    chosen = dataclasses.replace(chosen, **{name: value for name, value in changes.items() if value is not None})
    return dataclasses.replace(config, network=network or config.network, recipe=chosen)


def _loss_params(loss: str, assignments: list[str]) -> dict[str, float]:
    """The numbers behind ``name=value``, checked against the loss's parameter record."""
    from oscbench.losses import LOSSES
    from oscbench.records import from_mapping

    values: dict[str, float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            raise UsageError(f"--loss-param {assignment!r} is not NAME=NUMBER, like negative_weight=0.5") from None
    record = LOSSES.info(loss).params
    assert record is not None, "every loss registers its parameter record"
    from_mapping(record, values, f"--loss-param of loss {loss}")
    return values


def _randaugment(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--randaugment {text!r} is not OPERATIONS,MAGNITUDE, for example 2,9")
    return int(parts[0]), int(parts[1])


def _summary(training: Training) -> dict[str, Any]:
    config, meta = training.config, training.meta
    last = meta.result.last
    return {
        "data": training.room.data,
        "protocol": training.room.protocol,
        "loss": config.loss,
        "network": config.network,
        "recipe": training.origin.recipe,
        "seed": config.seed,
        "train": training.fingerprint,
        "epochs": meta.result.epochs,
        **{name: _rounded(last[name]) for name in ("val_accuracy", "gamma", "ccr_sum")},
        "best_epoch": int(meta.result.best["epoch"] or 0),
        "seconds": round(meta.seconds, 1),
        "folder": str(training.folder),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
