"""Ray as the executor of stages: one connection per command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from oscbench.distributed.cluster import Dashboard, connect, dashboard, fair_cpus, fitting_workers, require, resources
from oscbench.distributed.extract import extract_on_ray
from oscbench.distributed.train import train_on_ray
from oscbench.distributed.tune import run_search
from oscbench.labels import ProgressFn
from oscbench.resources import Resources, WorkerAsk, WorkerShare
from oscbench.stages.runner import OpenRunner, SearchOptions, in_process
from oscbench.training.epoch_metrics import EpochRow
from oscbench.training.extract import ExtractionJob, Rows
from oscbench.training.job import TrainingJob
from oscbench.tuning.evaluator import AnyEvaluator, Watcher
from oscbench.tuning.search import SearchRun


@contextlib.contextmanager
def open_ray(address: str | None = None, *, tell: Callable[[Dashboard], None] | None = None) -> Iterator[RayRunner]:
    """Ray as an executor, for the length of a ``with`` block.

    Args:
        address: A cluster to join; ``None`` starts Ray here and ends it afterwards.
        tell: Told where the cluster can be watched; without it a Ray started here serves no dashboard.
    """
    with connect(address, dashboard=tell is not None):
        found = dashboard() if tell is not None else None
        if tell is not None and found is not None:
            tell(found)
        yield RayRunner()


class RayRunner:
    """Spreads work over the connected Ray; see ``stages.runner.Runner``."""

    def resources(self) -> Resources:
        """What the cluster has."""
        return resources()

    def training_share(self, workers: int, ask: WorkerAsk) -> WorkerShare:
        """An equal share of the cluster for each worker, unless less is asked for."""
        gpus = ask.gpus_of(resources())
        share = WorkerShare(cpus=ask.cpus or fair_cpus(workers, gpus), gpus=gpus)
        require(workers=workers, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus)
        return share

    def trial_share(self, trials: int, workers: int, ask: WorkerAsk) -> tuple[WorkerShare, int]:
        """Rather many trials on few CPUs each than few on many; all workers of all trials fit into the nodes."""
        room = fitting_workers(ask.cpus or 1, ask.gpus_of(resources()))
        at_once = max(1, min(trials, room // workers))
        return self.training_share(at_once * workers, ask), at_once

    def train(self, job: TrainingJob, share: WorkerShare, on_epoch: Callable[[EpochRow], None]) -> list[EpochRow]:
        """Trains through Ray Train."""
        return train_on_ray(job, share, on_epoch=on_epoch)

    def extract(self, job: ExtractionJob, ask: WorkerAsk, progress: ProgressFn) -> Rows:
        """Extracts in tasks: each a GPU with its share of the CPUs, or one CPU."""
        have = resources()
        gpus = ask.gpus_of(have)
        cpus = ask.cpus or (fair_cpus(max(1, int(have.gpus / gpus)), gpus) if gpus else 1)
        return extract_on_ray(job, WorkerShare(cpus=cpus, gpus=gpus), progress)

    def search(self, run: SearchRun, evaluator: AnyEvaluator, options: SearchOptions, watcher: Watcher) -> None:
        """Searches through Ray Tune."""
        run_search(
            run,
            evaluator,
            max_concurrent=options.max_concurrent,
            time_budget=options.time_budget,
            tensorboard=options.tensorboard,
            watcher=watcher,
        )

    def within_trials(self, workers: int) -> OpenRunner:
        """A trial with one worker is that worker, which saves the start of three processes; others drive Ray Train."""
        return in_process if workers == 1 else open_ray
