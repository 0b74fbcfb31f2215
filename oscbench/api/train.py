"""``train``: train networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oscbench.api.session import Loader, chosen_losses, session_for, training_options
from oscbench.errors import UsageError
from oscbench.store import check_local

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.stages.runner import Session
    from oscbench.stages.stage import Step
    from oscbench.stages.training import Training
    from oscbench.stages.workspace import Workspace
    from oscbench.training.recipes import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Networks that are trained.

    Attributes:
        trainings: One for each loss, finished; of a dry run none.
        plan: Of a dry run, every stage with what there is of it.
    """

    trainings: tuple[Training, ...] = ()
    plan: tuple[Step, ...] = ()

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Of each training what it is, what it reached in its last epoch, and where it lies."""
        return [_report(training) for training in self.trainings]

    @property
    def folders(self) -> list[Path]:
        """Of the trainings."""
        return [training.folder for training in self.trainings]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each of the reports."""
        import pandas as pd

        return pd.DataFrame(self.reports)

    @property
    def epochs(self) -> pd.DataFrame:
        """The figures of every epoch of every training."""
        import pandas as pd

        from oscbench.training.epoch_metrics import EPOCHS

        tables = []
        for training in self.trainings:
            table = pd.read_csv(training.folder / EPOCHS)
            table.insert(0, "seed", training.config.seed)
            table.insert(0, "loss", training.config.loss)
            tables.append(table)
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def train(
    protocol: int | str,
    loss: str | Sequence[str] = "softmax",
    *,
    data: str = "demo",
    runs: str | Path = "runs",
    name: str | None = None,
    seed: int = 0,
    num_workers: int = 1,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    local: bool = False,
    network: str | None = None,
    embedding_size: int | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    schedule: Literal["constant", "cosine"] | None = None,
    restart_epochs: int | None = None,
    warmup_epochs: int | None = None,
    label_smoothing: float | None = None,
    randaugment: tuple[int, int] | None = None,
    normalise: bool = False,
    loss_params: Mapping[str, float] | Sequence[str] = (),
    accumulate: int = 1,
    sync_batchnorm: bool = False,
    full_precision: bool = False,
    selection: Literal["last", "best"] | None = None,
    patience: int | None = None,
    init: str | Path | None = None,
    loader: Loader = "auto",
    tensorboard: bool = False,
    resume: bool = True,
    yes: bool = False,
    dry_run: bool = False,
    session: Session | None = None,
) -> TrainResult:
    """One network per loss, as ``oscbench train`` trains them.

    What is finished is not trained again, and an interrupted training goes on where it was.

    Args:
        protocol: 1, 2, 3, or a protocol file of one's own.
        loss: ``softmax``, ``garbage``, ``eos``, ``objectosphere``, several of them, or ``all`` (the first three).
        data: Image folder, or ``demo`` for the embedded data.
        runs: Folder that receives all results.
        name: Name of the data below the runs folder.
        seed: Of weights, order and augmentation.
        num_workers: Processes that train together.
        cpus_per_worker: CPUs of each; default: an equal share.
        gpus_per_worker: GPUs of each; default: 1 where there are.
        address: An existing Ray cluster; default: start Ray here.
        local: Run everything in this process, without Ray.
        network: ``tiny`` or any torchvision classifier; default: ``resnet50``, on embedded data ``tiny``.
        embedding_size: Width of the embedding; default: as many as outputs.
        recipe: ``published``, ``published-sgd`` or ``demo`` (the default on embedded data).
        epochs: Instead of the recipe's, as all that follow here.
        batch_size: Per worker.
        learning_rate: After warm-up.
        weight_decay: L2 penalty.
        schedule: Course of the learning rate.
        restart_epochs: First cosine period before a warm restart.
        warmup_epochs: Linear warm-up.
        label_smoothing: In [0, 1).
        randaugment: Operations and magnitude: ``(2, 9)``.
        normalise: ImageNet mean and deviation.
        loss_params: Parameters of the loss: ``{"negative_weight": 0.5}``, or the same as texts.
        accumulate: Batches per update of the weights.
        sync_batchnorm: Share batch statistics between workers (GPUs).
        full_precision: No half precision on GPUs.
        selection: Checkpoint that later stages use.
        patience: Stop after so many epochs without a better gamma.
        init: Checkpoint to start from, also a published one.
        loader: Image loader.
        tensorboard: Also write TensorBoard files.
        resume: Go on with an interrupted training, or start anew.
        yes: Agree to stages that take long.
        dry_run: Only plan.
        session: Who executes; default: one opened for this call, as ``address`` and ``local`` say.

    >>> planned = train(1, ["softmax", "eos"], loader="pil", local=True, dry_run=True)
    >>> [step.stage.name for step in planned.plan]
    ['images', 'samples', 'train', 'train']
    """
    from oscbench.stages.samples import Samples
    from oscbench.stages.stage import ensure, plan
    from oscbench.stages.training import training_of
    from oscbench.stages.workspace import open_workspace

    workspace = open_workspace(runs=check_local(Path(runs)), data=str(data), protocol=str(protocol), name=name)
    changes = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "restart_epochs": restart_epochs,
        "warmup_epochs": warmup_epochs,
        "label_smoothing": label_smoothing,
        "randaugment": randaugment,
        "normalise": normalise or None,
        "selection": selection,
        "patience": patience,
    }
    configs = [
        dataclasses.replace(
            _config(workspace, one, seed, network, recipe, changes),
            loss_params=_loss_params(one, loss_params),
            embedding_size=embedding_size,
            workers=num_workers,
            accumulate=accumulate,
            sync_batchnorm=sync_batchnorm,
            mixed_precision=not full_precision,
        )
        for one in chosen_losses(loss)
    ]
    options = training_options(num_workers, cpus_per_worker, gpus_per_worker, loader)
    samples, start = Samples.of(workspace), Path(init) if init is not None else None
    trainings = [
        training_of(workspace, samples, config, options, init=start, tensorboard=tensorboard) for config in configs
    ]
    with session_for(session, address, local) as executing:
        if dry_run:
            return TrainResult(plan=tuple(plan(trainings, executing, anew=not resume)))
        ensure(trainings, executing, yes=yes, anew=not resume)
    return TrainResult(trainings=tuple(trainings))


def _config(
    workspace: Workspace, loss: str, seed: int, network: str | None, recipe: str | None, changes: dict[str, Any]
) -> TrainConfig:
    from oscbench.stages.training import default_config
    from oscbench.training.recipes import recipe_by_name

    config = default_config(workspace, loss=loss, seed=seed)
    chosen = recipe_by_name(recipe) if recipe is not None else config.recipe
    chosen = dataclasses.replace(chosen, **{name: value for name, value in changes.items() if value is not None})
    return dataclasses.replace(config, network=network or config.network, recipe=chosen)


def _loss_params(loss: str, given: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
    """The numbers, also those behind ``name=value``, checked against the loss's parameter record."""
    from oscbench.losses import LOSSES
    from oscbench.records import from_mapping

    values = dict(given) if isinstance(given, Mapping) else dict(map(_loss_param, given))
    record = LOSSES.info(loss).params
    assert record is not None, "every loss registers its parameter record"
    from_mapping(record, values, f"--loss-param of loss {loss}")
    return values


def _loss_param(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"--loss-param {text!r} is not NAME=NUMBER, like negative_weight=0.5") from None


def _report(training: Training) -> dict[str, Any]:
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
