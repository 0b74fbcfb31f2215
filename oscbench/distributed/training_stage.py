"""Training as a stage: run when missing, continued when interrupted, re-used when it fits."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

from oscbench.artifacts import META, Meta, exclusive_lock
from oscbench.data.loading import DataSplit
from oscbench.distributed.cluster import connect, require
from oscbench.distributed.estimate import training_seconds
from oscbench.distributed.execution import ASK_ABOVE_SECONDS, Execution
from oscbench.distributed.train import WorkerShare, train_on_ray
from oscbench.errors import UsageError
from oscbench.losses import LOSSES
from oscbench.pipeline import Workspace, data_split, ensure_beton
from oscbench.progress import duration
from oscbench.records import fingerprint, sha256_file
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.epoch_metrics import EpochRow
from oscbench.training.recipes import TrainConfig, recipe_by_name
from oscbench.training.run import EPOCHS, TrainingJob, read_epochs

logger = logging.getLogger(__name__)


def default_config(workspace: Workspace, *, loss: str, seed: int = 0) -> TrainConfig:
    """What a training is where nothing else is asked for: ``tiny`` on the embedded data, else as published."""
    LOSSES.info(loss)
    demo = workspace.demo is not None
    return TrainConfig(
        loss=loss,
        network="tiny" if demo else "resnet50",
        crop=workspace.crop,
        stored_side=workspace.stored_side,
        recipe=recipe_by_name("demo" if demo else "published"),
        seed=seed,
    )


def ensure_training(
    workspace: Workspace,
    *,
    loss: str,
    seed: int = 0,
    config: TrainConfig | None = None,
    init: Path | None = None,
    execution: Execution | None = None,
) -> Meta:
    """The record of a finished training of this data; trains, or goes on, where there is none that fits.

    Args:
        workspace: Data and protocol.
        loss: Name of the loss.
        seed: Seed of the training.
        config: What exactly is asked for; ``None`` takes whatever training of this loss and seed on these samples
            is there, finished or begun, and otherwise trains with the defaults.
        init: Checkpoint to start from.
        execution: Where and how.
    """
    execution = execution or Execution()
    folder = workspace.run.training(loss, seed)
    ensure_beton(workspace, ask_above_seconds=None if execution.yes else ASK_ABOVE_SECONDS)
    samples = Meta.read(workspace.run.samples, "samples")
    implied = config is None
    if config is None:
        found = _finished_on(folder, samples)
        if found is not None:
            logger.info("training: re-using %s", folder)
            return found
        config = _begun_on(folder, samples) or default_config(workspace, loss=loss, seed=seed)
    config = dataclasses.replace(config, init=sha256_file(init) if init is not None else config.init)
    job = _job(workspace, folder, config, init, samples, execution)
    if execution.resume and (folder / META).exists() and Meta.read(folder, "train").fingerprint == job.fingerprint:
        logger.info("training: re-using %s", folder)
        return Meta.read(folder, "train")
    with exclusive_lock(folder.parent / ".train.lock", f"the training {folder}"), _told_where_it_stopped(job):
        return _train(job, workspace, samples, execution, implied=implied)


@contextlib.contextmanager
def _told_where_it_stopped(job: TrainingJob) -> Iterator[None]:
    """Ctrl-C at any moment, also while Ray starts or ends, says what is safe and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        done = len(read_epochs(job.folder / EPOCHS))
        where = f"after epoch {done}" if done else "before its first epoch was done"
        logger.info("training: stopped %s; run the same command again to go on", where)
        raise


def _train(job: TrainingJob, workspace: Workspace, samples: Meta, execution: Execution, *, implied: bool) -> Meta:
    started, config = time.monotonic(), job.config
    with connect(execution.address) as have:
        share = execution.training_share(have, config.workers)
        job = dataclasses.replace(job, threads=share.cpus)
        _announce(job, share, training_seconds(job, share), needs_yes=implied and not execution.yes)
        require(workers=config.workers, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus)
        _make_room(job, resume=execution.resume)
        rows = train_on_ray(job, share, on_epoch=execution.on_epoch)
    best = max(rows, key=lambda row: row["gamma"])
    meta = Meta.create(
        "train",
        config={"data": workspace.run.data, "protocol": workspace.protocol.slug, **config.as_dict()},
        result_config=config.as_dict(),
        inputs=_inputs(workspace, samples, job.loader),
        seed=config.seed,
        n_known=workspace.protocol.n_known,
        n_outputs=LOSSES.get(config.loss).n_outputs(workspace.protocol.n_known),
        classes=workspace.protocol.classes,
        seconds=time.monotonic() - started,
        gpus=int(share.gpus * config.workers),
        details={"last": _without_nan(rows[-1]), "best": _without_nan(best), "epochs": len(rows)},
    )
    meta.write(job.folder)
    return meta


