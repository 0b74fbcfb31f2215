"""Who is best: methods in order of what they reach on test unknowns, over seeds, and what each loses on the way.

A setting is chosen on validation negatives, and what counts is what it does with unknowns nobody has seen. A method
with many settings, or a network that was trained on negatives, may do well on the first and badly on the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.stats import t as student

from oscbench.metrics import Interval
from oscbench.report.evaluation import SplitFigures
from oscbench.report.tables import interval_document
from oscbench.runs import RunTitle

LEVEL: Final = 0.95
UNDEFINED: Final = Interval(math.nan, math.nan, math.nan, math.nan, math.nan)

FIGURES: Final = {
    "unknown": "test unknown",
    "negative": "test negative",
    "validation": "val negative",
    "lost": "lost",
    "accuracy": "accuracy",
}
"""Fields of a standing that are figures, and what tables head them with."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One method on the networks of one training.

    Figures are means over seeds with Student's interval; those of a single seed keep the interval they came with.

    Attributes:
        algorithm: Name of the post-processor.
        training: Loss of the networks.
        network: Their architecture and recipe, where known.
        seeds: Of the networks.
        validation: CCR@FPR sum against validation negatives, on which settings are chosen.
        negative: The same against test negatives.
        unknown: The same against test unknowns.
        lost: What ``unknown`` lacks of ``validation``, seed by seed.
        accuracy: Closed-set accuracy on test.
    """

    algorithm: str
    training: str
    network: str
    seeds: tuple[int, ...]
    validation: Interval
    negative: Interval
    unknown: Interval
    lost: Interval
    accuracy: Interval

    @property
    def ranked_by(self) -> str:
        """The figure that decides: of test unknowns, without any of test negatives, without a test of validation."""
        found = (name for name in ("unknown", "negative") if not math.isnan(getattr(self, name).estimate))
        return next(found, "validation")

    @property
    def measure(self) -> float:
        """What it is ranked by; a method that has nothing stands last."""
        estimate: float = getattr(self, self.ranked_by).estimate
        return -math.inf if math.isnan(estimate) else estimate


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of several figures and its 95 % interval by Student's t; NaN where one of them is.

    >>> mean_interval([1.0, 2.0, 3.0])[:2]
    (2.0, -0.484137711735456)
    """
    mean = float(np.mean(values))
    half = float(student.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half, LEVEL, 0.0)


def ranking(runs: Iterable[tuple[RunTitle, Sequence[SplitFigures]]]) -> list[Standing]:
    """The standings of all methods, the best first: runs that differ in their seed alone count together."""
    groups: dict[tuple[Any, ...], list[tuple[RunTitle, Sequence[SplitFigures]]]] = {}
    for title, splits in runs:
        origin = title.origin
        alike = (title.algorithm, origin.data, origin.protocol, origin.training, origin.network, origin.recipe)
        number = 0  # runs of one seed, or of none that is known, are no repetitions of each other
        while any(origin.seed in (None, other.origin.seed) for other, _ in groups.get((*alike, number), ())):
            number += 1
        groups.setdefault((*alike, number), []).append((title, splits))
    return sorted(map(_standing, groups.values()), key=lambda found: -found.measure)


def _standing(group: Sequence[tuple[RunTitle, Sequence[SplitFigures]]]) -> Standing:
    first, _ = group[0]
    parts = [{part.split: part for part in splits} for _, splits in group]
    validation = [_sum(part.get("val"), "negative") for part in parts]
    unknown = [_sum(part.get("test"), "unknown") for part in parts]
    lost = [Interval(a.estimate - b.estimate, *UNDEFINED[1:]) for a, b in zip(validation, unknown, strict=True)]
    return Standing(
        algorithm=first.algorithm,
        training=first.origin.training,
        network=" ".join(filter(None, (first.origin.network, first.origin.recipe))),
        seeds=tuple(title.origin.seed or 0 for title, _ in group),
        validation=_over_seeds(validation),
        negative=_over_seeds([_sum(part.get("test"), "negative") for part in parts]),
        unknown=_over_seeds(unknown),
        lost=_over_seeds(lost),
        accuracy=_over_seeds([part["test"].accuracy if "test" in part else UNDEFINED for part in parts]),
    )


def _sum(part: SplitFigures | None, kind: str) -> Interval:
    found = (against.ccr_sum for against in (part.against if part is not None else ()) if against.kind == kind)
    return next(found, UNDEFINED)


def _over_seeds(figures: Sequence[Interval]) -> Interval:
    return figures[0] if len(figures) == 1 else mean_interval([figure.estimate for figure in figures])


def ranking_table(standings: Sequence[Standing]) -> pd.DataFrame:
    """A row per standing, figures as text; what all have in common has no column."""
    rows = []
    for place, found in enumerate(standings, start=1):
        row: dict[str, Any] = {"rank": place}
        row |= {name: getattr(found, name) for name in ("algorithm", "training", "network")}
        row["seeds"] = ", ".join(map(str, found.seeds))
        row |= {title: _text(getattr(found, name), found.seeds) for name, title in FIGURES.items()}
        rows.append(row)
    table = pd.DataFrame(rows)
    same = [name for name in ("training", "network", "seeds") if table[name].nunique() == 1]
    return table.drop(columns=same)


def _text(figure: Interval, seeds: Sequence[int]) -> str:
    """Three decimals; the mean over seeds with half its interval, which is symmetric."""
    if math.isnan(figure.estimate):
        return "-"
    if math.isnan(figure.level):
        return f"{figure.estimate:.3f}"
    if len(seeds) > 1:
        return f"{figure.estimate:.3f} ± {figure.high - figure.estimate:.3f}"
    return f"{figure.estimate:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def ranking_document(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """The standings as plain mappings, the best first."""
    return [
        {name: getattr(found, name) for name in ("algorithm", "training", "network", "seeds")}
        | {name: interval_document(getattr(found, name)) for name in FIGURES}
        for found in standings
    ]
