"""Galleries, distances and their k smallest against scipy and plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from oscbench.numerics.evm.gallery import Gallery, Metric, prepare_rows
from oscbench.numerics.evm.tails import distance_tile, left_factor, right_factor, smallest_to_other_classes, tiles


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_distances_equal_scipy(metric: Metric, dtype: torch.dtype, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 7)), rng.normal(size=(40, 7))
    left = torch.as_tensor(left_factor(prepare_rows(a, metric, "a"), metric), dtype=dtype)
    right = torch.as_tensor(right_factor(prepare_rows(b, metric, "b"), metric), dtype=dtype)
    np.testing.assert_allclose(distance_tile(left, right, metric).numpy(), cdist(a, b, metric), atol=tolerance)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_smallest_distances_to_other_classes(metric: Metric) -> None:
    rng = np.random.default_rng(1)
    rows, labels, others = rng.normal(size=(60, 5)), rng.integers(0, 4, 60), rng.normal(size=(9, 5))
    gallery = Gallery.build(rows, labels, 4, metric=metric, others=others)
    left, right = (torch.from_numpy(f(gallery.rows, metric)) for f in (left_factor, right_factor))
    found = smallest_to_other_classes(gallery, 0, 60, 60, left=left, right=right).numpy()
    everything = cdist(np.vstack([rows, others]), np.vstack([rows, others]), metric)
    all_labels = np.concatenate([labels, np.full(9, -1)])
    for place, row in enumerate(gallery.order):
        expected = np.sort(everything[row, all_labels != labels[row]])
        assert gallery.available[place] == len(expected)
        np.testing.assert_allclose(found[place, : len(expected)], expected[:60], atol=1e-7)
        assert np.isinf(found[place, len(expected) :]).all()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=40).filter(lambda labels: len(set(labels)) > 1))
def test_gallery_is_sorted_and_complete(labels: list[int]) -> None:
    rows = np.random.default_rng(0).normal(size=(len(labels), 3))
    gallery = Gallery.build(rows, np.array(labels), 5, metric="euclidean")
    np.testing.assert_array_equal(gallery.rows, rows[gallery.order])
    np.testing.assert_array_equal(gallery.labels, np.array(labels)[gallery.order])
    assert (np.diff(gallery.labels) >= 0).all()
    assert gallery.empty_classes == tuple(c for c in range(5) if c not in labels)
    for c in range(5):
        first, last = gallery.class_starts[c : c + 2]
        assert gallery.labels[first:last].tolist() == [c] * labels.count(c)
        assert (np.diff(gallery.order[first:last]) > 0).all()  # sample order within a class


def test_tiles_lie_on_one_grid() -> None:
    assert list(tiles(0, 10, 4, 10)) == [(0, 4), (4, 8), (8, 10)]
    assert list(tiles(5, 9, 4, 10)) == [(4, 8), (8, 10)]
    assert list(tiles(4, 8, 4, 10)) == [(4, 8)]


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (np.ones((0, 2)), np.zeros(0, int), "at least one row"),
        (np.ones((3, 2)), np.zeros(2, int), "3 rows with 2 labels"),
        (np.ones((2, 2)), np.array([0, 3]), r"labels must be 0..2, got 0..3"),
        (np.ones((2, 2)), np.array([1, 1]), "all 2 rows are of class 1"),
        (np.array([[1.0, 1.0], [np.nan, 1.0]]), np.array([0, 1]), "row 1 holds NaN or infinity"),
        (np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([0, 1]), "row 1 has length zero"),
    ],
)
def test_bad_rows_are_named(rows: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gallery.build(rows, labels, 3)


def test_bad_metric_and_width() -> None:
    with pytest.raises(ValueError, match="metric must be one of cosine, euclidean, got 'manhattan'"):
        prepare_rows(np.ones((1, 1)), "manhattan", "rows")
    with pytest.raises(ValueError, match=r"shape \(1, 3\), the training features are 2 wide"):
        Gallery.build(np.ones((2, 2)), np.array([0, 1]), 2, others=np.ones((1, 3)))
