"""Percentile intervals by resampling: how far a figure would move on another test set of the same size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oscbench.labels import IntArray
from oscbench.metrics.oscr import FPRS, CcrRule, ccr_at_fpr, ccr_fpr_sum, oscr_curve
from oscbench.metrics.predictions import Predictions, Scores, Weights, check_samples, check_unknown_label, known_weights
from oscbench.metrics.ranking import auroc, closed_set_accuracy

BootstrapMetric = Literal["ccr", "ccr_sum", "auroc", "accuracy"]

_BLOCK_CELLS: Final = 1 << 21  # resamples x distinct scores at a time: 16 MB an array


class Interval(NamedTuple):
    """A figure and where its resamples lie.

    Attributes:
        estimate: The figure on the samples themselves.
        low: Lower end; NaN when the rate could not be reached in so many resamples that the end falls among them.
        high: Upper end, likewise.
        level: Share of the resamples between the ends.
        unreachable: Share of the resamples in which the figure is not defined.
    """

    estimate: float
    low: float
    high: float
    level: float
    unreachable: float


def bootstrap(
    metric: BootstrapMetric,
    labels: ArrayLike,
    scores: Scores,
    *,
    n: int = 1000,
    seed: int = 0,
    unknown_label: int | None = None,
    fprs: Sequence[float] = FPRS,
    rule: CcrRule = "inclusive",
    weights: Weights = "sample",
    level: float = 0.95,
) -> tuple[Interval, ...]:
    """Percentile bootstrap intervals, one per rate for ``ccr``, else one.

    Known and unknown samples are drawn separately, each as many as there are; with ``weights="class"`` the known ones
    also by class. The ends are order statistics of the resamples, a rate that cannot be reached ranking lowest.

    Args:
        metric: ``ccr`` (at each of ``fprs``), ``ccr_sum`` (over ``fprs``), ``auroc`` or ``accuracy``.
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        scores: (N, K), higher means more known, or predictions.
        n: Number of resamples.
        seed: Decides the draws, whatever the block size.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``; not needed for ``accuracy``.
        fprs: False positive rates of ``ccr``.
        rule: How CCR is read, see ``ccr_at_fpr``.
        weights: ``class`` gives each known class the same weight.
        level: Share of the resamples between the ends.
    """
    if metric not in get_args(BootstrapMetric):
        raise ValueError(f"metric is 'ccr', 'ccr_sum', 'auroc' or 'accuracy', got {metric!r}")
    if n < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"bootstrap needs n >= 1 and 0 < level < 1, got n={n}, level={level}")
    sample = _Sample.of(labels, scores, unknown_label if metric != "accuracy" else None, weights)
    if metric in ("ccr", "ccr_sum"):
        curve = oscr_curve(sample.labels, sample.found, unknown_label=sample.unknown_label, weights=weights)
        estimates = [ccr_at_fpr(curve, fpr, rule=rule) for fpr in fprs]
        values = _resampled_ccr(sample, n, seed, fprs, rule)
        if metric == "ccr_sum":
            there = np.any(sample.labels >= 0)  # without known samples there is no sum, not even 0
            estimates = [ccr_fpr_sum(curve, rule=rule, fprs=fprs) if there else np.nan]
            values = np.nansum(values, axis=1, keepdims=True) if there else values[:, :1]
    elif metric == "auroc":
        estimates = [auroc(sample.labels, sample.found, unknown_label=sample.unknown_label, weights=weights)]
        values = _resampled_auroc(sample, n, seed)
    else:
        estimates = [closed_set_accuracy(sample.labels, sample.found, weights=weights)]
        values = _resampled_accuracy(sample, n, seed)
    return tuple(_interval(estimate, column, level) for estimate, column in zip(estimates, values.T, strict=True))


def _interval(estimate: float, values: NDArray[np.float64], level: float) -> Interval:
    undefined = np.isnan(values)
    ranked = np.where(undefined, -np.inf, values)
    ends = np.quantile(ranked, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    low, high = (float(end) if np.isfinite(end) else float("nan") for end in ends)
    return Interval(estimate, low, high, level, float(undefined.mean()))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sample:
    """The samples that take part, with the place of each score among the distinct scores, ascending."""

    labels: IntArray
    found: Predictions
    unknown_label: int
    place: IntArray
    n_places: int
    known: IntArray
    unknown: IntArray
    weights: Weights

    @classmethod
    def of(cls, labels: ArrayLike, scores: Scores, unknown_label: int | None, weights: Weights) -> _Sample:
        labels, found = check_samples(labels, scores)
        if unknown_label is None:
            unknown = np.empty(0, dtype=np.intp)
        else:
            check_unknown_label(unknown_label)
            unknown = np.flatnonzero(labels == unknown_label)
        distinct, place = np.unique(found.score, return_inverse=True)
        known = np.flatnonzero(labels >= 0)
        return cls(
            labels=labels,
            found=found,
            unknown_label=unknown_label if unknown_label is not None else 0,
            place=place,
            n_places=len(distinct),
            # by class, so that a class is a range; the order of known samples has no other meaning
            known=known[np.argsort(labels[known], kind="stable")],
            unknown=unknown,
            weights=weights,
        )

    def blocks(self, n: int, seed: int) -> Iterator[tuple[slice, IntArray, IntArray]]:
        """Known and unknown rows drawn for a range of resamples: (resamples, sample rows)."""
        # A generator for each kind, so that the draws do not depend on the number of resamples in a block.
        for_known, for_unknown = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
        first, size = self._strata()
        step = max(1, _BLOCK_CELLS // max(1, self.n_places, len(self.known)))
        for start in range(0, n, step):
            count = min(step, n - start)
            drawn = first + for_known.integers(0, size, size=(count, len(self.known)))
            others = for_unknown.integers(0, max(1, len(self.unknown)), size=(count, len(self.unknown)))
            yield slice(start, start + count), self.known[drawn], self.unknown[others]

    def _strata(self) -> tuple[Any, Any]:
        """First position and size of the range from which each known sample is drawn again."""
        if self.weights == "sample":
            return 0, max(1, len(self.known))
        _, first, of_row, size = np.unique(
            self.labels[self.known], return_index=True, return_inverse=True, return_counts=True
        )
        return first[of_row], size[of_row]

    def row_weights(self) -> NDArray[np.float64]:
        """(N,) weight of each known sample in the mean over known samples; 0 for others."""
        all_rows = np.zeros(len(self.labels))
        all_rows[self.known] = known_weights(self.labels[self.known], self.weights)
        return all_rows

    def histogram(self, rows: IntArray, weights: NDArray[np.float64] | None = None) -> NDArray[Any]:
        """(resamples, places): how many of the drawn rows, or what weight of them, sit at each distinct score."""
        cells = self.place[rows] + np.arange(len(rows))[:, None] * self.n_places
        row_weights = None if weights is None else weights[rows].ravel()
        counted = np.bincount(cells.ravel(), row_weights, minlength=len(rows) * self.n_places)
        return counted.reshape(len(rows), self.n_places)


def _from_above(histogram: NDArray[Any]) -> NDArray[Any]:
    """Sum at or above each place."""
    total: NDArray[Any] = np.cumsum(histogram[:, ::-1], axis=1)[:, ::-1]
    return total


def _resampled_ccr(sample: _Sample, n: int, seed: int, fprs: Sequence[float], rule: CcrRule) -> NDArray[np.float64]:
    """(n, rates) CCR of each resample."""
    values = np.full((n, len(fprs)), np.nan)
    n_unknown = len(sample.unknown)
    if n_unknown == 0 or len(sample.known) == 0:
        return values
    by_class = sample.weights == "class"
    correct = (sample.found.label == sample.labels).astype(np.float64)
    credit = correct * sample.row_weights() if by_class else correct
    divisor = 1 if by_class else len(sample.known)
    rates = np.arange(n_unknown + 1) / n_unknown
    for block, known, unknown in sample.blocks(n, seed):
        reached = _from_above(sample.histogram(known, credit))
        let_in = _from_above(sample.histogram(unknown))
        for column, fpr in enumerate(fprs):
            index, reachable = _threshold_places(let_in, reached, rates, fpr, rule)
            found = reached[np.arange(len(index)), index] / divisor
            values[block, column] = np.where(reachable, found, np.nan)
    return values


def _threshold_places(
    let_in: NDArray[Any], reached: NDArray[Any], rates: NDArray[np.float64], fpr: float, rule: CcrRule
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Place of the threshold that ``threshold_index`` would take in each resample, and whether there is one.

    A place at which no sample was drawn acts like the next one above that has some; only above all drawn scores
    there is nothing to stand for, and such a threshold is not allowed.
    """
    n_resamples, n_places = let_in.shape
    rows = np.arange(n_resamples)
    allowed = np.count_nonzero(rates <= fpr if rule == "inclusive" else rates < fpr) - 1
    index = np.count_nonzero(let_in > allowed, axis=1)
    inside = index < n_places
    index = np.minimum(index, n_places - 1)
    if rule == "inclusive":
        return index, inside & (let_in[rows, index] + reached[rows, index] > 0)
    last_same = np.count_nonzero(let_in >= let_in[rows, index][:, None], axis=1) - 1
    return last_same, inside & (let_in[rows, index] > 0)


def _resampled_auroc(sample: _Sample, n: int, seed: int) -> NDArray[np.float64]:
    values = np.full((n, 1), np.nan)
    n_known, n_unknown = len(sample.known), len(sample.unknown)
    if n_known == 0 or n_unknown == 0:
        return values
    weights = sample.row_weights() if sample.weights == "class" else None
    scale = 2 * n_unknown * (1 if weights is not None else n_known)
    for block, known, unknown in sample.blocks(n, seed):
        others = sample.histogram(unknown)
        wins = 2 * np.cumsum(others, axis=1) - others  # twice the unknowns below plus those equal
        values[block, 0] = np.einsum("ij,ij->i", sample.histogram(known, weights), wins) / scale
    return values


def _resampled_accuracy(sample: _Sample, n: int, seed: int) -> NDArray[np.float64]:
    values = np.full((n, 1), np.nan)
    if len(sample.known) == 0:
        return values
    correct = sample.found.label == sample.labels
    weights = sample.row_weights()
    for block, known, _ in sample.blocks(n, seed):
        if sample.weights == "class":
            values[block, 0] = np.sum(correct[known] * weights[known], axis=1)
        else:
            values[block, 0] = correct[known].mean(axis=1)
    return values
