"""The inner loops of EVM on the CPU, and the fits that OpenMax shares, compiled by numba and cached on disk.

Everything here is plain loops over contiguous arrays which the compiler turns into vector code. Two things stand in its
way and are therefore written out: ``math.log`` and ``math.exp`` stay scalar calls (4 to 9 ns each), so both are short
polynomials after an exponent split; and a running maximum is only vectorised as a select with fast-math flags.

All of it is in one file because numba's disk cache notices changes of a function's own file only. Helpers are inlined
by force: a helper that stays a call is bound to another copy of it, rounded differently, in the process that compiles
than in those that load the cache, and shards would disagree in the last bit.
"""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from oscbench.numerics.evm.fits import HALF_STEP, NO_PROBABILITY
from oscbench.numerics.weibull import CONSTANT_SPAN, STEP_SHAPE

CHUNK: Final = 128
"""Rows whose parameters stand together; the unit in which the scoring loop skips work."""

SPARE: Final = 256
"""Room that ``collect_smallest`` keeps free in its candidate list."""

# Reassociation would cancel the rounding trick in exp64; sums still need it, hence two sets of flags.
_EXACT_ORDER: Final = {"contract", "nnan", "ninf", "nsz", "arcp"}
_LOWEST: Final = np.float32(-3e38)

# ln(1 + t) = t - t²/2 + t³ p(t) on [√½ - 1, √2 - 1]; p by least squares of the relative error, 8e-8 at most.
_LN2_32: Final = np.float32(math.log(2.0))
_P0, _P1, _P2, _P3 = (np.float32(c) for c in (0.33333354, -0.25000852, 0.19999827, -0.1662137))
_P4, _P5, _P6, _P7 = (np.float32(c) for c in (0.14227114, -0.13202104, 0.12620327, -0.07362868))
_ONE: Final = np.float32(1.0)
_HALF: Final = np.float32(0.5)

_LN2: Final = math.log(2.0)
_GUMBEL: Final = math.pi / math.sqrt(6.0)
_LOG2_E: Final = 1.0 / math.log(2.0)
_ROUND: Final = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits


