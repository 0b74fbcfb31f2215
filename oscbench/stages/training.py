"""Trainings: networks trained here, and which network is in use."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from oscbench.artifacts import Request, is_begun, is_complete
from oscbench.data.loading import Backend, Wanted, decide_loader
from oscbench.errors import UsageError
from oscbench.labels import SPLITS
from oscbench.losses import LOSSES
from oscbench.progress import duration
from oscbench.records import sha256_file
from oscbench.resources import WorkerAsk, WorkerShare
from oscbench.stages.beton import Beton
from oscbench.stages.given_network import kept_network
from oscbench.stages.network import Network, NetworkView
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace
from oscbench.training.checkpoint import BEST, LAST
from oscbench.training.epoch_metrics import EpochLog, EpochRow, selection_score
from oscbench.training.estimate import forward_flops, training_seconds
from oscbench.training.recipes import TrainConfig, recipe_by_name, recipe_name
from oscbench.training.run import EPOCHS, TrainingJob, initial_network, read_epochs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a training went.

    Attributes:
        epochs: How many were run.
        last: Figures of the last epoch by column of ``epochs.csv``; ``None`` where there is no number.
        best: Those of the epoch with the best gamma.
        weights: SHA-256 of the checkpoint that later stages use.
        share: CPUs and GPUs of each worker.
    """

    epochs: int
    last: dict[str, float | None]
    best: dict[str, float | None]
    weights: str
    share: WorkerShare