def _without_nan(row: EpochRow) -> dict[str, float | None]:
    """The row for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in row.items()}


def _job(
    workspace: Workspace, folder: Path, config: TrainConfig, init: Path | None, samples: Meta, execution: Execution
) -> TrainingJob:
    what = f"protocol {workspace.protocol.slug} with loss {config.loss}"
    return TrainingJob(
        config=config,
        folder=folder.absolute(),
        train=everywhere(data_split(workspace, "train")),
        val=everywhere(data_split(workspace, "val")),
        n_known=workspace.protocol.n_known,
        what=what,
        fingerprint=fingerprint("train", config.as_dict(), _inputs(workspace, samples, execution.loader)),
        samples=samples.fingerprint,
        init=init.absolute() if init is not None else None,
        loader=execution.loader,
        tensorboard=execution.tensorboard,
    )


def _inputs(workspace: Workspace, samples: Meta, loader: str) -> dict[str, str]:
    """The samples and, where images come from FFCV files, their conversion."""
    inputs = {"samples": samples.fingerprint}
    if loader != "pil" and data_split(workspace, "train").beton is not None:
        inputs["beton"] = Meta.read(workspace.run.beton, "beton").fingerprint
    return inputs


def everywhere(split: DataSplit) -> DataSplit:
    """The split with paths that mean the same in every process."""
    beton = split.beton.absolute() if split.beton is not None else None
    return dataclasses.replace(split, root=split.root.absolute(), beton=beton)


def _finished_on(folder: Path, samples: Meta) -> Meta | None:
    if not (folder / META).exists():
        return None
    meta = Meta.read(folder, "train")
    return meta if meta.inputs.get("samples") == samples.fingerprint else None


def _begun_on(folder: Path, samples: Meta) -> TrainConfig | None:
    """The settings of an interrupted training of these samples."""
    if not (folder / LAST).exists() or (folder / META).exists():
        return None
    origin = Checkpoint.load(folder / LAST).origin
    return TrainConfig.from_dict(origin["config"]) if origin.get("samples") == samples.fingerprint else None


def _make_room(job: TrainingJob, *, resume: bool) -> None:
    """Leaves what can be continued; sets another training's files aside, so that nothing expensive is lost."""
    folder = job.folder
    if not (folder / LAST).exists():
        return
    if resume:
        found = Checkpoint.load(folder / LAST)
        if found.fingerprint == job.fingerprint and not (folder / META).exists():
            logger.info("training: going on with %s after epoch %d", folder, found.epoch)
            return
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime((folder / LAST).stat().st_mtime))
    aside = folder.with_name(f"train-{stamp}")
    folder.rename(aside)
    logger.info("training: another one lies in %s, kept as %s", folder, aside.name)


def _announce(job: TrainingJob, share: WorkerShare, seconds: float, *, needs_yes: bool) -> None:
    config = job.config
    per_worker = f"{share.cpus} CPUs" + (f" and {share.gpus:g} GPUs" if share.gpus else "")
    plan = (
        f"{config.network} for {job.what}, {config.recipe.epochs} epochs of {len(job.train_ids)} images on "
        f"{config.workers} worker{'s' if config.workers > 1 else ''} of {per_worker}"
    )
    if needs_yes and seconds > ASK_ABOVE_SECONDS:
        raise UsageError(
            f"training {plan} would take about {duration(seconds)}; add --yes to start it, "
            f"or train it first with `oscbench train`, or give your own --features"
        )
    logger.info("training: %s, about %s", plan, duration(seconds))
