"""The greedy cover: everything covered, the same every time, near the exhaustive optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from oscbench.numerics.evm.cover import cover_mask, greedy_cover
from oscbench.numerics.evm.gallery import Gallery


def smallest_cover(covers: np.ndarray) -> int:
    """Tries all subsets, smallest first."""
    n = len(covers)
    for size in range(1, n + 1):
        for rows in itertools.combinations(range(n), size):
            if covers[list(rows)].any(axis=0).all():
                return size
    raise AssertionError("a row covers itself, so all rows are a cover")


@settings(max_examples=80)
@given(st.integers(0, 100_000), st.integers(1, 9), st.floats(0.0, 1.0))
def test_cover_is_complete_and_near_the_optimum(seed: int, n: int, density: float) -> None:
    covers = np.random.default_rng(seed).random((n, n)) < density
    before = covers.copy()
    kept = greedy_cover(covers)
    np.testing.assert_array_equal(covers, before)
    own = covers | np.eye(n, dtype=bool)
    assert own[kept].any(axis=0).all()
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(greedy_cover(covers), kept)
    harmonic = sum(1 / i for i in range(1, n + 1))
    assert len(kept) <= harmonic * smallest_cover(own)


def test_ties_go_to_the_lowest_row() -> None:
    assert greedy_cover(np.ones((4, 4), bool)).tolist() == [0]
    pairs = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), bool))
    assert greedy_cover(pairs).tolist() == [0, 2]


def test_row_that_nothing_covers_is_kept() -> None:
    assert greedy_cover(np.zeros((3, 3), bool)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_mask_covers_each_class_on_its_own(metric: str) -> None:
    rng = np.random.default_rng(4)
    rows, labels = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)
    gallery = Gallery.build(rows, labels, 3, metric=metric)
    radii = np.abs(rng.normal(0.6, 0.2, (50, 2)))
    keep = cover_mask(gallery, radii)
    distances = cdist(rows[gallery.order], rows[gallery.order], metric)
    for s in range(2):
        assert 0 < keep[:, s].sum() < 50
        for j in range(50):
            same = keep[:, s] & (gallery.labels == gallery.labels[j])
            assert keep[j, s] or (distances[same, j] <= radii[same, s]).any()
