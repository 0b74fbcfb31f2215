"""Who computes EVM: a shard owns a range of training rows, a source answers for all of them.

A shard finds the tails of its rows against the whole gallery, fits them, and tells for every query and setting its best
row. The best of all shards is the largest key, ties going to the earlier shard. Keys are the same bits for any division
into shards (see ``distances``), so the answer does not depend on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.labels import FloatArray, ProgressFn
from oscbench.numerics.evm.cpu_engine import CpuEngine
from oscbench.numerics.evm.fits import X_FLOOR, FitCounts, Grid, InclusionFits, InclusionKind, TailSetting
from oscbench.numerics.evm.gallery import Gallery, check_width, prepare_rows
from oscbench.numerics.evm.tails import ROW_TILE, tiles
from oscbench.numerics.evm.torch_engine import TorchEngine
from oscbench.numerics.kernels import refine
from oscbench.numerics.threads import usable_cpus
from oscbench.numerics.weibull import probability_of

Precision = Literal["float32", "float64"]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Winners:
    """Best row of a shard for every query and setting, each (Q, S).

    Attributes:
        key: By which shards are compared, float32 or float64.
        label: int32 class of that row.
        score: float64, what a caller of the source sees.
    """

    key: NDArray[np.floating[Any]]
    label: NDArray[np.int32]
    score: NDArray[np.float64]


def combine(parts: Sequence[Winners]) -> Winners:
    """The best over shards given in row order; on equal keys the earlier shard, hence the lower class, wins."""
    best = parts[0]
    for part in parts[1:]:
        better = part.key > best.key
        best = Winners(*(np.where(better, getattr(part, f), getattr(best, f)) for f in ("key", "label", "score")))
    return best


class RowShard:
    """Rows ``start`` to ``stop`` of a gallery: their tails, fits and scores.

    Args:
        gallery: All training rows.
        start: First row of the shard.
        stop: Row behind its last; default all.
        precision: ``float32`` is fast (winners are scored again in float64), ``float64`` the reference.
        device: ``cpu``, or a torch device for the torch code.
        threads: CPU threads; default all that this process may use.
        prune: Skip rows that cannot win; the result is the same without.
        keep_tails: Hold the tails in memory, so that further settings cost only their fits.
        compiled: Use the compiled loops for float32 on the CPU rather than torch.
    """

    def __init__(
        self,
        gallery: Gallery,
        start: int = 0,
        stop: int | None = None,
        *,
        precision: Precision = "float32",
        device: str = "cpu",
        threads: int | None = None,
        prune: bool = True,
        keep_tails: bool = True,
        compiled: bool = True,
    ) -> None:
        stop = len(gallery) if stop is None else stop
        if not 0 <= start < stop <= len(gallery):
            raise ValueError(f"rows {start}..{stop} are not a part of 0..{len(gallery)}")
        self.gallery, self.start, self.stop = gallery, start, stop
        self.precision, self.keep_tails = precision, keep_tails
        self.engine: CpuEngine | TorchEngine
        if precision == "float32" and device == "cpu" and compiled:
            self.engine = CpuEngine(gallery, start, stop, prune=prune)
        else:
            dtype = torch.float32 if precision == "float32" else torch.float64
            self.engine = TorchEngine(gallery, start, stop, dtype=dtype, device=device)
        self.threads = (threads or usable_cpus()) if device == "cpu" else 1
        self.fits: InclusionFits | None = None
        self._tails: NDArray[Any] | None = None

    def tails(self, k: int, progress: ProgressFn | None = None) -> NDArray[Any]:
        """(rows, k) ascending distances to other classes; with ``keep_tails`` computed once for the largest k."""
        if self._tails is not None and self._tails.shape[1] >= k:
            return self._tails[:, :k]
        tails = np.empty((len(self), k), self.engine.key_type)

        def store(rows: slice, block: NDArray[Any]) -> None:
            tails[rows] = block

        self._each_tail_block(k, store, progress)
        if self.keep_tails:
            self._tails = tails
        return tails

    def fit(self, settings: Sequence[TailSetting], progress: ProgressFn | None = None) -> FitCounts:
        """Fits all rows for all settings; ``best`` then answers for these."""
        grid = Grid.of(settings)
        available = self.gallery.available[self.start : self.stop]
        fits = InclusionFits.empty(len(self), len(grid))

        def fit_block(rows: slice, block: NDArray[Any]) -> None:
            self.engine.fit(block, available[rows], grid, fits[rows])

        k = int(min(grid.tail_sizes.max(), available.max()))
        if self.keep_tails:
            self.tails(k, progress)
        self._each_tail_block(k, fit_block, None if self.keep_tails else progress)
        self.use(fits)
        clipped = int((grid.tail_sizes[None, :] > available[:, None]).sum())
        return FitCounts(fits.shape.size, int(fits.constant.sum()), clipped)

    def _each_tail_block(self, k: int, use: Callable[[slice, NDArray[Any]], None], progress: ProgressFn | None) -> None:
        """Calls ``use(rows of this shard, their tails)`` block by block, from memory where the tails are there."""

        def block(tile: tuple[int, int]) -> None:
            low, high = max(tile[0], self.start), min(tile[1], self.stop)
            rows = slice(low - self.start, high - self.start)
            if self._tails is not None and self._tails.shape[1] >= k:
                use(rows, np.ascontiguousarray(self._tails[rows, :k]))
            else:
                use(rows, self.engine.tails(*tile, k)[low - tile[0] : high - tile[0]])

        self._run(block, list(tiles(self.start, self.stop, ROW_TILE, len(self.gallery))), progress)

    def use(self, fits: InclusionFits) -> None:
        """Scores with these fits from now on."""
        self.fits = fits
        self.engine.load(fits)

    def radii(self, thresholds: Sequence[float]) -> NDArray[np.float64]:
        """(rows, S) distance up to which each row includes others with the probability given for each setting."""
        return self._fitted().radii(thresholds)

    def restrict(self, keep: NDArray[np.bool_]) -> None:
        """Scores with the rows of ``keep`` (rows, S) only, until the next ``fit``."""
        self.use(self._fitted().restricted(keep))

    def best(self, queries: FloatArray, kind: InclusionKind = "log", progress: ProgressFn | None = None) -> Winners:
        """Best row for every one of (Q, D) queries and every fitted setting."""
        prepared = self._prepare(queries)
        size = (len(prepared), self._fitted().shape.shape[1])
        winners = Winners(np.empty(size, self.engine.key_type), np.empty(size, np.int32), np.empty(size))

        def block(tile: tuple[int, int]) -> None:
            rows = slice(*tile)
            key, row = self.engine.best(prepared[rows], kind)
            if self.precision == "float64":
                winners.score[rows] = key
            else:
                winners.score[rows] = self._refined(prepared[rows], row, kind)
            winners.key[rows], winners.label[rows] = key, self.gallery.labels[self.start + row]

        self._run(block, list(tiles(0, len(prepared), self.engine.query_tile, len(prepared))), progress)
        return winners

    def _refined(
        self, queries: NDArray[np.float64], row: NDArray[np.int64], kind: InclusionKind
    ) -> NDArray[np.float64]:
        """Float64 scores (B, S) of the rows that won in float32."""
        fits, score = self._fitted(), np.empty(row.shape)
        rows, cosine = self.gallery.rows[self.start : self.stop], self.gallery.metric == "cosine"
        refine(queries, rows, row, cosine, fits.shape, fits.log_scale, fits.reach, X_FLOOR[kind], score)
        return probability_of(torch.from_numpy(score)).numpy() if kind == "probability" else score

    def class_scores(self, queries: FloatArray, s: int, kind: InclusionKind, empty: float) -> NDArray[np.float64]:
        """(Q, K) scores of the s-th fitted setting; ``empty``, below all scores, is that of a class without rows."""
        prepared = self._prepare(queries)
        self._fitted()
        engine, scores = self.engine, np.empty((len(prepared), self.gallery.n_classes))
        assert isinstance(engine, TorchEngine), "class scores are for the reference engine"

        def block(tile: tuple[int, int]) -> None:
            scores[slice(*tile)] = engine.class_scores(prepared[slice(*tile)], s, kind, empty)

        self._run(block, list(tiles(0, len(prepared), engine.query_tile, len(prepared))), None)
        return scores

    def __len__(self) -> int:
        return self.stop - self.start

    def _fitted(self) -> InclusionFits:
        if self.fits is None:
            raise ValueError("the shard is not fitted yet: call fit first")
        return self.fits

    def _prepare(self, queries: FloatArray) -> NDArray[np.float64]:
        check_width(queries, self.gallery.rows.shape[1], "query features")
        return prepare_rows(queries, self.gallery.metric, "query features")

    def _run(self, function: Callable[[T], None], items: Sequence[T], progress: ProgressFn | None) -> None:
        """Calls the function for each item, on this shard's threads, and reports how many are done."""
        with workers(self.threads) as run:
            for done, _ in enumerate(run(function, items), start=1):
                if progress is not None:
                    progress(done, len(items))


@contextlib.contextmanager
def workers(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A ``map`` over threads, each of which runs its matrix products alone.

    Blocks on separate threads beat threads inside each product: there is nothing to wait for between the phases of a
    block, and its tile stays in one core's cache.
    """
    if threads == 1:
        yield map
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(before)


def row_ranges(n_rows: int, n_shards: int) -> list[tuple[int, int]]:
    """Splits rows into ranges of nearly equal length; never more ranges than rows.

    >>> row_ranges(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    if n_shards < 1:
        raise ValueError(f"n_shards must be >= 1, got {n_shards}")
    n_shards = min(n_shards, n_rows)
    edges = [i * n_rows // n_shards for i in range(n_shards + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))
