"""Figures of an epoch against the metrics on whole probability matrices and sums by hand."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from oscbench.metrics import FPRS, ccr_at_fpr, ccr_column, oscr_curve
from oscbench.metrics.confidence import confidence
from oscbench.training import epoch_metrics
from oscbench.training.epoch_metrics import EpochLog, selection_score, validation_metrics
from oscbench.training.loop import Validation


def validation(labels: np.ndarray, probabilities: np.ndarray, n_known: int) -> Validation:
    known = probabilities[:, :n_known]
    target = np.where(labels >= 0, known[np.arange(len(labels)), np.maximum(labels, 0)], 0.0)
    ones = np.ones(len(labels))
    return Validation(np.arange(len(labels)), labels, known.argmax(1), known.max(1), target, 2 * ones, ones)


@pytest.mark.parametrize("n_outputs", [5, 6])
def test_figures_equal_the_metrics_on_the_whole_matrix(n_outputs: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 5, 300)
    probabilities = rng.dirichlet(np.full(n_outputs, 0.5), 300)
    figures = validation_metrics(validation(labels, probabilities, 5), n_outputs=n_outputs, n_known=5)
    known, negative, mean = confidence(labels, probabilities, n_known=5)
    assert (figures["gamma_plus"], figures["gamma_minus"], figures["gamma"]) == pytest.approx((known, negative, mean))
    curve = oscr_curve(labels, probabilities[:, :5], unknown_label=-1)
    for fpr in FPRS:
        assert figures[ccr_column(fpr)] == pytest.approx(ccr_at_fpr(curve, fpr), nan_ok=True)
    right = sum(int(probabilities[i, :5].argmax() == labels[i]) for i in range(300) if labels[i] >= 0)
    assert figures["val_accuracy"] == pytest.approx(right / int((labels >= 0).sum()))
    assert figures["ccr_1"] == pytest.approx(figures["val_accuracy"])
    assert figures["val_loss"] == 2.0


def test_without_negatives_there_is_no_gamma_and_epochs_are_compared_by_the_known_samples() -> None:
    labels, probabilities = np.array([0, 1]), np.array([[0.9, 0.1], [0.4, 0.6]])
    figures = validation_metrics(validation(labels, probabilities, 2), n_outputs=2, n_known=2)
    expected = confidence(labels, probabilities, n_known=2)
    found = [figures[name] for name in ("gamma_plus", "gamma_minus", "gamma")]
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(figures["gamma"])
    assert selection_score(figures) == figures["gamma_plus"] == pytest.approx(0.75)
    better = figures | {"gamma_plus": 0.8}
    assert max([figures, better, figures], key=selection_score) is better
    assert selection_score(figures | {"gamma": 0.3}) == 0.3


def test_the_log_has_one_heading_and_aligned_lines_with_a_dash_for_what_cannot_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = EpochLog()
    row = dict.fromkeys(epoch_metrics._SHOWN.values(), 0.25) | {"epoch": 3.0, "ccr_1e-3": float("nan")}
    log(row)
    log(row)
    heading, first, second = caplog.messages
    assert heading.split()[-4:] == ["ccr@1e-3", "ccr@1e-2", "ccr@1e-1", "img/s"]
    assert first == second
    assert len(first) == len(heading)
    assert first.split() == ["3", *["0.2500"] * 6, "-", "0.2500", "0.2500", "0.2"]
