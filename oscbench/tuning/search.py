"""One search and its folder: what is left to try, where each outcome is kept, what comes out in the end. No Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from oscbench.errors import OscbenchError
from oscbench.labels import NEGATIVE, IntArray
from oscbench.metrics import CcrRule
from oscbench.notes import FILE as NOTES
from oscbench.notes import Note, merge_notes, read_notes, write_notes
from oscbench.origin import Origin
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.postprocessors.base import usable_score_kind
from oscbench.tuning.evaluator import Outcome
from oscbench.tuning.proposals import GENERATION, Proposer
from oscbench.tuning.published import Published, published_best
from oscbench.tuning.space import SearchSpace, Setting, complete_setting
from oscbench.tuning.study import FILE, StudyLog, study_name
from oscbench.tuning.trials import (
    COLUMNS,
    NETWORK,
    RATES,
    Best,
    TrialJournal,
    best_of,
    trial_id,
    write_parquet,
)

SearchKind = Literal["grid", "optuna", "random"]

DEFAULT_TRIALS = 60
"""Trials of a budgeted search that names no number."""


def trial_count(space: SearchSpace, kind: SearchKind, trials: int) -> int:
    """How many trials a search has in the end: all of a grid, else the budget, as far as there are settings."""
    if kind == "grid" or not space.grid:
        return math.prod(len(values) for values in space.grid.values())
    return int(min(trials, Proposer(space, kind, seed=0).size))


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """What is tried, on which features, and the folder in which that is kept; the stage ``tune`` names it.

    Attributes:
        origin: Data, protocol and network behind the features; its seed is also that of the search.
        folder: Where the search is kept.
        fingerprint: Names it; two searches with equal fingerprints give equal tables.
        features: Fingerprint of the features.
        validation_labels: Of the rows that CCR is computed on.
        trials: How many settings a budgeted search tries; a grid is always tried whole.
        generation: See ``proposals``; only an Optuna search depends on it.
    """

    origin: Origin
    folder: Path
    fingerprint: str
    features: str
    algorithm: str
    validation_labels: IntArray
    space: SearchSpace
    kind: SearchKind = "grid"
    trials: int = DEFAULT_TRIALS
    generation: int = GENERATION
    rule: CcrRule = "inclusive"
    score_kind: ScoreKind = "log"

    @property
    def seed(self) -> int:
        """Of the training, and of the search."""
        return self.origin.seed or 0

    @property
    def key(self) -> dict[str, Any]:
        """The key columns of every row."""
        origin = self.origin
        place = {"data": origin.data, "protocol": origin.protocol, "training": origin.training}
        return place | {"algorithm": self.algorithm, "seed": self.seed}

    @cached_property
    def params(self) -> type[Any] | None:
        """The algorithm's parameter record."""
        return POSTPROCESSORS.info(self.algorithm).params

    @cached_property
    def hyperparameters(self) -> list[str]:
        """Names of the algorithm's hyperparameters."""
        return [field.name for field in dataclasses.fields(self.params)] if self.params is not None else []

    @property
    def published(self) -> Published | None:
        """The published optimum for this algorithm, protocol and training."""
        return published_best(self.algorithm, self.origin.protocol, self.origin.training)

    def complete(self, setting: Setting) -> Setting:
        """The setting with every hyperparameter in it."""
        return complete_setting(setting, self.params, f"search space of {self.algorithm}")

    def grid_settings(self) -> list[Setting]:
        """Every setting of the grid."""
        return [self.complete(setting) for setting in self.space.settings()]

    def expected_settings(self) -> list[Setting]:
        """Settings between which all trials lie: the grid, or the corners of the ranges."""
        if self.is_exhaustive:
            return self.grid_settings()
        corners = itertools.product(*(limits.probes() for limits in self.space.ranges.values()))
        return [self.complete(dict(zip(self.space.ranges, corner, strict=True))) for corner in corners]

    def proposer(self) -> Proposer:
        """Where a budgeted search gets its settings from, begun with the published optimum."""
        if self.kind == "grid":
            raise ValueError("a grid proposes nothing")
        warm_start = self.complete(self.published.setting) if self.published else None
        return Proposer(self.space, self.kind, self.seed, generation=self.generation, warm_start=warm_start)

    @property
    def is_exhaustive(self) -> bool:
        """Whether every setting of the grid is tried: a grid, or nothing to choose from."""
        return self.kind == "grid" or not self.hyperparameters

    @cached_property
    def total(self) -> int:
        """How many trials the search has in the end."""
        return trial_count(self.space, self.kind, self.trials)

    def notes(self) -> tuple[Note, ...]:
        """What the method had to bend in the trials so far."""
        return read_notes(self.folder / NOTES)


