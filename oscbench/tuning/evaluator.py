"""What a search asks: settings in, CCR at the four rates out. Tune, a loop and a unit test ask the same thing. No Ray.

There are two kinds. ``SharedFeatures`` evaluates all settings that wait at a moment in one pass over features that are
there already. A ``TrialEvaluator`` trains something for each setting, step by step, in the trial's own process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE, IntArray, ProgressFn
from oscbench.metrics import CcrRule
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.progress import PassProgress
from oscbench.records import from_mapping
from oscbench.resources import Resources
from oscbench.tuning.grid import grid_answer, rate_table
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES

if TYPE_CHECKING:
    from oscbench.tuning.search import Search, SearchRun

Outcome = dict[str, Any]
"""What one trial has to report: the columns of ``RATES`` and ``seconds``, or ``error``; ``notes``, what had to be bent;
and ``pruned`` where it was stopped early."""

WAITING_CPUS = 0.02
"""What a process reserves that only waits for an answer."""

FEW_SETTINGS, MANY_SETTINGS = 4, 16
"""Settings evaluated in one pass. On Ray each waits in a process that takes about a second to start: few where a pass
takes no longer than that, many where it does."""

SETTINGS_PER_PROCESS = 25
"""Quick settings that take as long, one after the other, as starting a process for others of them."""

LARGE_PAIRS = 2e8
"""Pairs of a training and a validation row from which on a pass takes longer than starting a process."""


def check_validation(labels: IntArray, where: str) -> None:
    """Refuses a validation set on which a search has no meaning, and says what cannot be computed."""
    if not np.any(labels == NEGATIVE):
        raise UsageError(
            f"{where} has no negatives (label {NEGATIVE}): without them there is no false-positive rate, so CCR at "
            "1e-3, 1e-2 and 1e-1 cannot be computed and nothing can be tuned; add negatives to the validation set"
        )
    if not np.any(labels >= 0):
        raise UsageError(f"{where} has no known samples: no correct-classification rate can be computed")


# --- the seam ----------------------------------------------------------------------------------------------------


class Evaluator(Protocol):
    """What a search must know of either kind."""

    @property
    def cpus(self) -> float:
        """CPUs of each trial's process."""
        ...

    @property
    def gpus(self) -> float:
        """GPUs of each trial's process."""
        ...

    @property
    def longest(self) -> int | None:
        """Steps of the longest trial, where those that do worse than others may be stopped early; else ``None``."""
        ...

    def concurrency(self, left: int, have: Resources) -> int:
        """How many of the ``left`` trials run at once.

        Whoever starts workers of its own from a trial must leave room for them: trials that hold all of the cluster
        would wait for each other's workers for ever.
        """
        ...

    def clean_up(self) -> None:
        """Called once where the search runs, however it ended."""
        ...


@dataclass(frozen=True)
class TrialContext:
    """What a trial that trains is given.

    Attributes:
        folder: Its own, the same in every attempt, for checkpoints.
        earlier_attempts: How often it was begun before; its process was lost, or the search was killed.
        report: Called as ``report(step, values)`` with figures on the way. Trials are compared by ``sum``; one that is
            stopped early is recorded with the rates it reported last, so all of them must be there.
    """

    folder: Path
    earlier_attempts: int
    report: Callable[[int, Mapping[str, float]], None]


class TrialEvaluator(Evaluator, Protocol):
    """Trains something for each setting; travels to the trial's process by pickle."""

    @property
    def keeps_folders(self) -> bool:
        """Whether the folders of recorded trials stay."""
        ...

    def evaluate(self, setting: Setting, trial: TrialContext) -> Outcome:
        """The columns of ``RATES`` for one setting; goes on from what an earlier attempt has left in the folder."""
        ...


class Watcher(Protocol):
    """Who is told what a running search does."""

    def update(self, run: SearchRun) -> None:
        """A trial has finished."""
        return

    def progress(self, run: SearchRun, current: PassProgress) -> None:
        """A pass over several settings goes on; on Ray called from a thread of its own."""
        return

    def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
        """A trial that trains has reported figures on the way."""
        return


class Nobody(Watcher):
    """A watcher that does nothing; one that wants to hear of a single thing overrides that."""


def run_trial(evaluator: TrialEvaluator, setting: Setting, folder: Path, report: Callable[..., None]) -> Outcome:
    """One attempt at a trial that trains, begun in this process; an error is its outcome and not the search's."""
    folder.mkdir(parents=True, exist_ok=True)
    attempts, started = folder / "attempts", time.perf_counter()
    with attempts.open("a+", encoding="utf-8") as file:
        file.seek(0)
        earlier = len(file.readlines())
        file.write("begun\n")
    try:
        found = evaluator.evaluate(setting, TrialContext(folder, earlier, report))
        outcome = {"error": found["error"]} if "error" in found else {name: float(found[name]) for name in RATES}
        outcome["notes"] = found.get("notes", ())
    except Exception as error:  # noqa: BLE001 - whatever a trial raises belongs to it
        outcome = {"error": describe(error), "notes": ()}
    return outcome | {"seconds": time.perf_counter() - started}


def pruned(last: Mapping[str, float], seconds: float) -> Outcome:
    """The outcome of a trial that was stopped early: what it reported last."""
    return {name: last[name] for name in RATES} | {"pruned": True, "seconds": seconds, "notes": ()}


