"""OpenMax's revision of the largest logits, for one setting or for a whole grid of them in one pass.

Only the top alpha logits of a query change, so a setting costs alpha exponentials per query however many classes there
are: the unrevised logits are sorted and summed once. Both entry points run the same arithmetic in the same order and
therefore agree to the last bit. The scores as published are a path of their own, by the very operations, and in the
precision, of the code behind the published tables.
"""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from oscbench.labels import FloatArray
from oscbench.numerics.threads import usable_cpus

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BLOCK: Final = 128
"""Queries that a thread takes at a time."""

SINGLE_BLOCK: Final = 4096
"""Queries whose published scores are computed at a time, to bound the memory."""


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


def mean_distances(embedding: FloatArray, means: Float64) -> Float64:
    """(Q, K) cosine distances of the rows to unit vectors; NaN for a row of zeros, which has no direction.

    Every distance is summed by itself, so it has the same bits whichever rows are asked for together.
    """
    distances = np.empty((len(embedding), len(means)))
    compiled = np.float32 if embedding.dtype == np.float32 else np.float64
    _mean_distances(np.ascontiguousarray(embedding, compiled), means, distances)
    return distances


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
        alpha: How many of the largest logits are revised, at most K; more are refused.
        offset: 0 for weights (alpha - i) / alpha, 1 for (alpha + 1 - i) / alpha.
        log: Logarithms instead of probabilities.
    """
    _check_alphas(alpha, ranked.value.shape[1])
    scores = np.empty_like(ranked.value)
    _score_setting(*ranked, distances, *fits, alpha, _weights(alpha, offset)[0], log, scores)
    return scores


def best_of_grid(
    logits: FloatArray,
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
    _check_alphas(alphas, logits.shape[1])
    distinct, position = _distinct_settings(fit_idx, alphas, offsets)
    weights = _weights(distinct[:, 1], distinct[:, 2])
    shape = (len(distinct), len(logits))  # a setting's queries side by side, as the metrics read them
    best, score = np.empty(shape, np.int32), np.empty(shape)

    def rows(part: slice) -> None:
        ranked = rank_logits(logits[part])
        _best_of_grid(*ranked, distances[part], *fits, distinct, weights, log, best[:, part], score[:, part])

    _on_blocks(rows, len(logits))
    return best[position].T, score[position].T


def published_scores(
    logits: FloatArray, distances: Float64, fits: TailFits, *, alpha: int, offset: int
) -> NDArray[np.float32]:
    """(Q, K) probabilities of one setting whose fits have F = 1, as the code behind the published tables has them.

    That code computes knownness in double precision, and from the weights on in single precision. Arguments as for
    ``score_setting``.
    """
    return _single_scores(_rank_single(logits), _knownness_of(distances, fits, 0), alpha, offset)


def best_of_published_grid(
    logits: FloatArray, distances: Float64, fits: TailFits, fit_idx: Int64, alphas: Int64, offsets: Int64
) -> tuple[NDArray[np.int32], Float64]:
    """``best_of_grid`` on ``published_scores``, equal to them to the last bit."""
    distinct, position = _distinct_settings(fit_idx, alphas, offsets)
    best, score = np.empty((len(distinct), len(logits)), np.int32), np.empty((len(distinct), len(logits)))
    for first in range(0, len(logits), SINGLE_BLOCK):
        part = slice(first, first + SINGLE_BLOCK)
        ranked, fitted = _rank_single(logits[part]), -1
        for s, (f, alpha, offset) in enumerate(distinct):
            if f != fitted:
                fitted, known = f, _knownness_of(distances[part], fits, f)
            probabilities = _single_scores(ranked, known, alpha, offset)
            best[s, part] = np.argmax(probabilities, axis=1)
            score[s, part] = np.max(probabilities, axis=1)
    return best[position].T, score[position].T


def _rank_single(logits: FloatArray) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of each query in falling order, and the column of each rank."""
    value, order = torch.sort(torch.from_numpy(np.array(logits, np.float32)), descending=True, stable=True, dim=1)
    return value, order