def _split(bits: int, mantissa_bits: int, sqrt_half: int) -> Any:
    """Intrinsic that splits a positive float into exponent and mantissa in [√½, √2), both as floats.

    The integer arithmetic is done at the width of the float: numba would widen int32 to int64, which halves the
    number of vector lanes.
    """
    number = types.float32 if bits == 32 else types.float64
    integer, floating = ir.IntType(bits), ir.FloatType() if bits == 32 else ir.DoubleType()
    shift = ir.Constant(integer, mantissa_bits)

    def typed(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            raw = builder.bitcast(args[0], integer)
            exponent = builder.ashr(builder.sub(raw, ir.Constant(integer, sqrt_half)), shift)
            mantissa = builder.bitcast(builder.sub(raw, builder.shl(exponent, shift)), floating)
            parts = (builder.sitofp(exponent, floating), mantissa)
            return context.make_tuple(builder, signature.return_type, parts)

        return types.UniTuple(number, 2)(number), generate

    return intrinsic(typed)


_split32 = _split(32, 23, 0x3F3504F3)
_split64 = _split(64, 52, 0x3FE6A09E667F3BCD)


@intrinsic
def _times_power_of_two(typing_context: Any, value: Any, rounded: Any) -> Any:
    """``value`` · 2^n, n being the integer in the low bits of ``rounded``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(64)
        power = builder.shl(builder.bitcast(args[1], integer), ir.Constant(integer, 52))
        return builder.bitcast(builder.add(builder.bitcast(args[0], integer), power), ir.DoubleType())

    return types.float64(types.float64, types.float64), generate


def _chosen(relation: str) -> Any:
    """Intrinsic for the larger or smaller of two floats, in the form that becomes a vector operation inside a loop."""

    def typed(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            first = builder.fcmp_ordered(relation, args[0], args[1], flags=("fast",))
            return builder.select(first, args[0], args[1], flags=("fast",))

        return a(a, b), generate

    return intrinsic(typed)


_larger = _chosen(">")
_smaller = _chosen("<")


@njit(fastmath=_EXACT_ORDER, error_model="numpy", forceinline=True, cache=True)
def log32(x: Any) -> Any:
    """Natural logarithm of a positive normal float32, relative error below 1e-7."""
    exponent, mantissa = _split32(x)
    t = mantissa - _ONE
    t2 = t * t
    p = ((_P7 * t + _P6) * t2 + (_P5 * t + _P4)) * (t2 * t2) + ((_P3 * t + _P2) * t2 + (_P1 * t + _P0))
    return exponent * _LN2_32 + (t + t2 * (t * p - _HALF))


@njit(fastmath=_EXACT_ORDER, error_model="numpy", forceinline=True, cache=True)
def log64(x: Any) -> Any:
    """Natural logarithm of a positive normal float64: 2 atanh((m - 1) / (m + 1)) as a series, error below 1e-12."""
    exponent, mantissa = _split64(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13)))))
    return exponent * _LN2 + 2.0 * (s + s * z * series)


@njit(fastmath=_EXACT_ORDER, error_model="numpy", forceinline=True, cache=True)
def exp64(y: Any) -> Any:
    """e^y for -700 <= y <= 700, relative error below 1e-9."""
    rounded = y * _LOG2_E + _ROUND
    r = y - (rounded - _ROUND) * _LN2  # |r| <= ln 2 / 2
    tail = 1 / 720 + r * (1 / 5040 + r * (1 / 40320))
    series = 1.0 + r * (1.0 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * tail)))))
    return _times_power_of_two(series, rounded)


@njit(nogil=True, error_model="numpy", cache=True)
def collect_smallest(distances: Any, skip_from: Any, skip_to: Any, kept: Any, count: Any, limit: Any, k: int) -> None:
    """Adds one tile of distances (B, W) to the running k smallest of each row.

    Columns ``skip_from[r]`` to ``skip_to[r]`` (the row's own class) are left out. ``kept`` (B, capacity) holds
    ``count[r]`` candidates; when it is nearly full, the k smallest stay and ``limit[r]`` becomes the largest of them,
    so that later tiles add few. The append has no branch: every value is stored, and counted only if it is small.
    """
    width, capacity = distances.shape[1], kept.shape[1]
    for r in range(distances.shape[0]):
        n, bound = count[r], limit[r]
        for part in range(2):
            start = 0 if part == 0 else skip_to[r]
            stop = skip_from[r] if part == 0 else width
            while start < stop:
                end = min(stop, start + capacity - n)
                for j in range(start, end):
                    value = distances[r, j]
                    kept[r, n] = value
                    n += value < bound
                start = end
                if n > capacity - SPARE:
                    kept[r, :n] = np.partition(kept[r, :n], k - 1)
                    n, bound = k, kept[r, :k].max()
        count[r], limit[r] = n, bound


@njit(nogil=True, error_model="numpy", cache=True)
def fit_rows(
    tails: Any, available: Any, tail_sizes: Any, multipliers: Any, order: Any, shape: Any, log_scale: Any, constant: Any
) -> None:
    """Weibull fits of every row's tails (N, k) for all settings, into (N, S) arrays.

    ``order`` sorts the settings by tail size, then multiplier. In θ = shape · κ the solution changes slowly with κ, so
    each fit starts from θ extrapolated along the previous multipliers of the same tail and needs one or two steps.
    """
    v = np.empty(tails.shape[1])
    path = np.empty((3, 2))  # (κ, θ) of the last fits, newest first
    for r in range(tails.shape[0]):
        known, previous = 0, 0
        for s in order:
            t, kappa = min(tail_sizes[s], available[r]), multipliers[s]
            if t != previous or (known and kappa == path[0, 0]):
                known, previous = 0, t
            mean = _log_tail(tails[r], t, kappa, v)
            top = v[0]  # distances ascend, so ln x descends
            constant[r, s] = top <= CONSTANT_SPAN
            if constant[r, s]:
                shape[r, s], log_scale[r, s] = STEP_SHAPE, 0.0
                continue
            start = _extrapolate(path, known, kappa) / kappa if known else _GUMBEL / _deviation(v[:t], mean)
            shape[r, s], log_scale[r, s] = _solve(v[:t], top, mean, start)
            path[2], path[1] = path[1], path[0]
            path[0, 0], path[0, 1] = kappa, shape[r, s] * kappa
            known = min(known + 1, 3)


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _log_tail(tail: Any, t: int, kappa: float, v: Any) -> Any:
    """Writes v = ln(1 + κ (d_t - d)) and returns its mean."""
    largest = np.float64(tail[t - 1])
    for i in range(t):
        v[i] = log64(1.0 + kappa * (largest - np.float64(tail[i])))
    total = 0.0
    for i in range(t):
        total += v[i]
    return total / t


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _deviation(v: Any, mean: float) -> float:
    squares = 0.0
    for i in range(v.size):
        squares += (v[i] - mean) * (v[i] - mean)
    return math.sqrt(squares / v.size)


@njit(error_model="numpy", forceinline=True, cache=True)
def _extrapolate(path: Any, known: int, kappa: float) -> float:
    """θ at ``kappa`` by the polynomial through the last one to three (κ, θ)."""
    total = 0.0
    for i in range(known):
        weight = 1.0
        for j in range(known):
            if j != i:
                weight *= (kappa - path[j, 0]) / (path[i, 0] - path[j, 0])
        total += weight * path[i, 1]
    return total


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _power_sums(v: Any, top: float, k: float) -> Any:
    """Weighted mean of v - top and its second and third central moments under weights e^{k v}, and mean weight."""
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for i in range(v.size):
        u = v[i] - top
        e = exp64(_larger(k * u, -100.0))  # less adds nothing to a sum that contains 1
        s0 += e
        s1 += e * u
        s2 += e * u * u
        s3 += e * u * u * u
    m1, m2, m3 = s1 / s0, s2 / s0, s3 / s0
    return m1, m2 - m1 * m1, m3 - 3.0 * m1 * m2 + 2.0 * m1 * m1 * m1, s0 / v.size


@njit(error_model="numpy", forceinline=True, cache=True)
def _solve(v: Any, top: float, mean: float, start: float) -> Any:
    """Shape and ln scale: Halley's method inside a shrinking bracket, as in ``weibull.fit_log_tails``.

    The iteration is cubic, so after a step below 1e-4 what is left does not depend on the start, and a setting has the
    same fit alone and in any grid; the mean of e^{kv} at the new k follows from its cumulants without another pass.
    """
    gap = top - mean
    low, high = 1.0 / gap, np.inf
    k = max(start, low)
    for _ in range(100):
        first, variance, third, weight = _power_sums(v, top, k)
        value = first + gap - 1.0 / k
        slope = max(variance, 0.0) + 1.0 / (k * k)
        if value <= 0:
            low = k
        if value >= 0:
            high = k
        step = -value / slope
        bend = 1.0 + step * (third - 2.0 / (k * k * k)) / (2.0 * slope)
        new = k + (step / bend if bend > 0.5 else step)
        if not low <= new <= high:
            new = 2.0 * k if high == np.inf else 0.5 * (low + high)
        delta, k = new - k, new
        if abs(delta) <= 1e-4 * k:
            break
    log_mean = math.log(weight) + delta * (first + delta * (variance / 2.0 + delta * third / 6.0))
    return k, top + log_mean / k


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _chunk_bound(d: Any, intercept: Any, slope: Any) -> Any:
    best = _LOWEST
    for i in range(CHUNK):
        best = _larger(intercept[i] - slope[i] * d[i], best)
    return best


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _chunk_scores(d: Any, reach: Any, shape: Any, offset: Any, floor: Any, scores: Any) -> Any:
    """Writes g = k ln(max(c - d, floor)) - k ln scale of a chunk's rows and returns the largest."""
    best = _LOWEST
    for i in range(CHUNK):
        g = shape[i] * log32(_larger(reach[i] - d[i], floor)) - offset[i]
        scores[i] = g
        best = _larger(g, best)
    return best


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _smallest(d: Any) -> Any:
    smallest = d[0]
    for i in range(1, CHUNK):
        smallest = _smaller(d[i], smallest)
    return smallest


@njit(nogil=True, error_model="numpy", cache=True)
def envelopes(intercept: Any, slope: Any, step: Any, out: Any) -> None:
    """Largest of each chunk's lines ``intercept - slope · d`` at d = 0, step, 2 step, …, into (chunks, points, S)."""
    d = np.empty(CHUNK, np.float32)
    for c in range(out.shape[0]):
        for point in range(out.shape[1]):
            d[:] = np.float32(point) * step
            for s in range(out.shape[2]):
                out[c, point, s] = _chunk_bound(d, intercept[c, s], slope[c, s])


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _chunk_limits(envelope: Any, position: Any, lowest: Any, ceiling: Any, best: Any, limits: Any) -> Any:
    """Writes what no row of a chunk exceeds in each setting, and returns by how much that beats the running best.

    ``position`` is the distance of the chunk's nearest row, in steps of the envelope. That is convex and falling, so
    its chords lie above it, and its last point above all that follows.
    """
    point = min(int(position), envelope.shape[0] - 2)
    share = _smaller(position - np.float32(point), _ONE)
    gain = _LOWEST
    for s in range(limits.size):
        here, there = envelope[point, s], envelope[point + 1, s]
        limits[s] = _smaller(_larger(here + share * (there - here), lowest[s]), ceiling)
        gain = _larger(limits[s] - best[s], gain)
    return gain


@njit(error_model="numpy", forceinline=True, cache=True)
def lowest_of_equal_probability(g: Any) -> Any:
    """As ``inclusion.lowest_of_equal_probability``, for one float32."""
    if -22.0 < g < 3.0:
        return g
    p = 1.0 - math.exp(-math.exp(np.float64(g)))
    if p == 0.0:
        return np.float32(NO_PROBABILITY)
    exponent = -math.log1p(HALF_STEP - p) if p < 0.5 else -math.log(1.0 - p + HALF_STEP)
    return min(g, np.float32(math.log(exponent)))


@njit(error_model="numpy", forceinline=True, cache=True)
def _improve(value: Any, scores: Any, first: int, stepped: bool, best: Any, row: Any, q: int, s: int) -> None:
    """Takes over a chunk's best row if it beats the running best, or ties with it and stands earlier."""
    if value < best[q, s]:
        return
    if stepped:
        value = lowest_of_equal_probability(value)
    i = 0
    while i < CHUNK - 1 and scores[i] < value:
        i += 1
    if value > best[q, s] or (value == best[q, s] and first + i < row[q, s]):
        best[q, s], row[q, s] = value, first + i


@njit(nogil=True, error_model="numpy", cache=True)
def best_rows(
    distances: Any,
    reach: Any,
    shape: Any,
    offset: Any,
    intercept: Any,
    slope: Any,
    envelope: Any,
    step: Any,
    lowest: Any,
    floor: Any,
    ceiling: Any,
    stepped: bool,
    prune: bool,
    best: Any,
    row: Any,
) -> None:
    """Largest score and its row for every query (Q) and setting (S), into ``best`` and ``row`` (Q, S).

    ``distances`` is (Q, rows padded to whole chunks); the parameters are (chunks, S, CHUNK), ``lowest`` (chunks, S).
    ``best`` and ``row`` start as what is to be beaten. Ties go to the lowest row; if ``stepped``, log scores of equal
    probability tie, and from ``ceiling`` on all do. A query's nearest chunk is scored first.

    With ``prune`` a chunk is skipped when no row of it can displace the running best; the result is the same without.
    ln z <= z - 1 bounds a row by a line ``intercept - slope · d``, and ``lowest`` is the chunk's largest score at the
    clamp. First the chunk's nearest distance is looked up in the ``envelope`` of its lines, for all settings at once;
    where that does not decide, each row's line is taken at the row's own distance.
    """
    n_queries, n_chunks, n_settings = distances.shape[0], reach.shape[0], reach.shape[1]
    scores, limits = np.empty(CHUNK, np.float32), np.empty(n_settings, np.float32)
    nearest = np.empty((n_queries, n_chunks), np.float32)
    seed = np.empty(n_queries, np.int64)
    for q in range(n_queries):
        for c in range(n_chunks):
            nearest[q, c] = _smallest(distances[q, c * CHUNK : (c + 1) * CHUNK])
        c = seed[q] = nearest[q].argmin()
        d = distances[q, c * CHUNK : (c + 1) * CHUNK]
        for s in range(n_settings):
            value = _chunk_scores(d, reach[c, s], shape[c, s], offset[c, s], floor, scores)
            _improve(value, scores, c * CHUNK, stepped, best, row, q, s)
    for c in range(n_chunks):
        for q in range(n_queries):
            if c == seed[q]:
                continue
            if prune and _chunk_limits(envelope[c], nearest[q, c] / step, lowest[c], ceiling, best[q], limits) < 0:
                continue
            d = distances[q, c * CHUNK : (c + 1) * CHUNK]
            for s in range(n_settings):
                if prune:
                    if _loses(limits[s], c * CHUNK, best[q, s], row[q, s]):
                        continue
                    bound = min(max(_chunk_bound(d, intercept[c, s], slope[c, s]), lowest[c, s]), ceiling)
                    if _loses(bound, c * CHUNK, best[q, s], row[q, s]):
                        continue
                value = _chunk_scores(d, reach[c, s], shape[c, s], offset[c, s], floor, scores)
                _improve(value, scores, c * CHUNK, stepped, best, row, q, s)


@njit(error_model="numpy", forceinline=True, cache=True)
def _loses(bound: Any, first: int, best: Any, row: int) -> bool:
    """Whether scores up to ``bound`` of rows from ``first`` on leave the best as it is; ties go to the lower row."""
    return bound < best or (bound == best and row < first)


@njit(nogil=True, error_model="numpy", cache=True)
def refine(
    queries: Any, rows: Any, row: Any, cosine: bool, shape: Any, log_scale: Any, reach: Any, floor: float, out: Any
) -> None:
    """Scores of the winning rows (Q, S) again, with distance and logarithm in float64."""
    for q in range(row.shape[0]):
        previous, distance = -1, 0.0
        for s in range(row.shape[1]):
            n = row[q, s]
            if n != previous:
                previous, distance = n, _distance(queries[q], rows[n], cosine)
            out[q, s] = shape[n, s] * (math.log(max(reach[n, s] - distance, floor)) - log_scale[n, s])


@njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
def _distance(a: Any, b: Any, cosine: bool) -> float:
    product, squares = 0.0, 0.0
    for i in range(a.size):
        product += a[i] * b[i]
        squares += (a[i] - b[i]) * (a[i] - b[i])
    return 1.0 - product if cosine else math.sqrt(squares)
