"""Distances between rows in blocks by one matrix product, and the k smallest of them to rows of other classes.

A full distance matrix is never stored. Blocks have fixed sizes on a fixed grid over all rows: a matrix product may
round differently for another shape, and this way a distance has the same bits whoever computes it, in any number of
parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics.evm.gallery import Gallery, Metric, extended_labels, refuse_rows

ROW_TILE: Final = 256
COLUMN_TILE: Final = 4096


def left_factor(rows: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """Rows extended so that their product with ``right_factor`` is 1 - cos, or the squared Euclidean distance."""
    one = np.ones((len(rows), 1))
    if metric == "cosine":
        return np.hstack([-rows, one])
    return np.hstack([-2.0 * rows, np.einsum("nd,nd->n", rows, rows)[:, None], one])


def right_factor(rows: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """The other side of ``left_factor``."""
    one = np.ones((len(rows), 1))
    if metric == "cosine":
        return np.hstack([rows, one])
    return np.hstack([rows, one, np.einsum("nd,nd->n", rows, rows)[:, None]])


def to_float32(factor: NDArray[np.float64]) -> NDArray[np.float32]:
    """The factor in float32, refused when a value does not fit."""
    with np.errstate(over="ignore"):
        out = factor.astype(np.float32)
    too_large = np.asarray(~np.isfinite(out).all(axis=1))
    refuse_rows(too_large, "features", "is too large for float32 distances; scale the features down")
    return out


def distance_tile(
    left: torch.Tensor, right: torch.Tensor, metric: Metric, out: torch.Tensor | None = None
) -> torch.Tensor:
    """(A, B) distances from two factors; cosine distances may be below 0 by a rounding error."""
    tile = torch.mm(left, right.T, out=out) if out is not None else left @ right.T
    return tile if metric == "cosine" else tile.clamp_(min=0.0).sqrt_()


def tiles(start: int, stop: int, size: int, n: int) -> Iterator[tuple[int, int]]:
    """The tiles of the grid 0, size, 2 size, ..., n that overlap start..stop, whole.

    >>> list(tiles(5, 9, 4, 10))
    [(4, 8), (8, 10)]
    """
    for first in range(start // size * size, stop, size):
        yield first, min(first + size, n)


def smallest_to_other_classes(
    gallery: Gallery, first: int, last: int, k: int, *, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """(last - first, k) ascending distances of gallery rows to rows of other classes, infinite where there are fewer.

    Runs over column tiles and keeps the k smallest seen so far. ``left`` and ``right`` are the factors of all gallery
    rows, in any float type and on any device.
    """
    labels = torch.as_tensor(extended_labels(gallery), device=left.device)
    best = torch.full((last - first, k), torch.inf, dtype=left.dtype, device=left.device)
    for begin, end in tiles(0, len(gallery.rows), COLUMN_TILE, len(gallery.rows)):
        tile = distance_tile(left[first:last], right[begin:end], gallery.metric)
        tile.masked_fill_(labels[first:last, None] == labels[None, begin:end], torch.inf)
        best = torch.cat([best, tile], dim=1).topk(k, dim=1, largest=False).values
    return best.clamp_(min=0.0).sort(dim=1).values