@dataclass(frozen=True, kw_only=True, eq=False)
class Training(Network[TrainConfig, TrainingResult]):
    """``last.pth``, ``best.pth`` and ``epochs.csv``; goes on after any interruption to the same weights.

    Attributes:
        init: Checkpoint to start from; its SHA-256 is in the config.
        ask: What each worker gets.
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; by default a line in the log.
    """

    name = "train"
    config_type, result_type = TrainConfig, TrainingResult
    resumes = spreads = True

    init: Path | None = None
    ask: WorkerAsk = WorkerAsk()
    tensorboard: bool = False
    on_epoch: Callable[[EpochRow], None] = field(default_factory=EpochLog)

    @property
    def weights(self) -> Path:
        """The checkpoint that the recipe selects."""
        return self.folder / (BEST if self.config.recipe.selection == "best" else LAST)

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return recipe_name(self.config.recipe)

    @property
    def view(self) -> NetworkView:
        """See ``Network.view``."""
        config = self.config
        return NetworkView(
            network=config.network,
            crop=config.crop,
            stored_side=config.stored_side,
            normalise=config.recipe.normalise,
        )

    def content(self, result: TrainingResult) -> str:
        """The weights; times differ from run to run."""
        return result.weights[:16]

    def describe(self) -> str:
        """See ``Stage.describe``."""
        config = self.config
        return (
            f"{config.network} for {self.what}, {config.recipe.epochs} epochs of {self._n_train()} images on "
            f"{config.workers} worker{'s' if config.workers > 1 else ''}"
        )

    def _n_train(self) -> int:
        counts = self.samples.expected_counts()["train"]
        return counts.known + (counts.negative if LOSSES.get(self.config.loss).uses_negatives else 0)

    def seconds(self, session: Session) -> float:
        """By the operations of its network, for the epochs that are left."""
        have, workers = session.resources(), self.config.workers
        share = WorkerShare(cpus=self.ask.cpus or max(1, have.cpus // workers), gpus=self.ask.gpus_of(have))
        done = len(read_epochs(self.folder / EPOCHS)) / self.config.recipe.epochs
        return self._seconds(share) * (1 - min(done, 1.0))

    def _seconds(self, share: WorkerShare) -> float:
        config = self.config
        return training_seconds(
            config.network,
            config.crop,
            epochs=config.recipe.epochs,
            n_train=self._n_train(),
            n_val=self.samples.expected_counts()["val"].samples,
            workers=config.workers,
            cpus=share.cpus,
            gpus=share.gpus,
        )

    def check(self) -> None:
        """Refuses a network that does not exist, and a start from a checkpoint that is not at hand."""
        forward_flops(self.config.network, self.config.crop)
        if self.config.init is not None and self.init is None and not (self.folder / LAST).exists():
            raise UsageError(
                f"the training {self.folder} starts from a checkpoint; run `oscbench train` with its --init FILE"
            )

    def admit(self, session: Session) -> None:
        """Refuses workers that cannot be had."""
        share = session.runner.training_share(self.config.workers, self.ask)
        if self.config.sync_batchnorm and not share.gpus:
            raise UsageError("--sync-batchnorm works on GPUs only; leave it out or set --gpus-per-worker")
        if self.init is not None:
            initial_network(self._job(self.folder, share))

    def make(self, work: Path, session: Session) -> TrainingResult:
        """Trains, or goes on."""
        share = session.runner.training_share(self.config.workers, self.ask)
        logger.info("train: %s of %s, about %s", self.describe(), share, duration(self._seconds(share)))
        done = len(read_epochs(work / EPOCHS))
        if done:
            logger.info("train: going on after epoch %d", done)
        rows = session.runner.train(self._job(work, share), share, self.on_epoch)
        return TrainingResult(
            epochs=len(rows),
            last=_without_nan(rows[-1]),
            best=_without_nan(max(rows, key=selection_score)),
            weights=sha256_file(self.weights),
            share=share,
        )

    def how_far(self) -> str:
        """See ``Stage.how_far``."""
        done = len(read_epochs(self.folder / EPOCHS))
        return f" after epoch {done}" if done else " before its first epoch was done"

    def _job(self, work: Path, share: WorkerShare) -> TrainingJob:
        beton = self.inputs.get("beton")
        files = {split: beton.file(split) if isinstance(beton, Beton) else None for split in SPLITS}
        return TrainingJob(
            config=self.config,
            folder=work.absolute(),
            train=self.samples.data_split("train", files["train"]),
            val=self.samples.data_split("val", files["val"]),
            n_known=self.samples.protocol.n_known,
            what=self.what,
            fingerprint=self.fingerprint,
            samples=self.samples.fingerprint,
            init=self.init.absolute() if self.init is not None else None,
            threads=share.cpus,
            loader=self.config.loader,
            tensorboard=self.tensorboard,
        )


def _without_nan(row: EpochRow) -> dict[str, float | None]:
    """The row for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in row.items()}


# --- which training ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How trainings and extractions that are not there yet are to be run, from whatever verb.

    Attributes:
        workers: Processes that train together.
        ask: What each gets.
        loader: Which image loader; ``auto``: FFCV where it works.
    """

    workers: int = 1
    ask: WorkerAsk = WorkerAsk()
    loader: Wanted = "auto"


def default_config(workspace: Workspace, *, loss: str, seed: int = 0, workers: int = 1) -> TrainConfig:
    """What a training is where nothing else is asked for: ``tiny`` on the embedded data, else as published."""
    LOSSES.info(loss)
    demo = workspace.demo is not None
    return TrainConfig(
        loss=loss,
        network="tiny" if demo else "resnet50",
        crop=workspace.crop,
        stored_side=workspace.stored_side,
        recipe=recipe_by_name("demo" if demo else "published"),
        workers=workers,
        seed=seed,
    )


def training_of(
    workspace: Workspace,
    samples: Samples,
    config: TrainConfig,
    options: TrainingOptions,
    *,
    init: Path | None = None,
    tensorboard: bool = False,
    on_epoch: Callable[[EpochRow], None] | None = None,
) -> Training:
    """The training with these settings; its loader is decided here, once for all workers.

    Without a loader asked for, that of a training with these settings which is there already stays.

    Args:
        workspace: Data and protocol.
        samples: Their tables.
        config: What decides it; ``loader`` and ``init`` are filled in.
        options: How it is run.
        init: Checkpoint to start from.
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; default: a line in the log.
    """
    beton = Beton.in_use(samples, workspace)
    start = sha256_file(init) if init is not None else config.init

    def read_by(loader: Backend) -> Training:
        return Training(
            room=workspace.room,
            config=dataclasses.replace(config, loader=loader, init=start),
            inputs={"samples": samples} | ({"beton": beton} if loader == "ffcv" else {}),
            samples=samples,
            demo=workspace.demo is not None,
            init=init,
            ask=options.ask,
            tensorboard=tensorboard,
            on_epoch=on_epoch or EpochLog(),
        )

    if options.loader == "auto":
        for there in map(read_by, get_args(Backend)):
            if there.state() in ("done", "resumable"):
                return there
    return read_by(decide_loader(options.loader, converted=beton.state() == "done"))


def network_in_use(
    workspace: Workspace, samples: Samples, *, loss: str, seed: int, options: TrainingOptions
) -> Network[Any, Any]:
    """The network that later stages take where none is named.

    That is the one last trained, given, or begun and past its first epoch for this loss and seed, as long as it belongs
    to these samples; otherwise the usual training. An interrupted training thereby goes on with its own settings.
    """
    folder = workspace.room.in_use(f"{loss}/s{seed}/train")
    if folder is not None and (is_complete(folder) or (is_begun(folder) and (folder / LAST).exists())):
        found = _trained(workspace, samples, folder, options) or kept_network(workspace, samples, folder)
        if found is not None and found.folder == folder:
            return found
    return training_of(
        workspace, samples, default_config(workspace, loss=loss, seed=seed, workers=options.workers), options
    )


def _trained(workspace: Workspace, samples: Samples, folder: Path, options: TrainingOptions) -> Training | None:
    """The training in a folder as these samples would make it; another fingerprint tells when it is none of theirs."""
    if not folder.name.startswith(f"{Training.name}-"):
        return None
    request = Request.read(folder, Training.name, TrainConfig)
    inputs: dict[str, Stage[Any, Any]] = {"samples": samples}
    if "beton" in request.inputs:
        inputs["beton"] = Beton.named(samples, workspace, request.inputs["beton"].fingerprint)
    return Training(
        room=workspace.room,
        config=request.config,
        inputs=inputs,
        samples=samples,
        demo=workspace.demo is not None,
        ask=options.ask,
    )
