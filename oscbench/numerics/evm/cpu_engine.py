"""EVM's heavy phases on the CPU in float32: the tails of a block of rows, the best row of a block of queries."""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics import kernels
from oscbench.numerics.evm.fits import LOG_SCORE_OF_ONE, NO_PROBABILITY, X_FLOOR, Grid, InclusionFits, InclusionKind
from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.tails import COLUMN_TILE, distance_tile, left_factor, right_factor, tiles, to_float32
from oscbench.numerics.kernels import CHUNK

_SAMPLE: Final = 1024
_NEVER: Final = 1e30
_ENVELOPE_POINTS: Final = 64
# Float32 rounding of a score and of its bound, relative to the terms they are made of, with a margin of four.
_SLACK: Final = 2e-6


class CpuEngine:
    """Compiled loops over float32 distance tiles; several threads may call it at once, each on blocks of its own."""

    key_type = np.float32
    query_tile = 256

    def __init__(self, gallery: Gallery, start: int, stop: int, *, prune: bool = True) -> None:
        self.gallery, self.start, self.stop, self.prune = gallery, start, stop, prune
        self.right = torch.from_numpy(to_float32(right_factor(gallery.rows, gallery.metric)))
        self._available, self._class_starts = gallery.available, gallery.class_starts
        self._packed: _Packed | None = None
        self._local = threading.local()

    def tails(self, first: int, last: int, k: int) -> NDArray[np.float32]:
        """(last - first, k) ascending distances to other classes, infinite where a row has fewer than k."""
        left = torch.from_numpy(to_float32(left_factor(self.gallery.rows[first:last], self.gallery.metric)))
        limit = self._sampled_limit(left, first, last, k)
        tails = self._collect(left, first, last, k, limit)
        short = tails[:, -1] == np.inf
        if (short & (self._available[first:last] >= k)).any():  # the sample misjudged a row: take all candidates
            tails = self._collect(left, first, last, k, np.full(last - first, np.inf, np.float32))
        return np.maximum(tails, np.float32(0.0), out=tails)

    def _collect(
        self, left: torch.Tensor, first: int, last: int, k: int, limit: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        n, total = last - first, len(self.right)
        kept = self._buffer("kept", n, 2 * k + COLUMN_TILE // 4)
        count = np.zeros(n, np.int64)
        labels = self.gallery.labels[first:last]
        own_from, own_to = self._class_starts[labels], self._class_starts[labels + 1]
        for begin, end in tiles(0, total, COLUMN_TILE, total):
            tile = self._tile(left, begin, end)
            skip_from = np.clip(own_from - begin, 0, end - begin)
            skip_to = np.clip(own_to - begin, 0, end - begin)
            kernels.collect_smallest(tile.numpy(), skip_from, skip_to, kept.numpy(), count, limit, k)
        candidates = kept.numpy()[:, : max(k, int(count.max()))]
        for r in range(n):
            candidates[r, count[r] :] = np.inf
        if candidates.shape[1] > 4 * k:  # with fewer, sorting all is as fast
            candidates = np.partition(candidates, k - 1, axis=1)[:, :k]
        return np.sort(candidates, axis=1)[:, :k]

    def _sampled_limit(self, left: torch.Tensor, first: int, last: int, k: int) -> NDArray[np.float32]:
        """(n,) a distance below which each row very likely has k others, from evenly spread columns."""
        total = len(self.right)
        step = max(1, total // _SAMPLE)
        columns = np.arange(0, total, step)
        expected = len(columns) * k / float(self._available[first:last].min())
        rank = math.ceil(expected + 4.0 * math.sqrt(expected) + 4.0)
        if step == 1 or rank > len(columns) // 4:
            return np.full(last - first, np.inf, np.float32)
        sample = distance_tile(left, self.right[columns], self.gallery.metric).numpy()
        labels = self.gallery.labels[first:last]
        own_from, own_to = self._class_starts[labels], self._class_starts[labels + 1]
        sample[(columns >= own_from[:, None]) & (columns < own_to[:, None])] = np.inf
        limit: NDArray[np.float32] = np.ascontiguousarray(np.partition(sample, rank, axis=1)[:, rank])
        return limit

    def fit(self, tails: NDArray[np.float32], available: NDArray[np.int64], grid: Grid, out: InclusionFits) -> None:
        """Fits (n, k) tails for all settings into ``out``."""
        kernels.fit_rows(
            tails, available, grid.tail_sizes, grid.multipliers, grid.order, out.shape, out.log_scale, out.constant
        )
        last = np.minimum(grid.tail_sizes[None, :], available[:, None]) - 1
        np.add(1.0, grid.multipliers * np.take_along_axis(tails, last, axis=1), out=out.reach)

    def load(self, fits: InclusionFits) -> None:
        """Takes over the fits of all rows of the shard for scoring."""
        self._packed = _Packed(fits)

    def best(self, queries: NDArray[np.float64], kind: InclusionKind) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Largest score and its row (counted from ``start``) for a block of queries, each (B, S)."""
        packed = self._packed
        assert packed is not None, "load comes before best"
        n, n_rows = len(queries), self.stop - self.start
        left = torch.from_numpy(to_float32(left_factor(queries, self.gallery.metric)))
        distances = self._buffer("distances", n, -(-n_rows // CHUNK) * CHUNK)
        distances[:, n_rows:] = _NEVER
        for begin, end in tiles(self.start, self.stop, COLUMN_TILE, len(self.right)):
            low, high = max(begin, self.start), min(end, self.stop)
            part = self._tile(left, begin, end)[:, low - begin : high - begin]
            distances[:, low - self.start : high - self.start] = part
        stepped = kind == "probability"
        lowest, ceiling = (NO_PROBABILITY, LOG_SCORE_OF_ONE) if stepped else (-3e38, 3e38)
        key = np.full((n, packed.n_settings), lowest, np.float32)
        row = np.zeros((n, packed.n_settings), np.int64)
        kernels.best_rows(
            distances.numpy(), packed.reach, packed.shape, packed.offset, packed.intercept, packed.slope,
            packed.envelope, packed.step, packed.lowest[kind], np.float32(X_FLOOR[kind]), np.float32(ceiling),
            stepped, self.prune, key, row,
        )  # fmt: skip
        return key, row

    def _tile(self, left: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        out = self._buffer("tile", len(left), end - begin)
        return distance_tile(left, self.right[begin:end], self.gallery.metric, out)

    def _buffer(self, name: str, n: int, width: int) -> torch.Tensor:
        """This thread's buffer of that name: fresh memory for every tile would cost more than its matrix product."""
        store: torch.Tensor | None = getattr(self._local, name, None)
        if store is None or store.numel() < n * width:
            store = torch.empty(n * width)
            setattr(self._local, name, store)
        return store[: n * width].view(n, width)


class _Packed:
    """Fits in the layout of the scoring loop: float32, (chunks, S, CHUNK), padded by rows that never win."""

    def __init__(self, fits: InclusionFits) -> None:
        self.n_settings = fits.shape.shape[1]
        dropped = np.isinf(fits.log_scale)
        shape = np.where(dropped, 0.0, fits.shape)
        log_scale = np.where(dropped, 0.0, fits.log_scale)
        steepness = shape * np.exp(-log_scale)
        crossing = steepness * fits.reach - shape  # the bound's intercept: shape · (reach / scale - 1)
        crossing += _SLACK * (np.abs(crossing) + steepness + shape)
        self.reach = _pack(fits.reach, 1.0)
        self.shape = _pack(shape, 0.0)
        self.offset = _pack(np.where(dropped, _NEVER, shape * log_scale), _NEVER)
        self.intercept = _pack(np.where(dropped, -_NEVER, crossing), -_NEVER)
        self.slope = _pack(steepness, 0.0)
        self.step = np.float32(fits.reach.max() / (_ENVELOPE_POINTS - 1))  # beyond the reach all are at the clamp
        self.envelope = np.empty((len(self.slope), _ENVELOPE_POINTS, self.n_settings), np.float32)
        kernels.envelopes(self.intercept, self.slope, self.step, self.envelope)
        self.envelope += np.float32(_SLACK) * np.abs(self.envelope)
        self.lowest = {kind: self._lowest(floor) for kind, floor in X_FLOOR.items()}

    def _lowest(self, floor: float) -> NDArray[np.float32]:
        """(chunks, S) largest score a row of the chunk can have at the clamp."""
        at_floor = self.shape * np.float32(math.log(floor) * (1.0 - _SLACK)) - self.offset
        lowest: NDArray[np.float32] = at_floor.max(axis=2)
        lowest += np.abs(lowest) * np.float32(_SLACK)
        return lowest


def _pack(values: NDArray[np.float64], padding: float) -> NDArray[np.float32]:
    n, n_settings = values.shape
    n_chunks = -(-n // CHUNK)
    padded = np.full((n_chunks * CHUNK, n_settings), padding, np.float32)
    padded[:n] = values
    return np.ascontiguousarray(padded.reshape(n_chunks, CHUNK, n_settings).transpose(0, 2, 1))
