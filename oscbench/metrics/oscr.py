"""The open-set classification rate curve and what is read from it: CCR at a false positive rate, areas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oscbench.labels import BoolArray, FloatArray, IntArray
from oscbench.metrics.predictions import (
    Scores,
    Weights,
    as_float,
    as_labels,
    check_samples,
    check_unknown_label,
    known_weights,
    require_finite,
)

FPRS: Final = (1e-3, 1e-2, 1e-1, 1.0)
"""False positive rates at which the field reports CCR; the search objective is the sum over them."""

CcrRule = Literal["inclusive", "published"]
"""How CCR is read at a rate, see ``ccr_at_fpr``."""

AreaRule = Literal["step", "trapezoid"]
"""How the area is taken, see ``auoscr``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OscrCurve:
    """CCR and FPR at every threshold that can change either; ``>=`` on both sides.

    Attributes:
        thresholds: (T,) ascending: minus infinity, then every distinct score of an unknown or of a correctly
            classified known sample, in the type of the scores.
        ccr: (T,) share of known samples classified correctly with a score at or above the threshold, falling.
        fpr: (T,) share of unknown samples with a score at or above the threshold, falling; NaN without any.
        at_unknown: (T,) which thresholds are the score of an unknown sample, the only ones the published code
            looks at.
        n_known: Number of known samples.
        n_unknown: Number of unknown samples (of the label asked for).
    """

    thresholds: FloatArray
    ccr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    at_unknown: BoolArray
    n_known: int
    n_unknown: int


def oscr_curve(labels: ArrayLike, scores: Scores, *, unknown_label: int, weights: Weights = "sample") -> OscrCurve:
    """The OSCR curve of known samples against those labelled ``unknown_label``; O(N K + N log N).

    A known sample is classified correctly when its highest score is its own class's; the highest score of a
    row is also what the threshold is put to. Equal scores pass a threshold together. Samples of the other kind
    are ignored.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        scores: (N, K), higher means more known, or predictions; compared in their own type, never rounded.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``.
        weights: ``class`` averages CCR over known classes instead of samples.

    Reference: Dhamija, Günther, Boult: Reducing Network Agnostophobia, NeurIPS 2018, section 4.

    >>> curve = oscr_curve([0, 1, -1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], unknown_label=-1)
    >>> curve.thresholds.tolist(), curve.ccr.tolist(), curve.fpr.tolist()
    ([-inf, 0.6, 0.7, 0.9], [1.0, 1.0, 0.5, 0.5], [1.0, 1.0, 1.0, 0.0])
    """
    check_unknown_label(unknown_label)
    labels, (predicted, highest) = check_samples(labels, scores)
    known = labels >= 0
    n_known = int(np.count_nonzero(known))
    correct = predicted == labels
    unknown_scores = np.sort(highest[labels == unknown_label])
    thresholds, n_reached = _thresholds(np.sort(highest[correct]), unknown_scores)
    at_threshold = np.bincount(np.searchsorted(thresholds, unknown_scores), minlength=len(thresholds))
    n_unknown_reached = _from_above(at_threshold)
    if weights == "sample":
        # Whatever reaches a threshold and is not unknown is correct: no second search.
        ccr = _share(n_reached - n_unknown_reached, n_known)
    else:
        credit = known_weights(labels[known], weights)[correct[known]]
        places = np.searchsorted(thresholds, highest[correct])
        ccr = _share(_from_above(np.bincount(places, credit, minlength=len(thresholds))), min(n_known, 1))
    return OscrCurve(
        thresholds=thresholds,
        ccr=ccr,
        fpr=_share(n_unknown_reached, len(unknown_scores)),
        at_unknown=at_threshold > 0,
        n_known=n_known,
        n_unknown=len(unknown_scores),
    )


