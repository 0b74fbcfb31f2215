"""Who can be told from the best: Friedman's test with Nemenyi's critical difference, and paired differences.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006). Methods are ranked within blocks
(a protocol, a training, a seed); two of them differ when their mean ranks are further apart than
``CD = q_α sqrt(k (k + 1) / (6 N))``, k methods in N blocks, q_α the Studentized range with infinitely many degrees of
freedom divided by √2. Where there are too few blocks, figures themselves are compared with those of the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from oscbench.labels import FloatArray, IntArray
from oscbench.metrics import CcrRule, ccr_of_many

ALPHA: Final = 0.05
"""How often differences may be seen where there are none."""

ENOUGH_BLOCKS: Final = 9
"""Blocks below which mean ranks are not compared: the design of the papers, three protocols and trainings, has nine."""

ENOUGH_SEEDS: Final = 3
"""Seeds below which the deviation between them says nothing, and the samples are drawn again instead."""

RESAMPLES: Final = 200
"""Of paired differences; their standard error needs no more (it is known to 5 %)."""


# --- ranks over blocks ------------------------------------------------------------------------------------------------


def block_ranks(values: FloatArray) -> NDArray[np.float64]:
    """(N, k) rank of each method within its block, 1 for the largest figure; equal ones share the mean of theirs.

    >>> block_ranks(np.array([[0.5, 0.9, 0.5]])).tolist()
    [[2.5, 1.0, 2.5]]
    """
    ranks: NDArray[np.float64] = stats.rankdata(-np.asarray(values, np.float64), axis=1)
    return ranks


def friedman(values: FloatArray) -> tuple[float, float]:
    """Friedman's χ² with k - 1 degrees of freedom, corrected for equal figures, and its p-value.

    Args:
        values: (N, k) figures of k methods in N blocks.
    """
    ranks = block_ranks(values)
    n, k = ranks.shape
    tied = sum(float(np.sum(counts**3 - counts)) for row in ranks for counts in [np.unique(row, return_counts=True)[1]])
    correction = 1 - tied / (n * k * (k * k - 1))
    if correction <= 0:  # all methods are alike in every block
        return 0.0, 1.0
    spread = float(np.sum((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2))
    statistic = 12 * spread / (n * k * (k + 1)) / correction
    return statistic, float(stats.chi2.sf(statistic, k - 1))


def critical_difference(n_methods: int, n_blocks: int, alpha: float = ALPHA) -> float:
    """Nemenyi's: mean ranks that are further apart differ.

    >>> round(critical_difference(5, 9), 3)
    2.033
    """
    q = float(stats.studentized_range.ppf(1 - alpha, n_methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_blocks))


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTest:
    """Methods compared over blocks.

    Attributes:
        mean_ranks: (k,).
        statistic: Friedman's.
        p: Its p-value.
        difference: The critical one; infinite where Friedman's test sees no difference at all.
        n_blocks: N.
    """

    mean_ranks: NDArray[np.float64]
    statistic: float
    p: float
    difference: float
    n_blocks: int

    @classmethod
    def of(cls, values: FloatArray) -> RankTest:
        """The test of (N, k) figures; what is NaN was not reached and ranks lowest."""
        reached = np.where(np.isnan(values), -np.inf, values)
        statistic, p = friedman(reached)
        return cls(
            mean_ranks=block_ranks(reached).mean(axis=0),
            statistic=statistic,
            p=p,
            difference=critical_difference(values.shape[1], len(values)) if p < ALPHA else math.inf,
            n_blocks=len(values),
        )

    @property
    def told_from_best(self) -> NDArray[np.bool_]:
        """(k,) whether a method can be told from the one with the best mean rank."""
        told: NDArray[np.bool_] = self.mean_ranks - self.mean_ranks.min() > self.difference
        return told

    @property
    def letters(self) -> list[str]:
        """For each method the groups it belongs to; within a group nobody can be told from anybody.

        >>> values = np.array([[3.0, 2.0, 1.0]] * 20)
        >>> RankTest.of(values).letters
        ['a', 'b', 'c']
        """
        order = np.argsort(self.mean_ranks, kind="stable")
        groups: list[set[int]] = []
        for start, first in enumerate(order):
            near = self.mean_ranks[order[start:]] - self.mean_ranks[first] <= self.difference
            group = set(order[start:][near].tolist())
            if not any(group <= larger for larger in groups):
                groups.append(group)
        names = [chr(ord("a") + place) if place < 26 else f"({place + 1})" for place in range(len(groups))]
        return [
            "".join(name for name, group in zip(names, groups, strict=True) if method in group)
            for method in range(len(order))
        ]


# --- differences to the best ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Differences:
    """What each method lacks of the best, with half the width of simultaneous intervals (Bonferroni).

    Attributes:
        best: Its place.
        lacking: (k,); 0 for the best.
        half: (k,); NaN for the best.
    """

    best: int
    lacking: NDArray[np.float64]
    half: NDArray[np.float64]

    @property
    def told_from_best(self) -> NDArray[np.bool_]:
        """(k,) whether the interval of a difference leaves out 0."""
        told: NDArray[np.bool_] = self.lacking > self.half
        return told


def differences_over_seeds(values: FloatArray, alpha: float = ALPHA) -> Differences:
    """Student's intervals of the paired differences of (seeds, k) figures."""
    best = int(np.argmax(values.mean(axis=0)))
    lacking = values[:, [best]] - values
    n = len(values)
    quantile = float(stats.t.ppf(1 - alpha / (2 * max(values.shape[1] - 1, 1)), n - 1))
    return _differences(best, lacking.mean(axis=0), quantile * lacking.std(axis=0, ddof=1) / math.sqrt(n))


def differences_over_resamples(figures: FloatArray, resampled: FloatArray, alpha: float = ALPHA) -> Differences:
    """Normal intervals of the differences of (k,) figures by their deviation over (n, k) paired resamples."""
    best = int(np.argmax(figures))
    quantile = float(stats.norm.ppf(1 - alpha / (2 * max(len(figures) - 1, 1))))
    deviation = (resampled[:, [best]] - resampled).std(axis=0, ddof=1)
    return _differences(best, figures[best] - figures, quantile * deviation)


def _differences(best: int, lacking: FloatArray, half: FloatArray) -> Differences:
    without_best = np.where(np.arange(len(half)) == best, np.nan, half)
    return Differences(best=best, lacking=lacking.astype(np.float64), half=without_best.astype(np.float64))


def resampled_sums(
    labels: IntArray,
    predicted: Sequence[IntArray],
    scores: Sequence[FloatArray],
    *,
    unknown_label: int,
    rule: CcrRule = "inclusive",
    n: int = RESAMPLES,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(n, S) sum of CCR of S systems of the same samples, all read on the same resamples.

    Known and unknown samples are drawn separately, each as many as there are.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        predicted: S times (N,) predicted classes.
        scores: S times (N,) scores of those.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``.
        rule: How CCR is read.
        n: Number of resamples.
        seed: Of the draws.
    """
    classes, values = np.column_stack(predicted), np.column_stack(scores)
    known, unknown = np.flatnonzero(labels >= 0), np.flatnonzero(labels == unknown_label)
    random = np.random.default_rng(seed)
    sums = np.empty((n, len(scores)))
    for row in sums:
        drawn = np.concatenate((random.choice(known, len(known)), random.choice(unknown, len(unknown))))
        rates = ccr_of_many(labels[drawn], classes[drawn], values[drawn], unknown_label=unknown_label, rule=rule)
        row[:] = np.nansum(rates, axis=1)
    return sums
