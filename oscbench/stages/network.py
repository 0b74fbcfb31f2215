"""Networks: whatever comes after does not care whether one was trained here, fine-tuned, or given as a file."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from oscbench.errors import UsageError
from oscbench.labels import SPLITS
from oscbench.losses import LOSSES
from oscbench.origin import Origin
from oscbench.progress import duration
from oscbench.records import sha256_file
from oscbench.resources import WorkerShare
from oscbench.stages.beton import Beton
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage
from oscbench.training.checkpoint import BEST, LAST
from oscbench.training.epoch_metrics import EPOCHS, EpochLog, EpochRow, read_epochs, selection_score
from oscbench.training.estimate import forward_flops, training_seconds
from oscbench.training.job import LossTask, Task, TrainingJob
from oscbench.training.recipes import TrainConfig

logger = logging.getLogger(__name__)


class NetworkConfig(Protocol):
    """What the records of all networks have."""

    @property
    def loss(self) -> str:
        """Name of the loss it was trained with."""
        ...

    @property
    def seed(self) -> int:
        """Seed under which its results are shown."""
        ...


C = TypeVar("C", bound=NetworkConfig)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, eq=False)
class Network(Stage[C, R]):
    """A stage whose folder holds trained weights.

    Attributes:
        samples: The data it is used on.
        demo: Whether that is embedded demonstration data.
    """

    samples: Samples
    demo: bool

    @property
    @abstractmethod
    def weights(self) -> Path:
        """The checkpoint file that later stages use."""

    @property
    @abstractmethod
    def recipe(self) -> str:
        """How it was trained, as tables name it."""

    @property
    @abstractmethod
    def view(self) -> NetworkView:
        """How its images must look."""

    @property
    def origin(self) -> Origin:
        """What tables say about everything that comes from this network."""
        return Origin(
            data=self.room.data,
            protocol=self.room.protocol,
            training=self.config.loss,
            seed=self.config.seed,
            network=self.view.network,
            recipe=self.recipe,
            train=self.fingerprint,
            demo=self.demo,
        )

    @property
    def dummies(self) -> int:
        """B, the placeholders of a fine-tuned network; 0 of others."""
        return 0

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits without placeholders."""
        return LOSSES.get(self.config.loss).n_outputs(self.samples.protocol.n_known)

    @property
    def what(self) -> str:
        """Protocol and loss in words, for messages."""
        return f"protocol {self.samples.protocol.slug} with loss {self.config.loss}"

    @property
    def alias_root(self) -> str:
        """Under which readable name everything lies that is made from this network."""
        return f"{self.config.loss}/s{self.config.seed}"

    @property
    def alias(self) -> str:
        """One name for trained and given networks: the newest of either is in use."""
        return f"{self.alias_root}/train"


@dataclass(frozen=True, kw_only=True)
class NetworkView:
    """Architecture of a network and how its images must look."""

    network: str
    crop: int
    stored_side: int
    normalise: bool = False


# --- trained here --------------------------------------------------------------------------------------------------


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
class TrainedHere(Network[C, TrainingResult]):
    """``last.pth``, ``best.pth`` and ``epochs.csv``; goes on after any interruption to the same weights.

    Attributes:
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; by default a line in the log.
    """

    result_type = TrainingResult
    resumes = spreads = True

    tensorboard: bool = False
    on_epoch: Callable[[EpochRow], None] = field(default_factory=EpochLog)

    @property
    @abstractmethod
    def training(self) -> TrainConfig:
        """How it is trained."""

    @property
    def workers(self) -> int:
        """See ``Stage.workers``."""
        return self.training.workers

    @property
    def on_gpu(self) -> bool:
        """See ``Stage.on_gpu``."""
        return True

    @property
    def task(self) -> Task:
        """What it learns."""
        return LossTask()

    @property
    def start(self) -> Path | None:
        """The checkpoint whose weights it begins with."""
        return None

    @property
    def weights(self) -> Path:
        """The checkpoint that the recipe selects."""
        return self.folder / (BEST if self.training.recipe.selection == "best" else LAST)

    @property
    def view(self) -> NetworkView:
        """See ``Network.view``."""
        training = self.training
        return NetworkView(
            network=training.network,
            crop=training.crop,
            stored_side=training.stored_side,
            normalise=training.recipe.normalise,
        )

    def content(self, result: TrainingResult) -> str:
        """The weights; times differ from run to run."""
        return result.weights[:16]

    def describe(self) -> str:
        """See ``Stage.describe``."""
        training = self.training
        return (
            f"{training.network} for {self.what}, {training.recipe.epochs} epochs of {self._n_train()} images on "
            f"{training.workers} worker{'s' if training.workers > 1 else ''}"
        )

    @abstractmethod
    def _n_train(self) -> int:
        """Images of an epoch."""

    def seconds(self, session: Session) -> float:
        """By the operations of its network, for the epochs that are left."""
        have, workers = session.resources(), self.training.workers
        share = WorkerShare(cpus=self.ask.cpus or max(1, have.cpus // workers), gpus=self.ask.gpus_of(have))
        done = len(read_epochs(self.folder / EPOCHS)) / self.training.recipe.epochs
        return self.seconds_with(share) * (1 - min(done, 1.0))

    def seconds_with(self, share: WorkerShare) -> float:
        """About how long all of it takes."""
        training = self.training
        return training_seconds(
            training.network,
            training.crop,
            epochs=training.recipe.epochs,
            n_train=self._n_train(),
            n_val=self.samples.expected_counts()["val"].samples,
            workers=training.workers,
            cpus=share.cpus,
            gpus=share.gpus,
        )

    def check(self) -> None:
        """Refuses a network that does not exist."""
        forward_flops(self.training.network, self.training.crop)

    def admit(self, session: Session) -> None:
        """Refuses workers that cannot be had, and weights to begin with that do not fit."""
        share = session.runner.training_share(self.training.workers, self.ask)
        if self.training.sync_batchnorm and not share.gpus:
            raise UsageError("--sync-batchnorm works on GPUs only; leave it out or set --gpus-per-worker")
        if self.start is not None:
            job = self._job(self.folder, share)
            job.task.network(job)

    def make(self, work: Path, session: Session) -> TrainingResult:
        """Trains, or goes on."""
        share = session.runner.training_share(self.training.workers, self.ask)
        logger.info("%s: %s of %s, about %s", self.name, self.describe(), share, duration(self.seconds_with(share)))
        done = len(read_epochs(work / EPOCHS))
        if done:
            logger.info("%s: going on after epoch %d", self.name, done)
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
            config=self.training,
            folder=work.absolute(),
            train=self.samples.data_split("train", files["train"]),
            val=self.samples.data_split("val", files["val"]),
            n_known=self.samples.protocol.n_known,
            what=self.what,
            fingerprint=self.fingerprint,
            samples=self.samples.fingerprint,
            init=self.start.absolute() if self.start is not None else None,
            task=self.task,
            threads=share.cpus,
            loader=self.training.loader,
            tensorboard=self.tensorboard,
        )


def _without_nan(row: EpochRow) -> dict[str, float | None]:
    """The row for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in row.items()}
