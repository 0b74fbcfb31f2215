"""Largest products and sums of relations against the whole matrix, in any number of parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.numerics import topk
from oscbench.numerics.evm.shard import row_ranges
from oscbench.numerics.topk import (
    NO_ROW,
    ProductRows,
    largest_products,
    merge_ranked,
    nearest_rows,
    products_of,
    ranked_rows,
    related_sums,
    rows_of,
)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_products_are_those_of_the_whole_matrix(seed: int, n: int, q: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    gallery, queries = np.round(rng.normal(size=(n, 3)), 1), np.round(rng.normal(size=(q, 3)), 1)  # ties
    found = largest_products(queries, gallery, k)
    whole = -np.sort(-(queries @ gallery.T), axis=1)
    expected = np.full((q, k), -np.inf)
    expected[:, : min(n, k)] = whole[:, : min(n, k)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_keys_name_the_rows_in_the_order_of_their_products(seed: int, n: int, q: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    gallery = rng.integers(-2, 3, size=(n, 3)).astype(np.float32)  # exact products, ties, zeros of both signs
    queries = rng.integers(-2, 3, size=(q, 3)).astype(np.float32)
    keys = ranked_rows(queries, gallery, k)
    products = queries @ gallery.T
    for found, row in zip(keys, products, strict=True):
        order = sorted(range(n), key=lambda i: (-row[i], i))[:k]
        there = found[found != NO_ROW]
        np.testing.assert_array_equal(products_of(there), row[order])
        assert rows_of(there).tolist() == order
        assert np.isneginf(products_of(found)[len(there) :]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_rows_than_a_tile_holds(dtype: type[np.floating]) -> None:
    """With k above and below the rows of a tile."""
    rng = np.random.default_rng(3)
    gallery, queries = rng.normal(size=(9001, 16)).astype(dtype), rng.normal(size=(300, 16)).astype(dtype)
    for k in (7, 2000):
        whole = largest_products(queries, gallery, k)
        order = np.sort(queries.astype(float) @ gallery.astype(float).T, axis=1)[:, ::-1][:, :k]
        np.testing.assert_allclose(whole, order, atol=2e-5 if dtype is np.float32 else 1e-12)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_any_number_of_parts_gives_the_same_keys(shards: int) -> None:
    rng = np.random.default_rng(3)
    gallery, queries = (rng.normal(size=(n, 16)).astype(np.float32) for n in (9001, 300))
    for k in (7, 2000):
        whole = ranked_rows(queries, gallery, k)
        parts = [ranked_rows(queries, gallery, k, rows=rows) for rows in row_ranges(len(gallery), shards)]
        np.testing.assert_array_equal(merge_ranked(parts), whole)
        found = np.take_along_axis(queries.astype(float) @ gallery.astype(float).T, rows_of(whole), axis=1)
        np.testing.assert_allclose(products_of(whole), found, atol=2e-5)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 50))
def test_the_lines_for_a_gpu_give_the_same_keys_on_the_cpu(seed: int, n: int, k: int) -> None:
    """Exact products with ties and zeros of both signs."""
    rng = np.random.default_rng(seed)
    gallery, queries = (rng.integers(-2, 3, size=(rows, 3)).astype(np.float32) for rows in (n, 7))
    np.testing.assert_array_equal(ranked_rows(queries, gallery, k, device="cpu:0"), ranked_rows(queries, gallery, k))


@pytest.mark.parametrize("rows", [(100, 4999), (100, 110), (4096, 4096)])
def test_the_lines_for_a_gpu_know_ranges_and_tiles(rows: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    gallery, queries = rng.integers(-3, 4, size=(5000, 8)), rng.integers(-3, 4, size=(600, 8))
    weights, asked = rng.integers(0, 3, size=(5000, 4)), rng.integers(0, 3, size=(600, 4))
    held = ProductRows(gallery.astype(np.float32), weights.astype(np.float32))
    for _ in range(2):  # the second time with what is on the device already
        found = held.ranked(queries.astype(np.float64), 20, 4998, rows=rows, device="cpu:0")
        np.testing.assert_array_equal(found, held.ranked(queries.astype(np.float64), 20, 4998, rows=rows))
        sums = held.related(queries, asked, [1, 3], 0.03, rows=rows, device="cpu:0")
        np.testing.assert_allclose(sums, held.related(queries, asked, [1, 3], 0.03, rows=rows), rtol=1e-12)


def test_rows_that_may_not_be_written_to_are_read_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """As Ray's object store gives them."""
    gallery = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    gallery.flags.writeable = False
    ranked_rows(np.ones((2, 4)), gallery, 3)
    assert not recwarn.list


def test_the_nearest_row_is_the_first_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    gallery, queries = rng.integers(-2, 3, size=(40, 3)).astype(float), rng.integers(-2, 3, size=(30, 3)).astype(float)
    monkeypatch.setattr(topk, "MATRIX_VALUES", 200)  # five queries at a time
    expected = [max(range(40), key=lambda i: (row @ gallery[i], -i)) for row in queries]
    assert nearest_rows(queries, gallery).tolist() == expected


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_sums_of_relations_are_those_of_the_whole_matrix(shards: int) -> None:
    """Within 1e-12: sums of parts add in another order."""
    rng = np.random.default_rng(5)
    gallery, queries = rng.normal(size=(5000, 8)), rng.normal(size=(40, 8))
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    ours, theirs = rng.dirichlet(np.ones(4), 40), rng.dirichlet(np.ones(4), 5000)
    parts = [
        related_sums(queries, gallery, ours, theirs, [1, 2, 6], 0.03, rows=rows)
        for rows in row_ranges(len(gallery), shards)
    ]
    r = np.maximum(queries @ gallery.T, 0) * (ours @ theirs.T)
    expected = np.stack([np.where(r > 0.03, r**p, 0).sum(axis=1) for p in (1, 2, 6)], axis=1)
    np.testing.assert_allclose(sum(parts), expected, rtol=1e-10)
