"""All figures of all finished cells as one tidy table, and per system: over several seeds, or with intervals of one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pandas as pd

from oscbench.metrics import FPRS, CcrRule, Interval, ccr_column
from oscbench.report.blocks import HIGH, LOW, STD
from oscbench.report.evaluation import AgainstKind, Options, SplitFigures, evaluate_split
from oscbench.report.results import Cell, Results
from oscbench.scores import ScoreSet

RATES: Final = tuple(ccr_column(fpr) for fpr in FPRS)

FIGURES: Final = ("auroc", *RATES, "sum", "accuracy")
"""Columns that get an interval or a deviation."""

GAMMAS: Final = ("gamma_plus", "gamma_minus")

SYSTEM: Final = ("data", "protocol", "training", "network", "recipe", "algorithm")
"""What repetitions with other seeds have in common."""

COLUMNS: Final = {
    **dict.fromkeys(("data", "protocol", "training", "network", "recipe", "train"), "str"),
    "seed": "Int64",
    **dict.fromkeys(("algorithm", "params", "score_kind", "chosen_by", "split", "kind"), "str"),
    "n_known": "int64",
    "n": "int64",
    "ccr_rule": "str",
    **dict.fromkeys((*FIGURES, *GAMMAS), "float64"),
    "preferred": "bool",
    "demo": "bool",
    "folder": "str",
}
"""The columns of the tidy table with their types, in order; ``docs/formats.md`` says what they hold."""

MOST_RESAMPLES, FEWEST_RESAMPLES = 1000, 100
_SAMPLES_RESAMPLED: Final = 100_000_000  # about 20 s on one core (0.2 µs for all figures of a sample)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measures:
    """The figures of a runs folder.

    Attributes:
        frame: A row for each cell, split and kind of other samples, with the columns of ``COLUMNS``. A rate that cannot
            be reached is NaN.
        cells: The cell of each row.
        rule: By which CCR is read.
    """

    frame: pd.DataFrame
    cells: tuple[Cell, ...]
    rule: CcrRule
    _resampled: dict[tuple[Cell, str], SplitFigures] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, results: Results, rule: CcrRule = "inclusive") -> Measures:
        """The figures of all cells; those that ``Results.preferred`` keeps are marked."""
        preferred = set(results.preferred(rule).cells)
        found = [(cell, row) for cell in results.cells for row in _rows(cell, rule)]
        rows = [row | {"preferred": cell in preferred, "folder": _place(results, cell)} for cell, row in found]
        frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
        return cls(frame=frame, cells=tuple(cell for cell, _ in found), rule=rule)

    @cached_property
    def resamples(self) -> int:
        """How many resamples stand behind each interval: fewer of large data, so that a report takes no minutes."""
        rows = self.frame.iloc[[rows[0] for rows in self._systems.values() if len(rows) == 1]]
        samples = int((rows["n_known"] + rows["n"]).sum())
        fitting = _SAMPLES_RESAMPLED // max(samples, 1) // 50 * 50
        return min(max(fitting, FEWEST_RESAMPLES), MOST_RESAMPLES)

    @cached_property
    def _systems(self) -> dict[tuple[str, ...], list[int]]:
        """The rows of each system, split and kind, one of each seed."""
        shown = self.frame[self.frame["preferred"]]
        found: dict[tuple[str, ...], list[int]] = {}
        for row, key in zip(shown.index, shown[[*SYSTEM, "split", "kind"]].itertuples(index=False), strict=True):
            found.setdefault(tuple(key), []).append(int(row))
        return found

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each system, split and kind: what its preferred cells have reached, as mean over seeds.

        Beside each figure the deviation over several seeds (``auroc_std``), or the ends of the bootstrap interval of a
        single one (``auroc_low``, ``auroc_high``). A rate that one of the seeds did not reach is blank.
        """
        columns = [*SYSTEM, "split", "kind", "seeds", "n_seeds", "n_known", "n", "score_kind"]
        columns += [name + end for name in FIGURES for end in ("", STD, LOW, HIGH)] + list(GAMMAS)
        rows = [self._summary_row(key, rows) for key, rows in self._systems.items()]
        return pd.DataFrame(rows, columns=columns)

    def _summary_row(self, key: tuple[str, ...], rows: list[int]) -> dict[str, Any]:
        own = self.frame.loc[rows]
        named = dict(zip((*SYSTEM, "split", "kind"), key, strict=True))
        row: dict[str, Any] = named | {
            "seeds": ", ".join(str(seed) for seed in own["seed"].dropna()),
            "n_seeds": len(own),
            "n_known": own["n_known"].iloc[0],
            "n": own["n"].iloc[0],
            "score_kind": ", ".join(dict.fromkeys(own["score_kind"])),
        }
        row |= {name: float(own[name].mean(skipna=False)) for name in (*FIGURES, *GAMMAS)}
        if len(own) > 1:
            return row | {name + STD: float(own[name].std(ddof=1, skipna=False)) for name in FIGURES}
        for name, interval in self._intervals(rows[0]).items():
            row |= {name + LOW: interval.low, name + HIGH: interval.high}
        return row

    def _intervals(self, row: int) -> dict[str, Interval]:
        cell, split, kind = self.cells[row], str(self.frame.at[row, "split"]), self.frame.at[row, "kind"]
        if (cell, split) not in self._resampled:
            options = Options(rule=self.rule, resamples=self.resamples)
            self._resampled[cell, split] = evaluate_split(split, cell.splits[split], options)
        found = self._resampled[cell, split]
        return _figures(found, next(against for against in found.against if against.kind == kind))

    @property
    def note(self) -> str:
        """How figures are to be read, for the tables that show the summary."""
        several = any(len(rows) > 1 for rows in self._systems.values())
        single = any(len(rows) == 1 for rows in self._systems.values())
        parts = ["± is the standard deviation over seeds."] if several else []
        if single:
            parts.append(
                f"[ ] is the 95 % interval of {self.resamples} bootstrap resamples of the samples; an end - is out of "
                "reach."
            )
        return " ".join([*parts, "Blank: a rate that was not reached" + (" with every seed." if several else ".")])