def _single_scores(
    ranked: tuple[torch.Tensor, torch.Tensor], known: Float64, alpha: int, offset: int
) -> NDArray[np.float32]:
    """The steps of the published code in its order and its types: each product and sum is rounded where it rounds."""
    value, order = ranked
    _check_alphas(alpha, value.shape[1])
    rank = torch.arange(1, int(alpha) + 1, dtype=torch.float32)
    share = (int(alpha) + int(offset) - rank) / int(alpha)
    kept = torch.ones_like(value)
    kept[:, :alpha] = (1 - share * torch.gather(torch.from_numpy(1.0 - known), 1, order[:, :alpha])).float()
    unknown = torch.sum(value * (1 - kept), dim=1)
    revised = torch.scatter(torch.empty_like(value), 1, order, value * kept)
    probabilities = torch.softmax(torch.cat([unknown[:, None], revised], dim=1), dim=1)
    return np.asarray(probabilities[:, 1:].numpy())


def _knownness_of(distances: Float64, fits: TailFits, f: int) -> Float64:
    """(Q, K) knownness by one row of the fits."""
    known = np.empty_like(distances)
    _knownness_matrix(distances, fits.shape[f], fits.log_scale[f], fits.shift[f], known)
    return known


def _check_alphas(alphas: Int64 | int, n_classes: int) -> None:
    """The kernels read the first alpha ranks without looking whether there are so many."""
    most, least = int(np.max(alphas)), int(np.min(alphas))
    if most > n_classes or least < 1:
        raise ValueError(f"alpha must be within 1..{n_classes}, the number of classes, got {least}..{most}")


def _distinct_settings(fit_idx: Int64, alphas: Int64, offsets: Int64) -> tuple[Int64, Int64]:
    """The settings that differ, and which of them each one is.

    Clipped tails and alphas make settings equal; sorted, those that share a fit come one after the other.
    """
    return np.unique(np.stack([fit_idx, alphas, offsets], axis=1), axis=0, return_inverse=True)


def _weights(alphas: Int64 | int, offsets: Int64 | int) -> Float64:
    """(S, largest alpha) share of what is missing in knownness that each rank loses; ranks from alpha on lose none."""
    alpha, offset = np.atleast_1d(alphas)[:, None], np.atleast_1d(offsets)[:, None]
    rank = np.arange(1, alpha.max() + 1)
    return np.where(rank <= alpha, (alpha + offset - rank) / alpha, 0.0)


def _on_blocks(function: Callable[[slice], None], n: int) -> None:
    """Calls the function for blocks of ``n`` rows on all CPUs.

    The calling thread begins at once and each takes the next block when it has done one: a grid takes a few
    milliseconds, and so can a thread to start.
    """
    blocks = iter([slice(first, first + BLOCK) for first in range(0, n, BLOCK)])  # one step of it is atomic

    def work() -> None:
        for block in blocks:
            function(block)

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work) for _ in range(usable_cpus() - 1)]
        work()
        for other in others:
            other.result()


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"}, cache=True)
def _mean_distances(embedding: Any, means: Any, distances: Any) -> None:
    for q in range(embedding.shape[0]):
        squares = 0.0
        for d in range(embedding.shape[1]):
            squares += np.float64(embedding[q, d]) * np.float64(embedding[q, d])
        for k in range(means.shape[0]):
            product = 0.0
            for d in range(embedding.shape[1]):
                product += np.float64(embedding[q, d]) * means[k, d]
            distances[q, k] = 1.0 - product / math.sqrt(squares)


@njit(nogil=True, error_model="numpy", forceinline=True, cache=True)
def _knownness(distance: float, shape: float, log_scale: float, shift: float) -> float:
    """exp(-e^g) with g = shape (ln x - ln scale), x = 1 + distance - shift; 1 where x is not positive."""
    x = 1.0 + distance - shift
    if x <= 0.0:
        return 1.0
    g = shape * (math.log(x) - log_scale)
    if g < -38.0 or g > 7.0:  # here it rounds to exactly 1 or 0
        return 1.0 if g < 0.0 else 0.0
    return math.exp(-math.exp(g))


@njit(nogil=True, error_model="numpy", cache=True)
def _knownness_matrix(distances: Any, shape: Any, log_scale: Any, shift: Any, known: Any) -> None:
    for q in range(distances.shape[0]):
        for k in range(distances.shape[1]):
            known[q, k] = _knownness(distances[q, k], shape[k], log_scale[k], shift[k])