class SearchRun:
    """The open folder of a search, held by one process (the stage's lock): records outcomes, writes the products.

    ``trials.csv`` is the truth. A trial counts as finished when its line is there, and on opening only such trials are
    taken over. Tune's own snapshots are not used for that: they lag behind the results by up to ten seconds, so a
    restored experiment would run finished trials again.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self._stack = contextlib.ExitStack()
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        search = self.search
        with self._stack:
            extra = [name for name in search.hyperparameters if name not in COLUMNS]
            self.journal = self._stack.enter_context(TrialJournal(search.folder / "trials.csv", extra))
            name = study_name(search.key, search.fingerprint)
            self._study = StudyLog(search.folder / FILE, name, search.space, search.kind, self.journal.rows)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def sums(self) -> dict[str, float | None]:
        """What the recorded trials reached, by trial id; ``None`` for one that failed in this run."""
        return {str(row["trial_id"]): row["sum"] for row in self.journal.rows}

    def remaining(self) -> list[Setting]:
        """The settings of the grid that are not finished."""
        finished = self.journal.finished()
        return [setting for setting in self.search.grid_settings() if trial_id(setting) not in finished]

    def record(self, setting: Setting, outcome: Outcome) -> None:
        """Writes a finished trial to the journal first, then to the study that follows it."""
        search = self.search
        row = {
            "run_id": search.fingerprint[:8],
            "trial_id": trial_id(setting),
            "status": "failed" if "error" in outcome else "pruned" if outcome.get("pruned") else "done",
            **search.key,
            **{name: getattr(search.origin, name) for name in NETWORK},
            **setting,
            **{name: outcome.get(name) for name in (*RATES, "seconds", "error")},
            "n_known": int(np.sum(search.validation_labels >= 0)),
            "n_negative": int(np.sum(search.validation_labels == NEGATIVE)),
            "ccr_rule": search.rule,
            "score_kind": usable_score_kind(search.algorithm, search.score_kind),
            "search": search.kind,
            "finished_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "features": search.features,
        }
        self._note(outcome.get("notes", ()))
        self.journal.append(row)
        self._study.add(row)
        if self._first is None:
            self._first = (time.monotonic(), self.done)

    def step(self, setting: Setting, step: int, values: Mapping[str, float]) -> None:
        """Keeps a figure on the way of a trial that trains, for who watches."""
        self._study.step(trial_id(setting), setting, step, values)

    def steps(self) -> dict[str, dict[int, float]]:
        """What trials have reported on the way in this and earlier runs: sum by step, by trial id."""
        return self._study.steps()

    def _note(self, notes: Iterable[Note]) -> None:
        """Keeps what the method had to bend; what is known already is not written again."""
        known = self.search.notes()
        merged = merge_notes(known, notes)
        if merged != known:
            write_notes(self.search.folder / NOTES, merged)

    @property
    def done(self) -> int:
        """Trials finished by now, in this and earlier runs."""
        return len(self.journal.finished())

    def seconds_left(self) -> float | None:
        """Estimated from the pace since this run's first result; ``None`` before its second."""
        if self._first is None or self.done <= self._first[1]:
            return None
        at, count = self._first
        return (time.monotonic() - at) / (self.done - count) * (self.search.total - self.done)

    def table(self) -> pd.DataFrame:
        """The trials so far."""
        return self.journal.table()

    def finish(self) -> Best:
        """Writes ``trials.parquet`` and ``best.yaml``, which says whether every trial is there."""
        search, table = self.search, self.table()
        write_parquet(search.folder / "trials.parquet", table)
        failed = table[table["status"] == "failed"]
        if not (table["status"] == "done").any():
            reason = (
                failed["error"].iloc[0]
                if len(failed)
                else "time was over before the first one; give a longer --time-budget"
            )
            raise OscbenchError(f"no trial of {search.algorithm} finished: {reason}")
        complete = self.done >= search.total
        best = best_of(table, search.hyperparameters, complete=complete)
        best.write(search.folder / "best.yaml")
        return best
