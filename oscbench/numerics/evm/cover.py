"""Model reduction of EVM: the few rows of a class that include all the others (arXiv:1506.06112, section 3.3)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.tails import distance_tile, left_factor, right_factor


def greedy_cover(covers: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Ascending rows that together cover every column of (n, n) ``covers``, where ``covers[i, j]`` says i covers j.

    Takes the row that covers most of what is still uncovered, the lowest on a tie, until nothing is left; the result
    is at most 1 + ln n times as large as the smallest cover. A row always covers itself, whatever the matrix says, so
    that the end is reached.

    >>> greedy_cover(np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]], bool))
    array([0, 2])
    """
    covers = covers | np.eye(len(covers), dtype=bool)
    gain = covers.sum(axis=1)
    open_columns = np.ones(len(covers), bool)
    kept = []
    while open_columns.any():
        row = int(np.argmax(gain))
        kept.append(row)
        newly = covers[row] & open_columns
        open_columns &= ~newly
        gain -= covers[:, newly].sum(axis=1)
    return np.sort(np.array(kept, np.intp))


def cover_mask(gallery: Gallery, radii: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N, S) which rows a greedy cover of their class keeps, when row i covers rows within ``radii[i, s]`` of it."""
    keep = np.zeros(radii.shape, bool)
    left = torch.from_numpy(left_factor(gallery.rows[: len(gallery)], gallery.metric))
    right = torch.from_numpy(right_factor(gallery.rows[: len(gallery)], gallery.metric))
    starts = gallery.class_starts
    for first, last in zip(starts[:-1], starts[1:], strict=True):
        distances = distance_tile(left[first:last], right[first:last], gallery.metric).numpy()
        for s in range(radii.shape[1]):
            keep[first + greedy_cover(distances <= radii[first:last, s, None]), s] = True
    return keep