@njit(nogil=True, error_model="numpy", forceinline=True, cache=True)
def _revise(
    value: Float64, rest: Float64, known: Float64, alpha: int, weights: Float64, revised: Float64, power: Float64
) -> tuple[float, float]:
    """Revises the top logits of one query into ``revised[:alpha]``, with exp(revised - largest) in ``power``.

    The unknown logit is the sum of what was taken from the others. Returns the largest of all 1 + K logits and the
    sum of exp(l - largest) over all but that one: without its 1, probabilities near 1 stay apart in the logarithm.
    """
    unknown, largest, which = 0.0, -np.inf, -1
    for i in range(alpha):
        revised[i] = value[i] * (1.0 - weights[i] * (1.0 - known[i]))
        unknown += value[i] - revised[i]
        if revised[i] > largest:
            largest, which = revised[i], i
    if unknown >= largest:
        largest, which = unknown, -1
    if alpha < len(value) and value[alpha] > largest:
        largest, which = value[alpha], alpha
    others = 0.0 if which == -1 else math.exp(unknown - largest)
    for i in range(alpha):
        if i == which:
            power[i] = 1.0
        else:
            power[i] = math.exp(revised[i] - largest)
            others += power[i]
    if alpha < len(value):
        others += rest[alpha] if which == alpha else (1.0 + rest[alpha]) * math.exp(value[alpha] - largest)
    return largest, others


@njit(nogil=True, error_model="numpy", forceinline=True, cache=True)
def _scores_of(
    order: Any, value: Any, revised: Any, power: Any, alpha: Any, largest: Any, others: Any, log: Any, scores: Any
) -> None:
    """Writes the score of every column."""
    norm = math.log1p(others) if log else 1.0 + others
    for i in range(len(value)):
        if log:
            score = (revised[i] if i < alpha else value[i]) - largest - norm
        else:
            score = (power[i] if i < alpha else math.exp(value[i] - largest)) / norm
        scores[order[i]] = score


@njit(nogil=True, error_model="numpy", forceinline=True, cache=True)
def _best_of(
    order: Any, value: Any, revised: Any, power: Any, alpha: Any, largest: Any, others: Any, log: Any
) -> tuple[int, float]:
    """Best column and its score; the unrevised logits fall, so the first that scores lower ends the search."""
    norm = math.log1p(others) if log else 1.0 + others
    best, best_score = -1, -np.inf
    for i in range(alpha):
        score = revised[i] - largest - norm if log else power[i] / norm
        if score > best_score or (score == best_score and order[i] < best):
            best, best_score = order[i], score
    for i in range(alpha, len(value)):
        score = value[i] - largest - norm if log else math.exp(value[i] - largest) / norm
        if score > best_score or (score == best_score and order[i] < best):
            best, best_score = order[i], score
        elif score < best_score:
            break
    return best, best_score


@njit(nogil=True, error_model="numpy", cache=True)
def _score_setting(
    order: Any,
    value: Any,
    rest: Any,
    distances: Any,
    shape: Any,
    log_scale: Any,
    shift: Any,
    alpha: Any,
    weights: Any,
    log: Any,
    scores: Any,
) -> None:
    known, revised, power = np.empty(alpha), np.empty(alpha), np.empty(alpha)
    for q in range(value.shape[0]):
        for i in range(alpha):
            k = order[q, i]
            known[i] = _knownness(distances[q, k], shape[0, k], log_scale[0, k], shift[0, k])
        largest, others = _revise(value[q], rest[q], known, alpha, weights, revised, power)
        _scores_of(order[q], value[q], revised, power, alpha, largest, others, log, scores[q])


@njit(nogil=True, error_model="numpy", cache=True)
def _best_of_grid(
    order: Any,
    value: Any,
    rest: Any,
    distances: Any,
    shape: Any,
    log_scale: Any,
    shift: Any,
    settings: Any,
    weights: Any,
    log: Any,
    best: Any,
    score: Any,
) -> None:
    most = settings[:, 1].max()
    known, revised, power = np.empty(most), np.empty(most), np.empty(most)
    for q in range(value.shape[0]):
        columns, logits, following = order[q], value[q], rest[q]
        fitted = -1
        for s in range(len(settings)):
            f, alpha, _ = settings[s]
            if f != fitted:
                fitted = f
                for i in range(most):
                    k = columns[i]
                    known[i] = _knownness(distances[q, k], shape[f, k], log_scale[f, k], shift[f, k])
            largest, others = _revise(logits, following, known, alpha, weights[s], revised, power)
            best[s, q], score[s, q] = _best_of(columns, logits, revised, power, alpha, largest, others, log)
