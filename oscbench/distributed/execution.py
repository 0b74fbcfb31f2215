"""Where and how stages run: the part of a request that changes no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from oscbench.distributed.cluster import Resources, fair_cpus
from oscbench.distributed.train import WorkerShare
from oscbench.training.epoch_metrics import EpochLog, EpochRow

ASK_ABOVE_SECONDS = 600.0
"""A stage that nobody asked for by name and that would take longer needs ``--yes``."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how stages run; nothing here changes a result.

    Attributes:
        address: Ray cluster to join; ``None`` starts Ray here.
        cpus_per_worker: CPUs of each training worker; ``None``: all of a Ray started here, shared out.
        gpus_per_worker: GPUs of each worker; ``None``: one where there are any.
        loader: Which image loader.
        yes: Whether long stages may start without having been asked for by name.
        resume: Whether an interrupted training is continued.
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; by default a line in the log.
    """

    address: str | None = None
    cpus_per_worker: int | None = None
    gpus_per_worker: float | None = None
    loader: Literal["auto", "ffcv", "pil"] = "auto"
    yes: bool = False
    resume: bool = True
    tensorboard: bool = False
    on_epoch: Callable[[EpochRow], None] = field(default_factory=EpochLog)

    def training_share(self, have: Resources, workers: int) -> WorkerShare:
        """Resources of each of the workers of a training."""
        gpus = self._gpus(have)
        return WorkerShare(cpus=self.cpus_per_worker or fair_cpus(workers, gpus), gpus=gpus)

    def extraction_share(self, have: Resources) -> WorkerShare:
        """Resources of each extracting task: a GPU with its share of the CPUs, or one CPU."""
        gpus = self._gpus(have)
        return WorkerShare(cpus=fair_cpus(max(1, int(have.gpus / gpus)), gpus) if gpus else 1, gpus=gpus)

    def _gpus(self, have: Resources) -> float:
        return self.gpus_per_worker if self.gpus_per_worker is not None else float(have.gpus > 0)