# --- shared features ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How settings are evaluated on features.

    Attributes:
        rule: How the CCR at a rate is read from the curve.
        score_kind: Kind of score.
        expected: Settings between which all others lie. A method with ``open_source(train, settings)`` then keeps
            what they share, for EVM the distances of its tails, from one call to the next.
        memory: Bytes that such a method may use for it, on each of the processes that share the work.
    """

    rule: CcrRule = "inclusive"
    score_kind: ScoreKind = "log"
    expected: tuple[Setting, ...] = ()
    memory: int | None = None


class SharedFeatures:
    """Evaluates settings of one algorithm on one pair of feature sets; shared work is kept between calls.

    Args:
        algorithm: A registered post-processor.
        train: Rows to fit on.
        validation: Rows to score; its negatives give the false-positive rate.
        options: How.
        make_source: Who computes for a method that keeps shared work; default: this process.
    """

    cpus = WAITING_CPUS
    gpus = 0.0
    longest = None

    def __init__(
        self,
        algorithm: str,
        train: FeatureSet,
        validation: FeatureSet,
        options: EvaluationOptions | None = None,
        *,
        make_source: Callable[..., Any] | None = None,
    ) -> None:
        self.algorithm, self.train, self.validation = algorithm, train, validation
        self.options = options or EvaluationOptions()
        entry = POSTPROCESSORS.info(algorithm)
        self._params = entry.params
        self._make_source = make_source
        keeps = self.options.expected or self.options.memory is not None
        self._open_source = entry.grid.open_source if keeps and entry.shares_work else None
        self._source: Any = None

    @classmethod
    def of(
        cls, search: Search, train: FeatureSet, validation: FeatureSet, *, memory: int | None = None
    ) -> SharedFeatures:
        """What evaluates the settings of a search."""
        expected = tuple(search.expected_settings())
        options = EvaluationOptions(rule=search.rule, score_kind=search.score_kind, expected=expected, memory=memory)
        return cls(search.algorithm, train, validation, options)

    def __call__(self, settings: Sequence[Setting], progress: ProgressFn | None = None) -> list[Outcome]:
        """The outcome of each setting, in order; a setting that fails does not take the others with it."""
        return self._outcomes(settings, progress)

    def concurrency(self, left: int, have: Resources) -> int:
        """Few where a pass is quick, many where it takes long."""
        pairs = len(self.train) * len(self.validation)
        if pairs >= LARGE_PAIRS:
            return min(left, MANY_SETTINGS)
        if pairs >= LARGE_PAIRS / 20 and POSTPROCESSORS.info(self.algorithm).cost == "pairs":
            return min(left, FEW_SETTINGS)
        return min(FEW_SETTINGS, 1 + left // SETTINGS_PER_PROCESS)

    def clean_up(self) -> None:
        """Frees what is kept between calls."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _outcomes(self, settings: Sequence[Setting], progress: ProgressFn | None) -> list[Outcome]:
        started = time.perf_counter()
        try:
            rows = self._evaluate(settings, progress)
        except Exception as error:  # noqa: BLE001 - whatever a method raises belongs to its trial, not to the search
            if len(settings) > 1:
                return [outcome for setting in settings for outcome in self._outcomes([setting], None)]
            return [{"error": describe(error), "notes": ()}]
        share = (time.perf_counter() - started) / len(settings)
        return [row | {"seconds": share} for row in rows]

    def _evaluate(self, settings: Sequence[Setting], progress: ProgressFn | None) -> list[Outcome]:
        from oscbench.numerics.evm.source import Meter

        records = self._records(settings)
        meter = Meter(progress, 1.0)
        if self._open_source is not None:
            # What is kept, where there is such a thing, takes about as long to compute as the first pass over it.
            opening = Meter(progress, 2.0)
            self._source, self._open_source = self._opened(records, opening.phase(1.0)), None
            meter = meter if self._source is None else opening
        answer = grid_answer(
            self.algorithm,
            self.train,
            self.validation,
            records,
            score_kind=self.options.score_kind,
            source=self._source,
            progress=meter.phase(1.0),
        )
        table = rate_table(self.validation.labels, answer, rule=self.options.rule)
        rows = table.to_dict("records")
        return [{name: float(row[name]) for name in RATES} | {"notes": answer.notes} for row in rows]

    def _opened(self, records: Sequence[Any], progress: ProgressFn | None) -> Any:
        assert self._open_source is not None
        from oscbench.numerics.sources import local_source

        expected = self._records(self.options.expected) or records
        make_source = self._make_source or partial(local_source, memory_budget=self.options.memory)
        source = self._open_source(self.train, expected, make_source=make_source, progress=progress)
        if source is None and self.options.memory is not None:
            raise UsageError(
                f"{self.algorithm}: --memory bounds distances that settings share, and these settings share none; "
                "leave it out (EVM: search one metric and one choice of negatives at a time)"
            )
        return source

    def _records(self, settings: Sequence[Setting]) -> list[Any]:
        return [from_mapping(self._params, setting, "setting") for setting in settings]


def describe(error: Exception) -> str:
    """The message of an error of ours, anything else with its type, in one line."""
    text = str(error) if isinstance(error, OscbenchError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


AnyEvaluator = SharedFeatures | TrialEvaluator
"""Either kind; who drives a search must tell them apart, because only one of them is asked in batches."""