def _rows(cell: Cell, rule: CcrRule) -> Iterator[dict[str, Any]]:
    """The figures of a cell, without what only all results tell."""
    origin = cell.origin
    named = {name: getattr(origin, name) for name in ("data", "protocol", "training", "network", "recipe", "train")}
    named |= {"seed": origin.seed, "algorithm": cell.algorithm, "params": json.dumps(cell.params, sort_keys=True)}
    named |= {"score_kind": cell.score_kind, "chosen_by": cell.ccr_rule, "ccr_rule": rule, "demo": origin.demo}
    for split, scores in cell.splits.items():
        part = evaluate_split(split, scores, Options(rule=rule))
        for against in part.against:
            row = named | {"split": split, "kind": against.kind, "n_known": part.n_known, "n": against.n}
            row |= {name: interval.estimate for name, interval in _figures(part, against).items()}
            yield row | _gammas(scores, against.kind)


def _figures(part: SplitFigures, against: AgainstKind) -> dict[str, Interval]:
    rates = dict(zip(RATES, against.ccr, strict=True))
    return {"auroc": against.auroc, **rates, "sum": against.ccr_sum, "accuracy": part.accuracy}


def _gammas(scores: ScoreSet, kind: str) -> dict[str, float]:
    """γ⁺ of the known samples and γ⁻ of that kind, where the scores' folder has them."""
    recorded = (scores.info.confidence if scores.info is not None else None) or {}
    found = (recorded.get(key) for key in ("known", kind))
    return {name: math.nan if value is None else value for name, value in zip(GAMMAS, found, strict=True)}


def _place(results: Results, cell: Cell) -> str:
    """The folder of a cell, relative to the runs folder where it lies below it."""
    inside = cell.folder.is_relative_to(results.runs)
    return (cell.folder.relative_to(results.runs) if inside else cell.folder).as_posix()
