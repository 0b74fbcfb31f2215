"""Softmax and its logarithm against exact arithmetic and scipy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oscbench.numerics.softmax import log_softmax, softmax

LOGITS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-700, 700))


@given(LOGITS)
def test_equals_scipy(logits: np.ndarray) -> None:
    np.testing.assert_allclose(softmax(logits), scipy.special.softmax(logits, axis=1), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(log_softmax(logits), scipy.special.log_softmax(logits, axis=1), rtol=1e-12, atol=1e-13)


def test_equals_exact_fractions() -> None:
    """Logits that are logarithms of whole numbers have rational probabilities."""
    weights = [1, 3, 4, 12]
    expected = [float(Fraction(w, sum(weights))) for w in weights]
    np.testing.assert_allclose(softmax(np.log([weights]))[0], expected, rtol=1e-15)


def test_logarithm_keeps_apart_what_rounds_to_one() -> None:
    margins = np.array([38.0, 40.0, 100.0, 700.0])
    logits = np.stack([margins, np.zeros(4)], axis=1)
    assert (softmax(logits)[:, 0] == 1.0).all()
    assert (np.diff(log_softmax(logits)[:, 0]) > 0).all()
    np.testing.assert_allclose(log_softmax(logits)[:, 0], -np.exp(-margins), rtol=1e-12)


def test_float32_is_computed_in_float64_and_left_unchanged() -> None:
    logits = np.array([[1.0, 2.0, 3.5]], np.float32)
    before = logits.copy()
    for function in (softmax, log_softmax):
        assert function(logits).dtype == np.float64
        np.testing.assert_array_equal(function(logits), function(logits.astype(np.float64)))
    np.testing.assert_array_equal(logits, before)
