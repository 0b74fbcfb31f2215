"""Exact percentiles of numbers that come in blocks and need not fit into memory: two passes for any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BINS = 1 << 16


def percentiles(blocks: Callable[[], Iterable[Array]], wanted: Sequence[float]) -> Array:
    """(len(wanted),) percentiles as ``np.percentile`` gives them: linear between the two nearest numbers.

    The first pass counts numbers by the upper half of their single-precision bits, the second one keeps those that
    share a bin with a wanted rank. Zeros, which ReLU features are full of, are counted and never kept.

    >>> percentiles(lambda: [np.array([0.0, 0.0]), np.array([4.0, 2.0])], [50, 75, 100]).tolist()
    [1.0, 2.5, 4.0]
    """
    counts = np.zeros(_BINS, np.int64)
    for block in blocks():
        counts += np.bincount(_bin(block), minlength=_BINS)
    position = np.asarray(wanted, np.float64) / 100 * (counts.sum() - 1)
    ranks = np.unique(np.concatenate([np.floor(position), np.ceil(position)]).astype(np.int64))
    ends = np.cumsum(counts)
    chosen = np.unique(np.searchsorted(ends, ranks, side="right"))
    kept: list[Array] = []
    zeros = 0
    for block in blocks():
        flat = block.ravel()
        inside = flat[np.isin(_bin(flat), chosen)]
        nonzero = inside[inside != 0]
        zeros += len(inside) - len(nonzero)
        kept.append(nonzero)
    values = np.sort(np.concatenate(kept))
    first_zero = int(np.searchsorted(values, 0.0))  # zeros stand here, whether they are kept or not
    # rank among the kept numbers: leave out all bins that were not chosen
    skipped = np.cumsum(np.where(np.isin(np.arange(_BINS), chosen), 0, counts))
    of_rank: dict[int, float] = {}
    for rank in ranks.tolist():
        place = rank - int(skipped[np.searchsorted(ends, rank, side="right")])
        if first_zero <= place < first_zero + zeros:
            of_rank[rank] = 0.0
        else:
            of_rank[rank] = float(values[place if place < first_zero else place - zeros])
    low = np.array([of_rank[int(np.floor(p))] for p in position])
    high = np.array([of_rank[int(np.ceil(p))] for p in position])
    share = position - np.floor(position)
    return np.asarray(low + (high - low) * share)


def _bin(values: Array) -> NDArray[np.int64]:
    """Never falling in the value: the upper bits of its single-precision form, negatives turned around."""
    with np.errstate(over="ignore"):
        bits = (values.ravel().astype(np.float32) + np.float32(0)).view(np.uint32)  # no minus zero
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return (ordered >> np.uint32(16)).astype(np.int64)
