"""Who executes the work of a stage: this process, or Ray (``distributed/runner.py``). Nothing here imports Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from oscbench.errors import UsageError
from oscbench.labels import ProgressFn
from oscbench.resources import Resources, WorkerAsk, WorkerShare

if TYPE_CHECKING:
    from oscbench.training.epoch_metrics import EpochRow
    from oscbench.training.extract import ExtractionJob, Rows
    from oscbench.training.job import TrainingJob
    from oscbench.tuning.evaluator import AnyEvaluator, Watcher
    from oscbench.tuning.search import SearchRun


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is run.

    Attributes:
        max_concurrent: Trials at the same time; ``None``: as the evaluator says. An Optuna search proposes at least as
            many before it looks at their values.
        time_budget: Seconds after which no more trials are begun.
        tensorboard: Also write event files.
    """

    max_concurrent: int | None = None
    time_budget: float | None = None
    tensorboard: bool = False


OpenRunner = Callable[[], contextlib.AbstractContextManager["Runner"]]
"""Enters an executor."""


class Runner(Protocol):
    """Executes the three kinds of work that are worth spreading."""

    def resources(self) -> Resources:
        """What it has."""
        ...

    def training_share(self, workers: int, ask: WorkerAsk) -> WorkerShare:
        """What each of so many training workers gets; a request that can never be met is refused."""
        ...

    def trial_share(self, trials: int, workers: int, ask: WorkerAsk) -> tuple[WorkerShare, int]:
        """What each of so many workers of a trial gets so that many trials run at once, and how many do."""
        ...

    def train(self, job: TrainingJob, share: WorkerShare, on_epoch: Callable[[EpochRow], None]) -> list[EpochRow]:
        """Trains to the end, from the last checkpoint where there is one; a row per epoch."""
        ...

    def extract(self, job: ExtractionJob, ask: WorkerAsk, progress: ProgressFn) -> Rows:
        """Network outputs of all samples, in the order of their ids."""
        ...

    def search(self, run: SearchRun, evaluator: AnyEvaluator, options: SearchOptions, watcher: Watcher) -> None:
        """Evaluates every setting of the search that is not finished."""
        ...

    def within_trials(self, workers: int) -> OpenRunner:
        """Who trains with so many workers from within a trial of ``search``; travels there by pickle."""
        ...


class LocalRunner:
    """Everything in this process: for tests, for debugging (``--local``), and where Ray cannot be started.

    Args:
        have: What it may use; default: all of this machine.
    """

    def __init__(self, have: Resources | None = None) -> None:
        self._have = have

    def resources(self) -> Resources:
        """What it may use."""
        return self._have or Resources.here()

    def training_share(self, workers: int, ask: WorkerAsk) -> WorkerShare:
        """All CPUs for the one worker there is."""
        if workers > 1:
            raise UsageError(f"{workers} workers need Ray; leave --local out, or use --num-workers 1")
        have = self.resources()
        return WorkerShare(cpus=ask.cpus or have.cpus, gpus=min(ask.gpus_of(have), float(have.gpus)))

    def trial_share(self, trials: int, workers: int, ask: WorkerAsk) -> tuple[WorkerShare, int]:
        """One after the other."""
        return self.training_share(workers, ask), 1

    def train(self, job: TrainingJob, share: WorkerShare, on_epoch: Callable[[EpochRow], None]) -> list[EpochRow]:
        """See ``Runner.train``."""
        import torch

        from oscbench.training.epoch_metrics import EPOCHS, read_epochs
        from oscbench.training.run import run_training
        from oscbench.training.workers import Workers

        shown = len(read_epochs(job.folder / EPOCHS))

        def report(history: tuple[EpochRow, ...]) -> None:
            nonlocal shown
            for row in history[shown:]:
                on_epoch(row)
            shown = len(history)

        return list(run_training(job, Workers(), torch.device("cuda" if share.gpus else "cpu"), report))

    def extract(self, job: ExtractionJob, ask: WorkerAsk, progress: ProgressFn) -> Rows:
        """See ``Runner.extract``."""
        import dataclasses

        import numpy as np
        import torch

        from oscbench.training.extract import extract_rows

        share = self.training_share(1, ask)
        job = dataclasses.replace(job, threads=share.cpus)
        rows = extract_rows(job, np.arange(len(job.split)), torch.device("cuda" if share.gpus else "cpu"))
        progress(len(job.split), len(job.split))
        return rows

    def search(self, run: SearchRun, evaluator: AnyEvaluator, options: SearchOptions, watcher: Watcher) -> None:
        """See ``Runner.search``."""
        from oscbench.tuning.local import run_search_here

        run_search_here(
            run, evaluator, together=options.max_concurrent, time_budget=options.time_budget, watcher=watcher
        )

    def within_trials(self, workers: int) -> OpenRunner:
        """This process: it runs the trials too."""
        return in_process


def in_process(have: Resources | None = None) -> contextlib.AbstractContextManager[Runner]:
    """Enters the executor that is the process itself, with what it may use of the machine."""
    return contextlib.nullcontext(LocalRunner(have))


class Session:
    """One command's executor, entered when a stage first needs it and left once, at the end.

    Args:
        open_runner: Enters the executor; default: this process.
        remote: Whether only the entered executor knows what it has, as with a cluster elsewhere.
    """

    def __init__(
        self,
        open_runner: OpenRunner = in_process,
        *,
        remote: bool = False,
    ) -> None:
        self._open = open_runner
        self._remote = remote
        self._stack = contextlib.ExitStack()
        self._runner: Runner | None = None

    @property
    def runner(self) -> Runner:
        """The executor, entered now if it was not yet."""
        if self._runner is None:
            self._runner = self._stack.enter_context(self._open())
        return self._runner

    @property
    def in_process(self) -> bool:
        """Whether it is known already that everything happens in this process."""
        return isinstance(self._runner, LocalRunner)

    def resources(self) -> Resources:
        """What there is to compute with; starts nothing that would run on this machine."""
        return self.runner.resources() if self._remote or self._runner is not None else Resources.here()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner = None
        self._stack.close()
