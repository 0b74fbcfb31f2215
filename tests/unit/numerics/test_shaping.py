"""Sums over the largest features against sorting row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oscbench.numerics.principal import principal_directions, residual_squares
from oscbench.numerics.shaping import kept_features, top_logits, top_shares


@given(st.integers(0, 10_000), st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
def test_a_walk_equals_a_sum_for_every_number_of_kept_features(seed: int, kept: list[int]) -> None:
    rng, kept = np.random.default_rng(seed), sorted(kept)
    features = np.round(rng.normal(size=(9, 12)), 1)  # ties, negatives
    columns = rng.normal(size=(12, 5))
    (weighted, sums), (plain, same) = (
        top_logits(features, columns, np.array(kept), weighted=weighted) for weighted in (True, False)
    )
    np.testing.assert_array_equal(sums, same)
    shares = top_shares(features, kept)
    for n, row in enumerate(np.maximum(features, 0)):
        order = sorted(range(12), key=lambda i: (-row[i], i))
        for s, k in enumerate(kept):
            np.testing.assert_allclose(weighted[n, s], sum(row[i] * columns[i] for i in order[:k]), atol=1e-12)
            np.testing.assert_allclose(plain[n, s], sum(columns[i] for i in order[:k]), atol=1e-12)
            top = sum(row[i] for i in order[:k])
            np.testing.assert_allclose(sums[n, s], top, atol=1e-12)
            np.testing.assert_allclose(shares[n, s], row.sum() / top if top else 1.0)


def test_half_a_feature_is_rounded_to_even() -> None:
    assert [kept_features(50, p) for p in (85.0, 95.0, 99.0)] == [8, 2, 1]  # 42.5 -> 42, 47.5 -> 48, 49.5 -> 50
    assert kept_features(64, 0.0) == 64


@given(st.integers(0, 10_000))
def test_remainders_are_lengths_outside_the_first_directions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, asked = rng.normal(size=(30, 6)) * np.arange(1, 7), rng.normal(size=(4, 6))
    values, directions = principal_directions(np.array_split(rows, 3))
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(directions @ np.diag(values) @ directions.T, rows.T @ rows, atol=1e-9)
    squares = residual_squares(asked @ directions)
    for dim in range(7):
        kept = directions[:, :dim]
        rest = asked - asked @ kept @ kept.T
        np.testing.assert_allclose(squares[:, dim], (rest**2).sum(axis=1), atol=1e-10)
