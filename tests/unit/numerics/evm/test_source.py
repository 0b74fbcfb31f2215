"""Shards and the local source: equal answers however the rows are split, whatever is pruned, whoever computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.numerics.evm.fits import LOG_SCORE_OF_ONE, Grid, InclusionKind
from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.shard import RowShard, combine, row_ranges
from oscbench.numerics.evm.source import LocalSource, plan_memory


@dataclass(frozen=True)
class Setting:
    tail_size: int
    distance_multiplier: float
    cover_threshold: float = 1.0


SETTINGS = [Setting(t, m) for t in (1, 7, 120, 30) for m in (0.5, 0.1)]
KINDS: tuple[InclusionKind, ...] = ("log", "probability")
ENGINES = {
    "compiled": {"precision": "float32"},
    "torch32": {"precision": "float32", "compiled": False},
    "float64": {"precision": "float64"},
}


def clustered(n: int, n_classes: int, dim: int, seed: int, *, copies: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around class means, some of them exact copies of others, across classes too."""
    means = np.random.default_rng(n_classes).normal(size=(n_classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    rows = 1.5 * means[labels] + rng.normal(size=(n, dim))
    if copies:
        rows[rng.integers(0, n, copies)] = rows[rng.integers(0, n, copies)]
    return rows.astype(np.float32), labels


ROWS, LABELS = clustered(400, 6, 8, seed=0, copies=30)
GALLERY = Gallery.build(ROWS, LABELS, 6)
QUERIES = np.vstack([clustered(80, 6, 8, seed=1)[0], ROWS[:10], -ROWS[:10]])


def answers(kind: InclusionKind, **options):
    return LocalSource(GALLERY, **options).best(QUERIES, SETTINGS, score_kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_number_of_shards_changes_nothing(engine: str, kind: InclusionKind) -> None:
    label, score = answers(kind, **ENGINES[engine])
    for n_shards in (2, 3, 7):
        again = answers(kind, n_shards=n_shards, **ENGINES[engine])
        np.testing.assert_array_equal(again[0], label)
        np.testing.assert_array_equal(again[1], score)


def test_many_tiles_and_many_shards() -> None:
    """More rows than a column tile, so that shard edges cut tiles."""
    rows, labels = clustered(5_000, 5, 6, seed=3)
    gallery = Gallery.build(rows, labels, 5)
    picked = [Setting(20, 0.5), Setting(300, 0.2)]
    label, score = LocalSource(gallery).best(QUERIES[:, :6], picked)
    for n_shards in (2, 7):
        again = LocalSource(gallery, n_shards=n_shards, threads=1).best(QUERIES[:, :6], picked)
        np.testing.assert_array_equal(again[0], label)
        np.testing.assert_array_equal(again[1], score)
    tails = RowShard(gallery, 2_400, 2_600, precision="float64").tails(300)
    np.testing.assert_allclose(RowShard(gallery, 2_400, 2_600).tails(300), tails, atol=5e-7)


@settings(max_examples=25)
@given(
    st.integers(0, 1_000),
    st.sampled_from(["cosine", "euclidean"]),
    st.sampled_from(KINDS),
    st.floats(0.01, 30.0),
)
def test_pruning_changes_nothing(seed: int, metric: str, kind: InclusionKind, distance: float) -> None:
    rows, labels = clustered(300, 4, 5, seed, copies=20)
    gallery = Gallery.build(rows, labels, 4, metric=metric)
    queries = distance * np.random.default_rng(seed).normal(size=(40, 5))
    pruned, full = (
        LocalSource(gallery, prune=prune).best(queries, SETTINGS, score_kind=kind) for prune in (True, False)
    )
    np.testing.assert_array_equal(pruned[0], full[0])
    np.testing.assert_array_equal(pruned[1], full[1])


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["compiled", "torch32"])
def test_float32_is_near_float64(engine: str, kind: InclusionKind, metric: str) -> None:
    """Steps (shape 1e6) turn float32 distances into anything, so settings with tail 1 are left out.

    So are copied rows: a Euclidean distance of 0 comes out of the float32 product as up to 1e-3.
    """
    gallery = Gallery.build(*clustered(400, 6, 8, seed=0), 6, metric=metric)
    queries = clustered(80, 6, 8, seed=1)[0]
    smooth = [setting.tail_size > 1 for setting in SETTINGS]
    (label, score), (label32, score32) = (
        [a[:, smooth] for a in LocalSource(gallery, **options).best(queries, SETTINGS, score_kind=kind)]
        for options in (ENGINES["float64"], ENGINES[engine])
    )
    np.testing.assert_allclose(score32, score, rtol=1e-4, atol=1e-4)
    assert (label32 != label).mean() < 0.002


@pytest.mark.parametrize("kind", KINDS)
def test_best_is_the_maximum_of_class_scores(kind: InclusionKind) -> None:
    label, score = answers(kind, precision="float64")
    shard = RowShard(GALLERY, precision="float64")
    shard.fit(SETTINGS)
    for s in range(len(SETTINGS)):
        scores = shard.class_scores(QUERIES, s, kind, -1e300)
        np.testing.assert_array_equal(scores.argmax(axis=1), label[:, s])
        np.testing.assert_array_equal(scores.max(axis=1), score[:, s])


@pytest.mark.parametrize("engine", ENGINES)
def test_classes_of_probability_one_tie_and_the_lowest_wins(engine: str) -> None:
    smooth = [Setting(7, 3.0), Setting(30, 5.0)]
    shard = RowShard(GALLERY, precision="float64")
    shard.fit(smooth)
    label, score = LocalSource(GALLERY, **ENGINES[engine]).best(QUERIES, smooth, score_kind="probability")
    for s in range(len(smooth)):
        log = shard.class_scores(QUERIES, s, "log", -1e300)
        sure = (np.abs(log - LOG_SCORE_OF_ONE) > 0.01).all(axis=1)
        tied = sure & ((log > LOG_SCORE_OF_ONE).sum(axis=1) > 1)
        assert (log.argmax(axis=1) != label[:, s])[tied].any()
        np.testing.assert_array_equal(label[tied, s], (log > LOG_SCORE_OF_ONE).argmax(axis=1)[tied])
        assert (score[tied, s] == 1.0).all()


@pytest.mark.parametrize("engine", ["compiled", "torch32"])
def test_probabilities_of_a_few_steps_above_zero_tie_as_in_float64(engine: str) -> None:
    """There log scores apart by tenths have one probability, and the lowest class among them wins."""
    gallery = Gallery.build(*clustered(600, 12, 32, seed=0), 12)
    queries, settings = np.random.default_rng(5).normal(size=(2000, 32)), [Setting(10, 0.3), Setting(100, 0.2)]
    by_log, _ = LocalSource(gallery, precision="float64").best(queries, settings, score_kind="log")
    label, score = LocalSource(gallery, precision="float64").best(queries, settings, score_kind="probability")
    label32, _ = LocalSource(gallery, **ENGINES[engine]).best(queries, settings, score_kind="probability")
    tied = (score > 0.0) & (score < 1e-14) & (by_log != label)
    assert tied.sum() >= 10
    np.testing.assert_array_equal(label32[tied], label[tied])
    np.testing.assert_array_equal(label32[score == 0.0], label[score == 0.0])


def test_tails_ascend_and_leave_out_the_own_class() -> None:
    source = LocalSource(GALLERY, n_shards=3)
    tails = source.tails(350)
    assert tails.dtype == np.float32
    assert tails.shape == (400, 350)
    unit = GALLERY.rows
    for row in (0, 200, 399):
        expected = np.sort(1 - unit[GALLERY.labels != GALLERY.labels[row]] @ unit[row])[:350]
        np.testing.assert_allclose(tails[row, : len(expected)], np.maximum(expected, 0), atol=3e-7)
        assert np.isinf(tails[row, len(expected) :]).all()
    np.testing.assert_array_equal(source.tails(10), tails[:, :10])


class CountedTails:
    """An engine that writes down which rows it finds tails for, and how long ones."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.found: list[tuple[int, int, int]] = []

    def tails(self, first: int, last: int, k: int) -> np.ndarray:
        self.found.append((first, last, k))
        return self._engine.tails(first, last, k)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def counted_source(**options: Any) -> tuple[LocalSource, Callable[[], list[tuple[int, int, int]]]]:
    """A source, and what it has had computed since it was last asked for it, in order of rows."""
    source = LocalSource(GALLERY, **options)
    engines = [CountedTails(shard.engine) for shard in source.shards]
    for shard, engine in zip(source.shards, engines, strict=True):
        shard.engine = engine

    def found() -> list[tuple[int, int, int]]:
        tiles = sorted(tile for engine in engines for tile in engine.found)
        for engine in engines:
            engine.found = []
        return tiles

    return source, found


@pytest.mark.parametrize("engine", ENGINES)
def test_tails_are_computed_once_for_the_longest(engine: str) -> None:
    source, found = counted_source(**ENGINES[engine])
    source.best(QUERIES, SETTINGS)
    assert found() == [(0, 256, 120), (256, 400, 120)]
    again = source.best(QUERIES, SETTINGS[:4])
    source.best(QUERIES, [Setting(120, 0.3), Setting(2, 0.9)], score_kind="probability")
    source.tails(120)
    assert found() == []
    for kept, fresh in zip(again, LocalSource(GALLERY, **ENGINES[engine]).best(QUERIES, SETTINGS[:4]), strict=True):
        np.testing.assert_array_equal(kept, fresh)
    source.best(QUERIES, [Setting(121, 0.3)])
    assert found() == [(0, 256, 121), (256, 400, 121)]


@pytest.mark.parametrize("engine", ENGINES)
def test_tails_that_are_not_kept_are_computed_for_each_question(engine: str) -> None:
    source, found = counted_source(keep_tails=False, **ENGINES[engine])
    for _ in range(2):
        source.best(QUERIES, SETTINGS)
        assert found() == [(0, 256, 120), (256, 400, 120)]


def test_a_memory_budget_of_several_passes_computes_tails_once() -> None:
    rising = [Setting(t, m) for t in (1, 7, 30, 120) for m in (0.5, 0.1, 0.3, 0.9)]
    free = LocalSource(GALLERY)
    needed = free.plan(len(QUERIES), rising).needed
    plans = {
        size: LocalSource(GALLERY, memory_budget=size).plan(len(QUERIES), rising)
        for size in range(needed - (1 << 19), needed, 1 << 14)
    }
    budget = min(size for size, plan in plans.items() if plan.keep_tails)
    source, found = counted_source(memory_budget=budget)
    assert plans[budget].settings_per_pass < 12, "the longest tails must be in the second pass"
    answer = source.best(QUERIES, rising)
    assert found() == [(0, 256, 120), (256, 400, 120)]
    label, score = free.best(QUERIES, rising)
    np.testing.assert_array_equal(answer[0], label)
    np.testing.assert_allclose(answer[1], score, rtol=1e-9)  # a fit starts from its neighbour in the same pass


def test_each_shard_computes_the_tails_of_its_own_rows_once() -> None:
    source, found = counted_source(n_shards=2)
    source.best(QUERIES, SETTINGS)
    assert found() == [(0, 256, 120), (0, 256, 120), (256, 400, 120)]  # the first tile has rows of both
    source.best(QUERIES, SETTINGS)
    assert found() == []


def test_counts_of_constant_and_clipped_tails() -> None:
    source = LocalSource(GALLERY, n_shards=2)
    source.best(QUERIES[:3], [Setting(1, 0.5), Setting(5, 0.5), Setting(390, 0.5)])
    assert source.counts.fits == 3 * 400
    assert source.counts.constant >= 400
    assert source.counts.clipped == 400


def test_one_thread_equals_two() -> None:
    for a, b in zip(answers("log", threads=1), answers("log", threads=2), strict=True):
        np.testing.assert_array_equal(a, b)


def test_cover_restricts_the_rows_in_every_engine() -> None:
    """Shards give the union's cover; fewer rows can only lower a score; the float32 path agrees."""
    picked = [Setting(20, 0.7), Setting(20, 0.7, 0.5), Setting(20, 0.7, 0.99)]
    label, score = LocalSource(GALLERY, precision="float64").best(QUERIES, picked)
    assert (score[:, 1] <= score[:, 0]).all()
    assert (score[:, 1] < score[:, 0]).any()
    for options in ({"n_shards": 3, "precision": "float64"}, {"n_shards": 2}):
        again = LocalSource(GALLERY, **options).best(QUERIES, picked)
        np.testing.assert_allclose(again[1], score, rtol=1e-3, atol=1e-3)
        assert (again[0] != label).mean() < 0.01


def test_memory_budget_gives_the_same_answer_in_less() -> None:
    label, score = answers("log")
    whole = LocalSource(GALLERY).plan(len(QUERIES), SETTINGS)
    assert whole.keep_tails
    assert whole.settings_per_pass == len(SETTINGS)
    budgets = (whole.needed, whole.needed - 100_000, whole.needed - 350_000)
    plans = [LocalSource(GALLERY, memory_budget=b).plan(len(QUERIES), SETTINGS) for b in budgets]
    assert plans[0] == whole
    assert [plan.settings_per_pass for plan in plans][1:] != [len(SETTINGS)] * 2
    assert not plans[2].keep_tails
    for budget, plan in zip(budgets, plans, strict=True):
        assert plan.needed <= budget
        again = answers("log", memory_budget=budget)
        np.testing.assert_array_equal(again[0], label)
        # a fit starts from its neighbours in the grid, so other groups of settings differ in the last bits
        np.testing.assert_allclose(again[1], score, rtol=1e-10)


def test_budget_too_small_says_what_is_needed() -> None:
    with pytest.raises(ValueError, match=r"400 training rows, 100 queries and 8 settings need at least \d+ MiB"):
        answers("log", memory_budget=1 << 20)


def test_plan_at_protocol_1_size_is_below_four_gibibytes() -> None:
    class Sized:
        """A gallery of that size without its rows."""

        rows = np.broadcast_to(0.0, (116_218, 116))
        available = np.full(1, 115_000)

        def __len__(self) -> int:
            return 116_218

    eighty = Grid.of([Setting(t, m) for t in (10, 1000) for m in (0.1, 0.5)] * 20)
    plan = plan_memory(Sized(), 46_475, eighty, 4 << 30, threads=2, query_tile=64)
    assert plan.keep_tails
    assert plan.settings_per_pass == 80


def test_progress_runs_from_start_to_end_over_both_phases() -> None:
    seen: list[tuple[int, int]] = []
    source = LocalSource(GALLERY, n_shards=2, threads=1)
    source.best(QUERIES, SETTINGS, progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (1000, 1000)
    assert any(0 < d <= 500 for d in done)
    assert any(860 < d < 1000 for d in done)


@given(st.integers(1, 500), st.integers(1, 20))
def test_row_ranges_cover_all_rows_once(n_rows: int, n_shards: int) -> None:
    ranges = row_ranges(n_rows, n_shards)
    assert [row for first, last in ranges for row in range(first, last)] == list(range(n_rows))
    lengths = [last - first for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert len(ranges) == min(n_rows, n_shards)


def test_combining_prefers_the_earlier_shard_on_ties() -> None:
    shards = [RowShard(GALLERY, *rows) for rows in row_ranges(400, 2)]
    for shard in shards:
        shard.fit(SETTINGS)
    first, second = (shard.best(QUERIES) for shard in shards)
    second.key[:] = first.key
    np.testing.assert_array_equal(combine([first, second]).label, first.label)
    second.key[0] += 1
    np.testing.assert_array_equal(combine([first, second]).label[0], second.label[0])


@pytest.mark.parametrize(
    ("queries", "picked", "message"),
    [
        (np.ones((2, 9)), SETTINGS, r"query features have shape \(2, 9\), the training features are 8 wide"),
        (np.zeros((2, 8)), SETTINGS, "query features: row 0 has length zero"),
        (np.full((2, 8), np.inf), SETTINGS, "query features: row 0 holds NaN or infinity"),
        (np.ones((2, 8)), [], "at least one setting"),
        (np.ones((2, 8)), [Setting(0, 1.0)], "tail_size must be >= 1, got 0"),
        (np.ones((2, 8)), [Setting(3, 0.0)], "distance_multiplier must be > 0, got 0.0"),
    ],
)
def test_bad_questions_are_refused(queries: np.ndarray, picked: list[Setting], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalSource(GALLERY).best(queries, picked)


def test_features_beyond_float32_are_refused() -> None:
    rows = 1e20 * ROWS.astype(np.float64)
    gallery = Gallery.build(rows, LABELS, 6, metric="euclidean")
    with pytest.raises(ValueError, match="row 0 is too large for float32 distances"):
        LocalSource(gallery).best(QUERIES, SETTINGS)
    label, score = LocalSource(gallery, precision="float64").best(rows[:5], SETTINGS)
    assert np.isfinite(score).all()
    with pytest.raises(ValueError, match="row 0 is too large for float32 distances"):
        LocalSource(Gallery.build(ROWS, LABELS, 6, metric="euclidean")).best(rows, SETTINGS)


def test_bad_shards_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows 5..5 are not a part of 0..400"):
        RowShard(GALLERY, 5, 5)
    with pytest.raises(ValueError, match="not fitted"):
        RowShard(GALLERY).best(QUERIES)
    with pytest.raises(ValueError, match="n_shards must be >= 1"):
        LocalSource(GALLERY, n_shards=0)
