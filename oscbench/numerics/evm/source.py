"""The neighbour source of a single process, its memory plan and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from oscbench.labels import FloatArray, ProgressFn
from oscbench.numerics.evm.cover import cover_mask
from oscbench.numerics.evm.fits import FitCounts, Grid, InclusionKind, TailSetting
from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.shard import RowShard, Winners, combine, row_ranges
from oscbench.numerics.evm.tails import COLUMN_TILE, ROW_TILE

# Per row and setting: three float64 of the fit and its flag; five float32 in the layout of the scoring loop and half a
# one of its envelope (64 points for 128 rows), twice while they are being packed.
_FIT_BYTES: Final = 3 * 8 + 1 + 2 * (5 * 4 + 2)
_ANSWER_BYTES: Final = 4 + 4 + 8
_MEBIBYTE: Final = 1 << 20


class NeighborSource(Protocol):
    """Answers EVM's two questions about a fixed training set, wherever that is computed.

    Attributes:
        gallery: That training set.
        counts: What happened in the fits of the last ``best``.
        memory_budget: Bytes that whoever computes may use; ``None``: no limit.
    """

    gallery: Gallery
    counts: FitCounts
    memory_budget: int | None

    def tails(self, k: int) -> NDArray[np.float32]:
        """(N, k) ascending distances of each gallery row to rows of other classes, infinite where there are fewer."""
        ...

    def best(
        self,
        queries: FloatArray,
        settings: Sequence[TailSetting],
        *,
        score_kind: InclusionKind = "log",
        progress: ProgressFn | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Predicted class and its score for (Q, D) queries, each (Q, len(settings))."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


class LocalSource:
    """Computes in this process, as one shard or, to the same result, as several in turn.

    Settings that have a ``cover_threshold`` below 1 are reduced to a greedy cover before scoring.

    Args:
        gallery: The training rows.
        n_shards: Into how many ranges the rows are split.
        rows: First row, and the row behind the last, that this source answers for; default all.
        memory_budget: Bytes that may be used; default: no limit. What does not fit is done in several passes over the
            settings, or with tails computed again instead of kept; the results are the same.
        **options: Passed on to ``RowShard``.
    """

    def __init__(
        self,
        gallery: Gallery,
        *,
        n_shards: int = 1,
        rows: tuple[int, int] | None = None,
        memory_budget: int | None = None,
        **options: Any,
    ) -> None:
        self.gallery, self.memory_budget = gallery, memory_budget
        start, stop = rows or (0, len(gallery))
        ranges = row_ranges(stop - start, n_shards)
        self.shards = [RowShard(gallery, start + first, start + last, **options) for first, last in ranges]
        self.keep_tails = self.shards[0].keep_tails
        self.counts = FitCounts()

    def tails(self, k: int) -> NDArray[np.float32]:
        """(N, k) ascending distances of each gallery row to rows of other classes, infinite where there are fewer."""
        return np.concatenate([shard.tails(k) for shard in self.shards]).astype(np.float32, copy=False)

    def best(
        self,
        queries: FloatArray,
        settings: Sequence[TailSetting],
        *,
        score_kind: InclusionKind = "log",
        progress: ProgressFn | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Predicted class and its score for (Q, D) queries, each (Q, len(settings))."""
        winners = self.winners(queries, settings, score_kind=score_kind, progress=progress)
        return winners.label, winners.score

    def winners(
        self,
        queries: FloatArray,
        settings: Sequence[TailSetting],
        *,
        score_kind: InclusionKind = "log",
        progress: ProgressFn | None = None,
    ) -> Winners:
        """The same with the keys by which this source's rows are compared with those of others."""
        plan = self.plan(len(queries), settings)
        for shard in self.shards:
            shard.keep_tails = plan.keep_tails and self.keep_tails
        groups = [settings[i : i + plan.settings_per_pass] for i in range(0, len(settings), plan.settings_per_pass)]
        meter = Meter(progress, sum(self._fit_cost() + self._score_cost(len(queries), len(g)) for g in groups))
        self.counts = FitCounts()
        if len(groups) > 1:  # a later pass with a longer tail would find all distances anew
            longest = min(max(setting.tail_size for setting in settings), int(self.gallery.available.max()))
            for shard in self.shards:
                if shard.keep_tails:
                    shard.tails(longest)
        parts = [self._one_pass(queries, group, score_kind, meter) for group in groups]
        return Winners(*(np.hstack([getattr(part, f) for part in parts]) for f in ("key", "label", "score")))

    def _one_pass(
        self, queries: FloatArray, settings: Sequence[TailSetting], kind: InclusionKind, meter: Meter
    ) -> Winners:
        self.fit(settings, meter)
        cost = self._score_cost(len(queries), len(settings)) / len(self.shards)
        return combine([shard.best(queries, kind, meter.phase(cost)) for shard in self.shards])

    def fit(self, settings: Sequence[TailSetting], meter: Meter | None = None) -> None:
        """Fits all shards and reduces them to covers; adds to ``counts``."""
        meter = meter or Meter(None, 1.0)
        for shard in self.shards:
            self.counts += shard.fit(settings, meter.phase(self._fit_cost() / len(self.shards)))
        self._reduce([setting.cover_threshold for setting in settings])

    def _reduce(self, thresholds: Sequence[float]) -> None:
        reduced = np.flatnonzero(np.asarray(thresholds) < 1.0)
        if not len(reduced):
            return
        if sum(len(shard) for shard in self.shards) < len(self.gallery):
            raise ValueError("a cover is chosen among all rows: settings with cover_threshold < 1 need all of them")
        radii = np.concatenate([shard.radii(thresholds)[:, reduced] for shard in self.shards])
        keep = np.ones((len(self.gallery), len(thresholds)), bool)
        keep[:, reduced] = cover_mask(self.gallery, radii)
        for shard in self.shards:
            shard.restrict(keep[shard.start : shard.stop])

    def _fit_cost(self) -> float:
        """Distances of the tail phase, the unit in which progress is counted."""
        return float(len(self.gallery)) * len(self.gallery.rows)

    def _score_cost(self, n_queries: int, n_settings: int) -> float:
        """The same unit; scoring a pair for 40 settings takes about as long as a distance and its place in a tail."""
        return float(len(self.gallery)) * n_queries * (0.5 + n_settings / 40)

    def plan(self, n_queries: int, settings: Sequence[TailSetting]) -> MemoryPlan:
        """How the settings fit into the memory budget; raises when they cannot."""
        return plan_memory(
            gallery=self.gallery,
            n_rows=sum(len(shard) for shard in self.shards),
            n_queries=n_queries,
            grid=Grid.of(settings),
            budget=self.memory_budget,
            threads=self.shards[0].threads,
            query_tile=self.shards[0].engine.query_tile,
            item_bytes=np.dtype(self.shards[0].engine.key_type).itemsize,
        )

    def close(self) -> None:
        """Frees the shards."""
        self.shards = []


