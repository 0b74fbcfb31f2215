"""The compiled loops against numpy and against the float64 reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from oscbench.numerics import kernels
from oscbench.numerics.evm import fits as inclusion
from oscbench.numerics.evm.cpu_engine import _Packed
from oscbench.numerics.kernels import collect_smallest, exp64, fit_rows, log32, log64, lowest_of_equal_probability
from oscbench.numerics.weibull import fit_low_tails, probability_of


@njit
def apply_log32(x, y):
    for i in range(x.size):
        y[i] = log32(x[i])


@njit
def apply_64(x, log, exp):
    for i in range(x.size):
        log[i] = log64(x[i])
        exp[i] = exp64(log[i] * 7.0)


def test_polynomials_are_accurate() -> None:
    x = np.exp(np.random.default_rng(0).uniform(-69.0, 3.0, 200_000)).astype(np.float32)
    x[:3] = 1.0, 1e-6, 1e-30
    y = np.empty_like(x)
    apply_log32(x, y)
    truth = np.log(x.astype(np.float64))
    np.testing.assert_allclose(y, truth, rtol=1.5e-7)
    assert y[0] == 0.0
    wide = np.exp(np.random.default_rng(1).uniform(-14.0, 14.0, 200_000))
    log, exp = np.empty_like(wide), np.empty_like(wide)
    apply_64(wide, log, exp)
    np.testing.assert_allclose(log, np.log(wide), rtol=0, atol=1e-12)
    np.testing.assert_allclose(exp, np.exp(7.0 * log), rtol=1e-9)


def test_equal_probabilities_have_one_lowest_log_score() -> None:
    g = torch.cat([torch.linspace(-38.5, -20.0, 20_000), torch.linspace(2.5, 3.8, 20_000)])
    p = probability_of(g.double())
    lowest = inclusion.lowest_of_equal_probability(g.double())
    some = p > 0
    assert (lowest[~some] == inclusion.NO_PROBABILITY).all()
    assert (g[~some] < inclusion.NO_PROBABILITY + 1.0 + 1e-6).all()
    inside, below = lowest[some] + 1e-9, lowest[some] - 1e-9
    coarse = (g[some] < -34.0) | (g[some] > 3.4)  # where a step is wider than the distance from its edge
    assert torch.equal(probability_of(inside)[coarse], p[some][coarse])
    assert (probability_of(below)[coarse] < p[some][coarse]).all()
    compiled = np.array([lowest_of_equal_probability(value) for value in g.numpy()])
    np.testing.assert_allclose(compiled, lowest, rtol=3e-7)
    steps = g.numpy() < -36.0
    assert len(np.unique(compiled[steps])) == len(torch.unique(p[steps])) < 20


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 5), st.booleans())
def test_running_smallest_equals_sorting(seed: int, k: int, n_tiles: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    tiles = rng.random((n_tiles, 3, 700)).astype(np.float32)
    if ties:
        tiles = np.round(tiles, 1)
    kept, count = np.empty((3, 2 * k + 256), np.float32), np.zeros(3, np.int64)
    limit = np.full(3, np.inf, np.float32)
    skip_from, skip_to = np.array([0, 100, 0]), np.array([0, 250, 700])  # nothing, a part, all
    for tile in tiles:
        collect_smallest(tile, skip_from, skip_to, kept, count, limit, k)
    for r in range(3):
        rest = np.concatenate([np.delete(tile[r], slice(skip_from[r], skip_to[r])) for tile in tiles])
        np.testing.assert_array_equal(np.sort(kept[r, : count[r]])[:k], np.sort(rest)[:k])


def grid_fits(tails: np.ndarray, sizes: list[int], multipliers: list[float], available: list[int] | None = None):
    order = np.lexsort((multipliers, sizes))
    shape, log_scale = np.empty((2, len(tails), len(sizes)))
    constant = np.empty(shape.shape, bool)
    available = [tails.shape[1]] * len(tails) if available is None else available
    fit_rows(tails, np.array(available), np.array(sizes), np.array(multipliers), order, shape, log_scale, constant)
    return shape, log_scale, constant


@pytest.mark.parametrize("spread", [1.0, 0.05, 1e-4])
@pytest.mark.parametrize("tail_kind", ["gamma", "cauchy", "lumps"])
def test_fits_equal_the_reference(spread: float, tail_kind: str) -> None:
    rng = np.random.default_rng(2)
    values = {
        "gamma": rng.gamma(3.0, 0.1, (20, 200)),
        "cauchy": np.minimum(np.abs(rng.standard_cauchy((20, 200))) * 0.05, 2.0),
        "lumps": np.round(rng.random((20, 200)), 1),
    }[tail_kind]
    tails = np.sort(values * spread, axis=1).astype(np.float32)
    sizes, multipliers = [200, 10, 10, 200, 2, 50, 200], [0.1, 1.0, 0.1, 1.0, 0.5, 0.3, 0.4]
    shape, log_scale, constant = grid_fits(tails, sizes, multipliers)
    for s, (size, kappa) in enumerate(zip(sizes, multipliers, strict=True)):
        reference = fit_low_tails(tails[:, :size], kappa)
        np.testing.assert_array_equal(constant[:, s], reference.constant)
        np.testing.assert_allclose(shape[:, s], reference.shape, rtol=1e-7)
        # what a score sees is shape · ln scale
        np.testing.assert_allclose(shape[:, s] * log_scale[:, s], reference.shape * reference.log_scale, atol=1e-6)


def test_fits_of_constant_and_clipped_tails() -> None:
    tails = np.array([[0.2, 0.2, 0.2], [0.1, 0.3, np.inf]], np.float32)
    shape, log_scale, constant = grid_fits(tails, [3, 1, 3], [0.5, 0.5, 0.5], available=[3, 2])
    assert constant.tolist() == [[True, True, True], [False, True, False]]
    assert (shape[0] == 1e6).all()
    assert (log_scale[0] == 0).all()
    reference = fit_low_tails(tails[1:, :2], 0.5)
    np.testing.assert_allclose(shape[1, [0, 2]], float(reference.shape), rtol=1e-9)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1_000),
    shape=st.sampled_from([1.0, 30.0, 3_000.0, 1e6]),
    size=st.sampled_from([1e-3, 0.5, 40.0]),
    kind=st.sampled_from(["log", "probability"]),
)
def test_what_limits_a_chunk_lies_above_all_its_scores(seed: int, shape: float, size: float, kind: str) -> None:
    """Without this pruning would lose winners; ``size`` is that of the distances, 40 for Euclidean ones."""
    rng = np.random.default_rng(seed)
    n, n_settings = 2 * kernels.CHUNK - 5, 3
    fits = inclusion.InclusionFits.empty(n, n_settings)
    fits.shape[:] = shape * rng.uniform(0.9, 3.0, (n, n_settings))
    fits.reach[:] = 1.0 + size * rng.uniform(0.1, 1.0, (n, n_settings))
    fits.log_scale[:] = np.log(rng.uniform(0.5, 1.0, (n, n_settings)) * fits.reach)
    fits.constant[:] = False
    packed = _Packed(fits)
    floor, no_ceiling = np.float32(inclusion.X_FLOOR[kind]), np.float32(3e38)
    scores, limits = np.empty(kernels.CHUNK, np.float32), np.empty(n_settings, np.float32)
    best = np.zeros(n_settings, np.float32)
    for c in range(2):
        far = rng.uniform(0.0, 1.5)  # up to beyond the reach of all
        d = (far * (1.0 + size) * rng.uniform(0.7, 1.3, kernels.CHUNK)).astype(np.float32)
        position = d.min() / packed.step
        gain = kernels._chunk_limits(packed.envelope[c], position, packed.lowest[kind][c], no_ceiling, best, limits)
        assert gain == limits.max()
        for s in range(n_settings):
            parameters = (packed.reach[c, s], packed.shape[c, s], packed.offset[c, s])
            largest = kernels._chunk_scores(d, *parameters, floor, scores)
            line = kernels._chunk_bound(d, packed.intercept[c, s], packed.slope[c, s])
            assert largest <= max(line, packed.lowest[kind][c, s])
            assert largest <= limits[s]


def test_the_process_that_compiles_and_one_that_loads_the_cache_give_the_same_bits(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from oscbench.numerics import kernels
rng = np.random.default_rng(0)
tails = np.sort(rng.random((50, 90), np.float32), axis=1)
sizes, multipliers = np.array([10, 90]), np.array([0.3, 1.0])
shape, log_scale, constant = np.empty((50, 2)), np.empty((50, 2)), np.empty((50, 2), bool)
kernels.fit_rows(tails, np.full(50, 90), sizes, multipliers, np.arange(2), shape, log_scale, constant)
queries, out = rng.normal(size=(2, 50, 33)), np.empty((50, 2))
kernels.refine(*queries, np.arange(100).reshape(50, 2) % 50, True, shape, log_scale, 1 + shape, 1e-6, out)
sys.stdout.buffer.write(shape.tobytes() + log_scale.tobytes() + out.tobytes())
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    cold, warm = (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
        for _ in range(2)
    )
    assert any(tmp_path.rglob("*.nbi"))
    assert cold == warm
