"""What all workers of a training are given: the data, the settings, and what is to be learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from oscbench.data.loading import Backend, DataSplit
from oscbench.errors import UsageError
from oscbench.labels import NEGATIVE, IntArray
from oscbench.losses import LOSSES, Criterion, TrainingClasses
from oscbench.records import from_mapping
from oscbench.training.checkpoint import Checkpoint, load_weights
from oscbench.training.order import steps_per_epoch
from oscbench.training.recipes import TrainConfig

if TYPE_CHECKING:
    from oscbench.training.loop import TrainingStep
    from oscbench.training.model import Classifier


class Task(Protocol):
    """What a training learns; travels to the workers by pickle."""

    def fewest_rows(self, job: TrainingJob) -> int:
        """Rows of a batch below which batch statistics cannot be taken."""
        ...

    @property
    def fresh_optimizer(self) -> bool:
        """Whether the optimiser starts anew with each epoch."""
        ...

    def uses_negatives(self, job: TrainingJob) -> bool:
        """Whether negative samples take part."""
        ...

    def network(self, job: TrainingJob) -> Classifier:
        """The network before the first step."""
        ...

    def step(self, job: TrainingJob) -> TrainingStep:
        """What a batch contributes to the loss."""
        ...

    def criterion(self, job: TrainingJob) -> Criterion:
        """The loss of a validation sample."""
        ...


@dataclass(frozen=True)
class LossTask:
    """A network from its beginning, by the loss that the settings name."""

    fresh_optimizer = False

    def fewest_rows(self, job: TrainingJob) -> int:
        """Two, whatever the network."""
        return 2

    def uses_negatives(self, job: TrainingJob) -> bool:
        """As the loss says."""
        return LOSSES.get(job.config.loss).uses_negatives

    def network(self, job: TrainingJob) -> Classifier:
        """Seeded, or from the given checkpoint."""
        import torch

        from oscbench.training.model import build_network

        config = job.config
        torch.manual_seed(config.seed)
        network = build_network(config.network, LOSSES.get(config.loss).n_outputs(job.n_known), config.embedding_size)
        if job.init is not None:
            wanted = f"{config.network} for {job.what}"
            load_weights(network, Checkpoint.load(job.init), where=str(job.init), wanted=wanted)
        return network

    def step(self, job: TrainingJob) -> TrainingStep:
        """The loss on logits."""
        from oscbench.training.loop import CriterionStep

        return CriterionStep(self.criterion(job))

    def criterion(self, job: TrainingJob) -> Criterion:
        """The loss, with the class counts of its training set."""
        config, labels = job.config, np.asarray(job.train.samples.labels)
        classes = TrainingClasses(
            n_known=job.n_known,
            counts=tuple(np.bincount(labels[labels >= 0], minlength=job.n_known).tolist()),
            n_negative=int(np.count_nonzero(labels == NEGATIVE)),
            label_smoothing=config.recipe.label_smoothing,
        )
        entry = LOSSES.info(config.loss)
        assert entry.params is not None, "every loss registers its parameter record"
        try:
            return entry.value.build(classes, from_mapping(entry.params, config.loss_params, f"loss {config.loss}"))
        except ValueError as error:
            raise UsageError(f"loss {config.loss}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What all workers of a training are given.

    Attributes:
        config: What decides the weights.
        folder: Receives ``last.pth``, ``best.pth`` and ``epochs.csv``; all workers must see it.
        train: Training images; the task decides which rows take part.
        val: Validation images, known and negative.
        n_known: K.
        what: Protocol and loss in words, for messages.
        fingerprint: Of the training; a checkpoint of another one is not continued.
        samples: Fingerprint of the sample tables, kept in the checkpoint.
        init: Checkpoint to start from.
        task: What is learned.
        threads: CPU threads of each worker.
        loader: Which image loader, the same on all workers.
        tensorboard: Also write TensorBoard files.
    """

    config: TrainConfig
    folder: Path
    train: DataSplit
    val: DataSplit
    n_known: int
    what: str
    fingerprint: str
    samples: str = ""
    init: Path | None = None
    task: Task = field(default_factory=LossTask)
    threads: int = 1
    loader: Backend = "pil"
    tensorboard: bool = False

    @property
    def train_ids(self) -> IntArray:
        """Rows of the training table that take part."""
        labels = np.asarray(self.train.samples.labels)
        ids = np.flatnonzero(labels >= (NEGATIVE if self.task.uses_negatives(self) else 0))
        workers, step_size = self.config.workers, self.config.recipe.batch_size * self.config.accumulate
        if steps_per_epoch(len(ids), workers, step_size, self.task.fewest_rows(self)) == 0:
            raise UsageError(f"{len(ids)} training samples are too few for {workers} workers")
        return ids
