"""EVM's heavy phases as plain torch operations: the float64 reference on the CPU, and the path for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics.evm.fits import (
    NO_PROBABILITY,
    X_FLOOR,
    Grid,
    InclusionFits,
    InclusionKind,
    fit_inclusion,
    lowest_of_equal_probability,
)
from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.tails import (
    COLUMN_TILE,
    distance_tile,
    left_factor,
    right_factor,
    smallest_to_other_classes,
    tiles,
)
from oscbench.numerics.weibull import log_exponent, probability_of


class TorchEngine:
    """Distances, tails and scores in one float type on one device; fits always in float64."""

    def __init__(
        self, gallery: Gallery, start: int, stop: int, *, dtype: torch.dtype, device: str | torch.device
    ) -> None:
        self.gallery, self.start, self.stop = gallery, start, stop
        self.dtype, self.device = dtype, torch.device(device)
        self.key_type = np.float64 if dtype == torch.float64 else np.float32
        self.query_tile = 64 if self.device.type == "cpu" else 1024
        self.left = self._tensor(left_factor(gallery.rows, gallery.metric))
        self.right = self._tensor(right_factor(gallery.rows, gallery.metric))

    def _tensor(self, array: NDArray[np.float64]) -> torch.Tensor:
        return torch.as_tensor(array, dtype=self.dtype, device=self.device)

    def tails(self, first: int, last: int, k: int) -> NDArray[Any]:
        """(last - first, k) ascending distances to other classes, infinite where a row has fewer than k."""
        tails = smallest_to_other_classes(self.gallery, first, last, k, left=self.left, right=self.right)
        return tails.cpu().numpy()

    def fit(self, tails: NDArray[Any], available: NDArray[np.int64], grid: Grid, out: InclusionFits) -> None:
        """Fits (n, k) tails for all settings into ``out``."""
        fit_inclusion(torch.as_tensor(tails, device=self.device), available, grid, out)

    def load(self, fits: InclusionFits) -> None:
        """Takes over the fits of all rows of the shard for scoring."""
        # (S, n): the rows of one setting side by side
        self._shape, self._log_scale, self._reach = (
            self._tensor(np.ascontiguousarray(part.T)) for part in (fits.shape, fits.log_scale, fits.reach)
        )

    def best(
        self, queries: NDArray[np.float64], kind: InclusionKind
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
        """Largest score and its row (counted from ``start``) for a block of queries, each (B, S).

        In float64 the score is final and ties are those of the score kind itself; in float32 it is the log score, or
        for probabilities the lowest that ties with it, and the caller computes the winner's score again.
        """
        n_settings, stepped = len(self._shape), kind == "probability" and self.dtype == torch.float32
        lowest = NO_PROBABILITY if stepped else -torch.inf
        key = torch.full((len(queries), n_settings), lowest, dtype=self.dtype, device=self.device)
        row = torch.zeros((len(queries), n_settings), dtype=torch.int64, device=self.device)
        for low, high, distances in self._tiles(queries):
            for s in range(n_settings):
                scores = self._scores(distances, s, slice(low, high), kind)
                value, index = scores.max(dim=1)
                if stepped:
                    value = lowest_of_equal_probability(value)
                    index = (scores >= value[:, None]).to(torch.uint8).argmax(dim=1)  # the first
                better = value > key[:, s]
                key[:, s] = torch.where(better, value, key[:, s])
                row[:, s] = torch.where(better, index + low, row[:, s])
        return key.cpu().numpy(), row.cpu().numpy()

    def class_scores(
        self, queries: NDArray[np.float64], s: int, kind: InclusionKind, empty: float
    ) -> NDArray[np.float64]:
        """(B, K) scores of one setting; classes without rows get ``empty``."""
        scores = torch.full((len(queries), self.gallery.n_classes), empty, dtype=torch.float64)
        starts = self.gallery.class_starts - self.start
        for low, high, distances in self._tiles(queries):
            tile = self._scores(distances, s, slice(low, high), kind)
            for c in np.flatnonzero((starts[:-1] < high) & (starts[1:] > low)):
                part = tile[:, max(starts[c] - low, 0) : max(starts[c + 1] - low, 0)]
                if part.shape[1]:
                    scores[:, c] = torch.maximum(scores[:, c], part.amax(dim=1).to("cpu", torch.float64))
        return scores.numpy()

    def _tiles(self, queries: NDArray[np.float64]) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Distances of the queries to the shard's rows, as (first row, last row, tile) counted from ``start``."""
        left = self._tensor(left_factor(queries, self.gallery.metric))
        for begin, end in tiles(self.start, self.stop, COLUMN_TILE, len(self.right)):
            low, high = max(begin, self.start), min(end, self.stop)
            tile = distance_tile(left, self.right[begin:end], self.gallery.metric)
            yield low - self.start, high - self.start, tile[:, low - begin : high - begin]

    def _scores(self, distances: torch.Tensor, s: int, rows: slice, kind: InclusionKind) -> torch.Tensor:
        x = self._reach[s, rows] - distances
        g = log_exponent(x, self._shape[s, rows], self._log_scale[s, rows], X_FLOOR[kind])
        return probability_of(g) if kind == "probability" and self.dtype == torch.float64 else g