@dataclass(frozen=True)
class MemoryPlan:
    """How a search fits into memory: whether tails are kept, settings per pass, and the bytes this takes."""

    keep_tails: bool
    settings_per_pass: int
    needed: int


def plan_memory(
    gallery: Gallery,
    n_queries: int,
    grid: Grid,
    budget: int | None,
    *,
    threads: int,
    query_tile: int,
    n_rows: int | None = None,
    item_bytes: int = 4,
) -> MemoryPlan:
    """The fastest plan within ``budget`` bytes, for all rows of the gallery or for ``n_rows`` of them.

    Counted are the gallery and its factors, tiles of every thread, tails, fits and answers, not the interpreter and
    its libraries.

    Fewer settings per pass cost their share of the query distances again, dropped tails all of the training distances,
    so tails are kept as long as eight settings (or all) fit beside them.

    Raises:
        ValueError: Not even one setting at a time fits; the message says what is needed.
    """
    n, (total, width) = n_rows or len(gallery), gallery.rows.shape
    k = int(min(grid.tail_sizes.max(), gallery.available.max()))
    tiles = item_bytes * (ROW_TILE * (COLUMN_TILE + 2 * (2 * k + COLUMN_TILE // 4)) + query_tile * (n + COLUMN_TILE))
    fixed = (8 + 2 * item_bytes) * total * width + 8 * n_queries * width + threads * tiles
    tails, each = item_bytes * n * k, n * _FIT_BYTES
    answers = 2 * len(grid) * n_queries * _ANSWER_BYTES
    if budget is None:
        return MemoryPlan(True, len(grid), fixed + answers + tails + len(grid) * each)
    rest = budget - fixed - answers
    keep_tails = rest >= tails + min(8, len(grid)) * each
    per_pass = min(len(grid), (rest - tails * keep_tails) // each)
    if per_pass < 1:
        least = (fixed + answers + each) // _MEBIBYTE + 1
        raise ValueError(
            f"{n} training rows, {n_queries} queries and {len(grid)} settings need at least {least} MiB, the memory "
            f"budget is {budget // _MEBIBYTE} MiB; raise it, or score fewer queries at a time"
        )
    return MemoryPlan(keep_tails, per_pass, budget - rest + tails * keep_tails + per_pass * each)


class Meter:
    """One progress over several phases of known cost, in thousandths."""

    def __init__(self, progress: ProgressFn | None, total: float) -> None:
        self.progress, self.total, self.passed = progress, total, 0.0

    def phase(self, cost: float) -> ProgressFn | None:
        """The progress function of the next phase."""
        if (progress := self.progress) is None:
            return None
        before, self.passed = self.passed, self.passed + cost

        def within(done: int, of: int) -> None:
            progress(min(1000, round(1000 * (before + cost * done / of) / self.total)), 1000)

        return within
