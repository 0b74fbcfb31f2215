"""A search in this process, without Ray: the same settings in the same order, the same rows."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Mapping
from functools import partial

from oscbench.progress import PassMeter
from oscbench.tuning.early_stopping import Rungs
from oscbench.tuning.evaluator import (
    MANY_SETTINGS,
    AnyEvaluator,
    Nobody,
    Outcome,
    SharedFeatures,
    TrialEvaluator,
    Watcher,
    pruned,
    run_trial,
)
from oscbench.tuning.search import SearchRun
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import trial_id

TRIALS = "trials"
"""Folder in which each trial that trains has its own."""


class OpenSettings:
    """Hands out the settings of a search that are not recorded; a sampler hears of the others from the journal.

    Attributes:
        over: Whether there are no more.
    """

    def __init__(self, run: SearchRun) -> None:
        self._run = run
        self._grid = iter(run.remaining()) if run.search.is_exhaustive else None
        self._proposer = None if run.search.is_exhaustive else run.search.proposer()
        self._numbers = itertools.count()
        self.over = False

    def take(self) -> tuple[int, Setting] | None:
        """The next setting with its number; ``None`` when it is over, or while the sampler waits for values."""
        if self._grid is not None:
            setting = next(self._grid, None)
            self.over = setting is None
            return None if setting is None else (next(self._numbers), setting)
        assert self._proposer is not None
        while self._proposer.ready():
            number = next(self._numbers)
            proposal = self._proposer.propose() if number < self._run.search.total else None
            if proposal is None:
                self.over = True
                return None
            setting = self._run.search.complete(proposal)
            recorded = self._run.sums()
            if trial_id(setting) not in recorded:
                return number, setting
            self._proposer.tell(number, recorded[trial_id(setting)])
        return None

    def tell(self, number: int, value: float | None) -> None:
        """Says what the setting of that number reached; ``None`` when it failed."""
        if self._proposer is not None:
            self._proposer.tell(number, value)


def run_search_here(
    run: SearchRun,
    evaluator: AnyEvaluator,
    *,
    together: int | None = None,
    time_budget: float | None = None,
    watcher: Watcher | None = None,
) -> None:
    """Runs every trial of the search that is not finished, in this process.

    Args:
        run: The open folder of the search.
        evaluator: What is asked.
        together: Settings on shared features that are evaluated in one pass.
        time_budget: Seconds after which no more trials are begun.
        watcher: Who is told.
    """
    watcher = watcher or Nobody()
    end = time.monotonic() + (math.inf if time_budget is None else time_budget)
    settings = OpenSettings(run)
    rungs = Rungs(evaluator.longest, run.steps()) if evaluator.longest is not None else None
    together = (together or MANY_SETTINGS) if isinstance(evaluator, SharedFeatures) else 1
    try:
        for number in itertools.count(1):
            batch = [taken for _ in range(together) if (taken := settings.take()) is not None]
            if not batch or time.monotonic() >= end:
                break
            if isinstance(evaluator, SharedFeatures):
                meter = PassMeter(number, len(batch), partial(watcher.progress, run))
                outcomes = evaluator([setting for _, setting in batch], meter)
            else:
                outcomes = [_trial(run, evaluator, setting, watcher, rungs) for _, setting in batch]
            for (place, setting), outcome in zip(batch, outcomes, strict=True):
                run.record(setting, outcome)
                settings.tell(place, outcome.get("sum"))
                forget_trial(run, evaluator, setting)
                watcher.update(run)
    finally:
        evaluator.clean_up()


class _FallenBehindError(BaseException):
    """Ends a trial from within its report; no error of the trial, which would be recorded as its outcome."""


def _trial(
    run: SearchRun, evaluator: TrialEvaluator, setting: Setting, watcher: Watcher, rungs: Rungs | None
) -> Outcome:
    name, started, last = trial_id(setting), time.perf_counter(), dict[str, float]()

    def report(step: int, values: Mapping[str, float]) -> None:
        run.step(setting, step, values)
        watcher.step(run, setting, step, values)
        last.update(values)
        if rungs is not None and not rungs.keeps_up(name, step, values["sum"]):
            raise _FallenBehindError

    try:
        return run_trial(evaluator, setting, run.search.folder / TRIALS / name, report)
    except _FallenBehindError:
        return pruned(last, time.perf_counter() - started)


def forget_trial(run: SearchRun, evaluator: AnyEvaluator, setting: Setting) -> None:
    """Removes the folder of a recorded trial, and that of all with the last one, unless the evaluator keeps them."""
    if isinstance(evaluator, SharedFeatures) or evaluator.keeps_folders:
        return
    folders = run.search.folder / TRIALS
    shutil.rmtree(folders / trial_id(setting), ignore_errors=True)
    if folders.is_dir() and not any(folders.iterdir()):
        folders.rmdir()