def _thresholds(correct_scores: FloatArray, unknown_scores: FloatArray) -> tuple[FloatArray, IntArray]:
    """Minus infinity and the distinct scores, in their own type, and how many scores reach each; all ascending."""
    merged = np.concatenate((np.array([-np.inf], dtype=correct_scores.dtype), correct_scores, unknown_scores))
    merged.sort(kind="stable")  # merges the ascending runs instead of sorting anew
    first_of_equals = np.empty(len(merged), dtype=np.bool_)
    first_of_equals[0] = True
    np.not_equal(merged[1:], merged[:-1], out=first_of_equals[1:])
    positions = np.flatnonzero(first_of_equals)
    n_reached = len(merged) - positions
    n_reached[0] -= 1  # minus infinity is no score
    return merged[positions], n_reached


def _from_above(values: NDArray[Any]) -> NDArray[Any]:
    """Sum at and above each position."""
    total: NDArray[Any] = np.cumsum(values[::-1])[::-1]
    return total


def _share(amount: NDArray[Any], total: int) -> NDArray[np.float64]:
    """``amount / total``, NaN where there is nothing to share."""
    return amount / total if total else np.full(len(amount), np.nan)


def ccr_at_fpr(curve: OscrCurve, fpr: float, *, rule: CcrRule = "inclusive") -> float:
    """Correct classification rate at a false positive rate.

    ``inclusive``: the largest CCR whose FPR is at most ``fpr``; ``fpr=1`` is closed-set accuracy (threshold
    minus infinity). NaN when even the highest score that occurs lets in more, or there are no unknowns.

    ``published``: the rule of the published evaluation code, for digit-by-digit comparison: thresholds only
    at the scores of unknown samples, the largest FPR strictly below ``fpr``; NaN when there is none. It never
    gives more than ``inclusive``, and at ``fpr=1`` it can fall short of closed-set accuracy.
    """
    index = threshold_index(curve, fpr, rule=rule)
    return float("nan") if index is None else float(curve.ccr[index])


def ccr_of_many(
    labels: ArrayLike,
    predicted: IntArray,
    score: FloatArray,
    *,
    unknown_label: int,
    fprs: Sequence[float] = FPRS,
    rule: CcrRule = "inclusive",
) -> NDArray[np.float64]:
    """(S, F) ``ccr_at_fpr`` of S classifiers of the same samples, equal to the last bit to reading each one's curve.

    A rate allows m of the unknown samples, and a threshold lets in at most those if and only if it lies above the
    (m + 1)-th highest score of an unknown sample. That score is found by selection: no curve is sorted.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        predicted: (N, S) predicted classes.
        score: (N, S) scores of those classes.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``.
        fprs: F rates.
        rule: As in ``ccr_at_fpr``.
    """
    check_unknown_label(unknown_label)
    _check_rule(rule)
    scores = np.ascontiguousarray(as_float(score, "score", ndim=2).T)  # (S, N): one row per classifier
    labels = as_labels(labels, scores.shape[1])
    if np.shape(predicted) != np.shape(score):
        raise ValueError(f"predicted has shape {np.shape(predicted)}, score {np.shape(score)}")
    require_finite(np.max(np.abs(scores), axis=0, initial=0.0), "scores")
    known = labels >= 0
    correct_scores = np.where(np.asarray(predicted).T[:, known] == labels[known], scores[:, known], -np.inf)
    unknown_scores = scores[:, labels == unknown_label]
    n_unknown = unknown_scores.shape[1]
    table = np.full((len(scores), len(fprs)), np.nan)
    if n_unknown == 0 or not known.any():
        return table
    shares = np.arange(1, n_unknown + 1) / n_unknown
    allowed = [_n_allowed(shares, fpr, rule) for fpr in fprs]
    highest = unknown_scores.max(axis=1)
    places = {n_unknown - 1 - m for m in allowed if m < n_unknown}
    unknown_scores.partition(np.array(sorted(places), np.intp), axis=1)
    for f, m in enumerate(allowed):
        above = -np.inf if m == n_unknown else unknown_scores[:, n_unknown - 1 - m, None]
        if rule == "inclusive":
            reached = np.count_nonzero(correct_scores > above, axis=1)
            exists = (reached > 0) | (highest > np.ravel(above))
        else:
            lowest = np.min(unknown_scores, axis=1, where=unknown_scores > above, initial=np.inf)
            reached = np.count_nonzero(correct_scores >= lowest[:, None], axis=1)
            exists = lowest < np.inf
        table[exists, f] = reached[exists] / np.count_nonzero(known)
    return table


