"""Weibull fits against scipy, a likelihood scan and the distribution function written out."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from oscbench.numerics import weibull
from oscbench.numerics.weibull import (
    STEP_SHAPE,
    WeibullFits,
    fit_log_tails,
    fit_low_tails,
    log_exponent,
    probability_of,
)


def likelihood_equation(x: np.ndarray, k: float) -> float:
    """Left side of the shape's equation, from the textbook, with x scaled to stay in range."""
    z = (x / x.max()) ** k
    return float((z * np.log(x)).sum() / z.sum() - 1 / k - np.log(x).mean())


def slow_fit(x: np.ndarray) -> tuple[float, float]:
    k = optimize.brentq(lambda k: likelihood_equation(x, k), 1e-3, 1e7, xtol=1e-12, rtol=1e-14)
    return k, float(x.max() * np.mean((x / x.max()) ** k) ** (1 / k))


def fit_high_tails(distances: np.ndarray, multiplier: float) -> WeibullFits:
    """The largest distances, as OpenMax fits them: with the sign changed they are the smallest."""
    return fit_low_tails(-distances, multiplier)


def cdf(x: torch.Tensor, shape: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    """The distribution function made of the two pieces that the scores use."""
    return probability_of(log_exponent(x, shape, log_scale, floor=float(np.finfo(np.float64).tiny)))


@pytest.mark.parametrize("spread", [1.0, 0.1, 1e-3, 1e-4])
@pytest.mark.parametrize("tail", [2, 3, 25, 1000])
def test_low_tails_solve_the_likelihood_equation(spread: float, tail: int) -> None:
    distances = np.random.default_rng(tail).gamma(2.0, 1.0, (5, tail)) * spread
    for multiplier in (0.1, 1.0):
        fits = fit_low_tails(distances, multiplier)
        for row, shape, scale in zip(distances, fits.shape, fits.scale, strict=True):
            expected = slow_fit(1 + multiplier * (row.max() - row))
            assert (float(shape), float(scale)) == pytest.approx(expected, rel=1e-7)


def test_fit_agrees_with_scipy() -> None:
    d = np.random.default_rng(3).gamma(3.0, 0.1, (4, 300))
    low, high = fit_low_tails(d, 0.7), fit_high_tails(d, 1.7)
    for i, row in enumerate(d):
        shape, _, scale = stats.weibull_min.fit(1 + 0.7 * (row.max() - row), floc=0)
        assert (float(low.shape[i]), float(low.scale[i])) == pytest.approx((shape, scale), rel=1e-4)
        shape, _, scale = stats.weibull_min.fit(1 + 1.7 * (row - row.min()), floc=0)
        assert (float(high.shape[i]), float(high.scale[i])) == pytest.approx((shape, scale), rel=1e-4)


def test_known_parameters_are_recovered() -> None:
    x = stats.weibull_min.rvs(40.0, scale=1.5, size=(1, 200_000), random_state=1)
    fits = fit_log_tails(torch.log(torch.as_tensor(x)))
    assert float(fits.shape) == pytest.approx(40.0, rel=0.01)
    assert float(fits.scale) == pytest.approx(1.5, rel=0.001)


def test_constant_and_single_tails_become_a_step() -> None:
    fits = fit_low_tails(np.array([[0.3, 0.3, 0.3], [0.1, 0.2, 0.3], [0.3, 0.3, 0.3 + 1e-9]]), 0.5)
    assert fits.constant.tolist() == [True, False, True]
    assert fits.shape[0] == STEP_SHAPE
    assert fits.scale[0] == 1.0
    assert fit_high_tails(np.array([[0.7]]), 2.0).constant.tolist() == [True]
    x = torch.tensor([0.999, 1.001], dtype=torch.float64)
    assert cdf(x, fits.shape[:1], fits.log_scale[:1]).tolist() == [0.0, 1.0]


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.0, 2.0, width=32), min_size=2, max_size=30),
    st.sampled_from([0.1, 0.5, 1.0, 2.3]),
)
def test_any_tail_gets_finite_parameters(values: list[float], multiplier: float) -> None:
    row = np.array([values])
    for fits in (fit_low_tails(row, multiplier), fit_high_tails(row, multiplier)):
        assert torch.isfinite(fits.shape).all()
        assert torch.isfinite(fits.log_scale).all()
        assert (fits.shape > 0).all()
        assert (fits.log_scale >= 0).all()  # every x is at least 1, so is the power mean
    order = np.random.default_rng(0).permutation(len(values))
    again = fit_low_tails(row[:, order], multiplier)
    assert torch.allclose(again.shape, fit_low_tails(row, multiplier).shape, rtol=1e-6)


def test_rows_do_not_influence_each_other() -> None:
    d = np.random.default_rng(5).gamma(2.0, 0.2, (64, 40))
    together = fit_low_tails(d, 0.4)
    alone = [fit_low_tails(d[i : i + 1], 0.4) for i in range(64)]
    assert torch.equal(together.shape, torch.cat([f.shape for f in alone]))
    assert torch.equal(together.log_scale, torch.cat([f.log_scale for f in alone]))


def test_cdf_and_log_exponent_follow_the_formula() -> None:
    shape, scale = torch.tensor(12.0, dtype=torch.float64), torch.tensor(1.3, dtype=torch.float64)
    x = torch.tensor([-1.0, 0.0, 0.2, 1.0, 1.3, 1.6], dtype=torch.float64)
    expected = stats.weibull_min.cdf(x.numpy(), 12.0, scale=1.3)
    np.testing.assert_allclose(cdf(x, shape, scale.log()).numpy(), expected, atol=1e-15)
    g = log_exponent(x, shape, scale.log())
    assert g[0] == g[1] == 12.0 * (np.log(1e-6) - np.log(1.3))
    np.testing.assert_allclose(np.exp(g[3:].numpy()), (x[3:].numpy() / 1.3) ** 12)


@pytest.mark.parametrize(
    ("tails", "multiplier", "message"),
    [
        (np.zeros((3,)), 1.0, "shape"),
        (np.zeros((3, 0)), 1.0, "tail size"),
        (np.array([[0.1, 0.2], [np.nan, 0.1]]), 1.0, "tail 1 holds NaN"),
        (np.zeros((1, 2)), 0.0, "distance_multiplier must be > 0, got 0.0"),
        (np.zeros((1, 2)), -1.0, "distance_multiplier must be > 0"),
    ],
)
def test_bad_tails_are_refused(tails: np.ndarray, multiplier: float, message: str) -> None:
    for fit in (fit_low_tails, fit_high_tails):
        with pytest.raises(ValueError, match=message):
            fit(tails, multiplier)


def test_doctests() -> None:
    assert doctest.testmod(weibull).failed == 0
