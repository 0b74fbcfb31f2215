"""OpenMax's revision of the largest logits, for one setting or for a whole grid of them in one pass.

Only the top alpha logits of a query change, so a setting costs alpha exponentials per query however many classes there
are: the unrevised logits are sorted and summed once. Both entry points run the same arithmetic in the same order and
therefore agree to the last bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from oscbench.types import FloatArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class TailFits(NamedTuple):
    """Weibull fits of the distances to each class's mean, all (F, K): F fits of K classes."""

    shape: Float64
    log_scale: Float64
    shift: Float64
    """kappa times the smallest distance of the tail: the fit sees x = 1 + distance - shift."""


class RankedLogits(NamedTuple):
    """The logits of each query in falling order, all (Q, K)."""

    order: Int64
    """Column of each rank; equal logits keep the order of their columns."""
    value: Float64
    rest: Float64
    """Sum over the lower ranks j of exp(value_j - value_i): what follows rank i, relative to it."""


def rank_logits(logits: FloatArray) -> RankedLogits:
    """Sorts the logits of each query and sums the exponentials that follow each rank, smallest first."""
    wide = np.ascontiguousarray(logits, np.float64)
    order = np.argsort(-wide, axis=1, kind="stable")
    value = np.take_along_axis(wide, order, axis=1)
    step = np.exp(np.diff(value, axis=1))  # (Q, K - 1), each at most 1
    rest = np.zeros_like(value)
    for rank in range(value.shape[1] - 2, -1, -1):
        rest[:, rank] = (1.0 + rest[:, rank + 1]) * step[:, rank]
    return RankedLogits(order.astype(np.int64), value, rest)


def score_setting(
    ranked: RankedLogits, distances: Float64, fits: TailFits, *, alpha: int, offset: int, log: bool
) -> Float64:
    """(Q, K) probabilities, or their logarithms, for one setting whose fits have F = 1.

    Args:
        ranked: Logits of the queries.
        distances: (Q, K) from each query to each class's mean.
        fits: One fit per class.
        alpha: How many of the largest logits are revised, at most K.
        offset: 0 for weights (alpha - i) / alpha, 1 for (alpha + 1 - i) / alpha.
        log: Logarithms instead of probabilities.
    """
    scores = np.empty_like(ranked.value)
    _score_setting(*ranked, distances, *fits, alpha, offset, log, scores)
    return scores


def best_of_grid(
    ranked: RankedLogits,
    distances: Float64,
    fits: TailFits,
    fit_idx: Int64,
    alphas: Int64,
    offsets: Int64,
    *,
    log: bool,
) -> tuple[NDArray[np.int32], Float64]:
    """Best column and its score, both (Q, S); setting s uses fit ``fit_idx[s]``, ``alphas[s]`` and ``offsets[s]``.

    Equal scores go to the lowest column, as in ``argmax`` over what ``score_setting`` returns.
    """
    by_fit = np.argsort(fit_idx, kind="stable")  # settings that share a fit come one after the other
    shape = (len(ranked.value), len(fit_idx))
    best, score = np.empty(shape, np.int32), np.empty(shape)
    _best_of_grid(*ranked, distances, *fits, fit_idx, alphas, offsets, by_fit, log, best, score)
    return best, score


@njit(cache=True)  # type: ignore[untyped-decorator]
def _knownness(distance: float, shape: float, log_scale: float, shift: float) -> float:
    """exp(-(x / scale)^shape) with x = max(0, 1 + distance - shift)."""
    x = 1.0 + distance - shift
    return math.exp(-math.exp(shape * (math.log(x) - log_scale))) if x > 0.0 else 1.0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _revise(
    value: Float64, rest: Float64, known: Float64, alpha: int, offset: int, revised: Float64
) -> tuple[float, float]:
    """Fills ``revised[:alpha]``; returns the largest of all logits and the sum of exp(l - largest) over the others.

    The unknown logit is the sum of what was taken from the others. Leaving the largest one's own 1 out of the sum
    keeps probabilities near 1 apart in the logarithm.
    """
    unknown = 0.0
    for i in range(alpha):
        revised[i] = value[i] * (1.0 - (alpha + offset - (i + 1)) / alpha * (1.0 - known[i]))
        unknown += value[i] - revised[i]
    largest, which = unknown, -1
    for i in range(alpha):
        if revised[i] > largest:
            largest, which = revised[i], i
    if alpha < len(value) and value[alpha] > largest:
        largest, which = value[alpha], alpha
    others = 0.0 if which == -1 else math.exp(unknown - largest)
    for i in range(alpha):
        if i != which:
            others += math.exp(revised[i] - largest)
    if alpha < len(value):
        others += rest[alpha] if which == alpha else (1.0 + rest[alpha]) * math.exp(value[alpha] - largest)
    return largest, others


@njit(cache=True)  # type: ignore[untyped-decorator]
def _score(logit: float, largest: float, others: float, log: bool) -> float:
    return logit - largest - math.log1p(others) if log else math.exp(logit - largest) / (1.0 + others)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _score_setting(  # type: ignore[no-untyped-def]
    order, value, rest, distances, shape, log_scale, shift, alpha, offset, log, scores
) -> None:
    known, revised = np.empty(alpha), np.empty(alpha)
    for q in range(value.shape[0]):
        for i in range(alpha):
            k = order[q, i]
            known[i] = _knownness(distances[q, k], shape[0, k], log_scale[0, k], shift[0, k])
        largest, others = _revise(value[q], rest[q], known, alpha, offset, revised)
        for i in range(value.shape[1]):
            logit = revised[i] if i < alpha else value[q, i]
            scores[q, order[q, i]] = _score(logit, largest, others, log)


@njit(cache=True)
def _best(order, value, revised, alpha, largest, others, log):  # type: ignore[no-untyped-def]
    """Best column and its score; the unrevised logits fall, so the first that scores lower ends the search."""
    best, best_score = order[0], _score(revised[0], largest, others, log)
    for i in range(1, len(value)):
        score = _score(revised[i] if i < alpha else value[i], largest, others, log)
        if score > best_score or (score == best_score and order[i] < best):
            best, best_score = order[i], score
        elif i >= alpha and score < best_score:
            break
    return best, best_score


@njit(cache=True)  # type: ignore[untyped-decorator]
def _best_of_grid(  # type: ignore[no-untyped-def]
    order, value, rest, distances, shape, log_scale, shift, fit_idx, alphas, offsets, by_fit, log, best, score
) -> None:
    most = alphas.max()
    known, revised = np.empty(most), np.empty(most)
    for q in range(value.shape[0]):
        fitted = -1
        for s in by_fit:
            f = fit_idx[s]
            if f != fitted:
                fitted = f
                for i in range(most):
                    k = order[q, i]
                    known[i] = _knownness(distances[q, k], shape[f, k], log_scale[f, k], shift[f, k])
            alpha = alphas[s]
            largest, others = _revise(value[q], rest[q], known, alpha, offsets[s], revised)
            best[q, s], score[q, s] = _best(order[q], value[q], revised, alpha, largest, others, log)
