"""``oscbench train``: train networks on Ray, from FFCV files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oscbench.cli.common import (
    AddressOption,
    DataOption,
    DryRunOption,
    JsonOption,
    ProtocolOption,
    RunsOption,
    SeedOption,
    examples,
    print_json,
)
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.artifacts import Meta
    from oscbench.pipeline import Workspace
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
    name: Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")] = None,
    seed: SeedOption = 0,
    num_workers: Annotated[int, typer.Option("--num-workers", min=1, help="Workers that train together.")] = 1,
    cpus_per_worker: Annotated[
        int | None, typer.Option("--cpus-per-worker", min=1, help="CPUs of each worker; default: an equal share.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker; default: 1 where there are.")
    ] = None,
    address: AddressOption = None,
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
    loader: Annotated[Literal["auto", "ffcv", "pil"], typer.Option("--loader", help="Image loader.")] = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on with an interrupted training, or start anew.")
    ] = True,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Train one network per loss; the same command again goes on where it was interrupted."""
    from oscbench.distributed.stages import Execution, ensure_training
    from oscbench.pipeline import open_workspace

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
        for one in (PUBLISHED_LOSSES if loss == "all" else (loss,))
    ]
    if dry_run:
        print_json([{"data": workspace.run.data, "protocol": workspace.protocol.slug, **c.as_dict()} for c in configs])
        return
    results = []
    for config in configs:
        execution = Execution(
            address=address,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            loader=loader,
            resume=resume,
            tensorboard=tensorboard,
        )
        meta = ensure_training(workspace, loss=config.loss, seed=seed, config=config, init=init, execution=execution)
        results.append(_summary(workspace, config, meta))
    print_json(results) if json else _print_table(results)


def _config(
    workspace: Workspace, loss: str, seed: int, network: str | None, recipe: str | None, changes: dict[str, Any]
) -> TrainConfig:
    from oscbench.distributed.stages import default_config
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


def _summary(workspace: Workspace, config: TrainConfig, meta: Meta) -> dict[str, Any]:
    last = meta.details["last"]
    return {
        "data": workspace.run.data,
        "protocol": workspace.protocol.slug,
        "loss": config.loss,
        "network": config.network,
        "seed": config.seed,
        "epochs": meta.details["epochs"],
        "val_accuracy": round(last["val_accuracy"], 4),
        "gamma": round(last["gamma"], 4),
        "ccr_sum": round(last["ccr_sum"], 4),
        "best_epoch": int(meta.details["best"]["epoch"]),
        "seconds": round(meta.seconds, 1),
        "folder": str(workspace.run.training(config.loss, config.seed)),
    }


def _print_table(results: list[dict[str, Any]]) -> None:
    widths = {name: max(len(name), *(len(str(row[name])) for row in results)) for name in results[0]}
    print("  ".join(f"{name:<{width}}" for name, width in widths.items()).rstrip())
    for row in results:
        print("  ".join(f"{row[name]!s:<{width}}" for name, width in widths.items()).rstrip())
