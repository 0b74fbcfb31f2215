"""Percentiles in blocks against numpy's of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscbench.numerics.quantiles import percentiles

VALUES = st.lists(
    st.one_of(st.just(0.0), st.just(-0.0), st.floats(-1e6, 1e6), st.floats(0, 1e-30)), min_size=1, max_size=60
)


@given(VALUES, st.lists(st.floats(0, 100), min_size=1, max_size=5), st.integers(1, 7))
def test_blocks_give_what_numpy_gives_of_the_whole(values: list[float], wanted: list[float], size: int) -> None:
    whole = np.array(values)
    blocks = [whole[first : first + size] for first in range(0, len(whole), size)]
    found = percentiles(lambda: iter(blocks), wanted)
    np.testing.assert_allclose(found, np.percentile(whole, wanted), rtol=1e-12, atol=1e-12 * np.abs(whole).max())


@pytest.mark.parametrize("seed", range(3))
def test_features_behind_a_relu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = np.maximum(rng.normal(size=(500, 40)), 0).astype(np.float32).astype(np.float64)
    wanted = [0.0, 0.1, 10.0, 49.9, 50.0, 85.0, 99.9, 100.0]
    found = percentiles(lambda: np.array_split(whole, 7), wanted)
    np.testing.assert_allclose(found, np.percentile(whole, wanted), rtol=1e-14)