def _n_allowed(shares: NDArray[np.float64], fpr: float, rule: CcrRule) -> int:
    """How many of n unknown samples may reach a threshold; ``shares`` are 1/n … 1, rounded as a curve has them."""
    _check_rate(fpr)
    return int(np.searchsorted(shares, fpr, side="right" if rule == "inclusive" else "left"))


def ccr_column(fpr: float) -> str:
    """Name of the column that holds the CCR at ``fpr``.

    >>> [ccr_column(fpr) for fpr in (1e-3, 0.05, 0.025, 1)]
    ['ccr_1e-3', 'ccr_5e-2', 'ccr_2.5e-2', 'ccr_1']
    """
    mantissa, exponent = f"{fpr:e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"ccr_{mantissa}" + (f"e{int(exponent)}" if int(exponent) else "")


def threshold_index(curve: OscrCurve, fpr: float, *, rule: CcrRule = "inclusive") -> int | None:
    """Position in the curve from which ``ccr_at_fpr`` reads, or ``None`` where the rate cannot be reached."""
    _check_rate(fpr)
    _check_rule(rule)
    if curve.n_unknown == 0:
        return None
    # FPR falls along the curve: the first position that keeps the bound has the largest CCR and FPR.
    if rule == "inclusive":
        index = int(np.count_nonzero(curve.fpr > fpr))
        return index if index < len(curve.fpr) else None
    candidates = np.flatnonzero(curve.at_unknown & (curve.fpr < fpr))
    return int(candidates[0]) if len(candidates) else None


def _check_rate(fpr: float) -> None:
    if not 0.0 <= fpr <= 1.0:
        raise ValueError(f"a false positive rate lies within 0..1, got {fpr}")


def _check_rule(rule: str) -> None:
    if rule not in ("inclusive", "published"):
        raise ValueError(f"rule is 'inclusive' or 'published', got {rule!r}")


def ccr_fpr_sum(curve: OscrCurve, *, rule: CcrRule = "inclusive", fprs: Sequence[float] = FPRS) -> float:
    """Sum of the CCR at the given rates, rates that cannot be reached counting as 0: the search objective."""
    return float(np.nansum([ccr_at_fpr(curve, fpr, rule=rule) for fpr in fprs]))


def auoscr(curve: OscrCurve, *, rule: AreaRule) -> float:
    """Area under the OSCR curve, by a named rule since the left end of the curve is a matter of choice.

    ``step``: the integral of the inclusive CCR over FPR 0..1, rates that cannot be reached counting as 0. It
    is the chance that a known sample is classified correctly with a score above that of an unknown sample.
    ``trapezoid``: straight lines between the points, starting from (0, 0): an equal score counts one half
    (OpenAUC, Wang et al., NeurIPS 2022). NaN without known or without unknown samples.
    """
    if curve.n_unknown == 0:
        return float("nan")
    width = curve.fpr - np.append(curve.fpr[1:], 0.0)
    above = np.append(curve.ccr[1:], 0.0)  # CCR just above each threshold
    if rule == "step":
        return float(np.sum(width * above))
    if rule == "trapezoid":
        return float(np.sum(width * (curve.ccr + above)) / 2)
    raise ValueError(f"rule is 'step' or 'trapezoid', got {rule!r}")


def step_points(curve: OscrCurve) -> tuple[FloatArray, FloatArray]:
    """Each reachable FPR, ascending, with the largest CCR it allows: between two of them the CCR does not change."""
    first_of_equals = np.append(True, curve.fpr[1:] != curve.fpr[:-1])  # CCR falls along the curve
    return curve.fpr[first_of_equals][::-1], curve.ccr[first_of_equals][::-1]
