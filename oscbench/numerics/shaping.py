"""Sums over the largest features of a row: what activation shaping needs, for all percentiles from one sort."""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]


def kept_features(width: int, percentile: float) -> int:
    """How many of ``width`` features are above the percentile, at least one; rounded half to even, as published.

    >>> kept_features(64, 90.0), kept_features(10, 100.0)
    (6, 1)
    """
    return max(1, width - round(width * percentile / 100))


def top_shares(features: Array, kept: Sequence[int]) -> Array:
    """(N, len(kept)) sum of the positive features over that of the ``kept`` largest: at least 1, and 1 without any."""
    positive = np.maximum(features, 0.0)
    positive.sort(axis=1)
    sums = np.cumsum(positive[:, ::-1], axis=1)
    top = sums[:, np.asarray(kept) - 1]
    return np.asarray(np.divide(sums[:, -1:], top, out=np.ones_like(top), where=top > 0))


def top_logits(
    features: Array, columns: Array, kept: NDArray[np.int64], *, weighted: bool
) -> tuple[NDArray[np.float64], Array]:
    """Sums over the largest positive features: (N, S, K) of the head's weights, and (N, S) of the features themselves.

    One walk down the features of a row, largest first, of equal ones the first, serves all S numbers of kept features.
    Features are compared in single precision, in which networks give them.

    Args:
        features: (N, P).
        columns: (P, K) the head's weights, a row per feature.
        kept: (S,) ascending.
        weighted: Whether each feature's weights are multiplied by it.
    """
    positive = np.maximum(features, 0.0)
    # one number of falling feature and rising column: sorting those takes a third of a stable argsort
    falling = ~positive.astype(np.float32).view(np.uint32)
    keys = falling.astype(np.uint64) << np.uint64(32) | np.arange(len(columns), dtype=np.uint64)
    keys.sort(axis=1)
    order = (keys[:, : kept[-1]] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    logits, sums = np.empty((len(features), len(kept), columns.shape[1])), np.empty((len(features), len(kept)))
    _walk(positive, order, columns, kept, weighted, logits, sums)
    return logits, sums


@njit(nogil=True, cache=True)
def _walk(
    positive: Array,
    order: NDArray[np.int64],
    columns: Array,
    kept: NDArray[np.int64],
    weighted: bool,
    logits: Array,
    sums: Array,
) -> None:
    n_classes = columns.shape[1]
    for row in range(len(positive)):
        total, found = 0.0, np.zeros(n_classes)
        step = 0
        for s in range(len(kept)):
            while step < kept[s]:
                column = order[row, step]
                value = positive[row, column]
                factor = value if weighted else 1.0
                for k in range(n_classes):
                    found[k] += factor * columns[column, k]
                total += value
                step += 1
            logits[row, s] = found
            sums[row, s] = total
