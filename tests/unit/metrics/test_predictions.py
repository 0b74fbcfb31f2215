"""Every metric of a score matrix is that of the predictions read from it, and wrong predictions are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import (
    Predictions,
    auroc,
    average_precision,
    bootstrap,
    closed_set_accuracy,
    decide,
    open_set_confusion,
    operating_point,
    oscr_curve,
    predict,
    threshold_for_fpr,
)

K = 3

METRICS: dict[str, Callable[[Any, Any], Any]] = {
    "curve": lambda labels, scores: oscr_curve(labels, scores, unknown_label=NEGATIVE),
    "curve by class": lambda labels, scores: oscr_curve(labels, scores, unknown_label=UNKNOWN, weights="class"),
    "accuracy": closed_set_accuracy,
    "auroc": lambda labels, scores: auroc(labels, scores, unknown_label=NEGATIVE),
    "auroc by class": lambda labels, scores: auroc(labels, scores, unknown_label=NEGATIVE, weights="class"),
    "precision": lambda labels, scores: average_precision(labels, scores, unknown_label=NEGATIVE),
    "ccr resampled": lambda labels, scores: bootstrap("ccr", labels, scores, n=5, unknown_label=NEGATIVE),
    "auroc resampled": lambda labels, scores: bootstrap("auroc", labels, scores, n=5, unknown_label=NEGATIVE),
    "accuracy resampled": lambda labels, scores: bootstrap("accuracy", labels, scores, n=5),
    "threshold": lambda labels, scores: threshold_for_fpr(labels, scores, 1.0, n=5),
    "point": lambda labels, scores: operating_point(labels, scores, 0.5, unknown_label=NEGATIVE, weights="class"),
    "decisions": lambda labels, scores: decide(scores, 0.5),
    "confusion": lambda labels, scores: open_set_confusion(
        labels, np.where(labels >= 0, labels, K - 1 - labels), scores, 0.5, n_known=K
    ),
}


def plain(value: Any) -> Any:
    """Something that can be compared, NaN equal to NaN."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(
            arrays.arrays(np.int64, n - 1, elements=st.integers(UNKNOWN, K - 1)),
            arrays.arrays(np.float32, (n, K), elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])),  # many ties
        )
    )
)
def test_metrics_of_a_matrix_are_those_of_its_predictions(name: str, sample: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = np.append(sample[0], NEGATIVE), sample[1]
    found = Predictions(scores.argmax(axis=1).astype(np.int32), scores.max(axis=1))
    assert plain(METRICS[name](labels, scores)) == plain(METRICS[name](labels, found))


def test_predictions_are_returned_as_they_are() -> None:
    given = Predictions(np.array([1, 0], np.int32), np.array([0.5, 0.1], np.float32))
    label, score = predict(given)
    assert label is given.label
    assert score is given.score


@pytest.mark.parametrize(
    ("label", "score", "message"),
    [
        ([0, 1], [0.5], r"shape \(2,\), scores \(1,\)"),
        ([0.0, 1.0], [0.5, 0.5], "integers, got float64"),
        ([0, -1], [0.5, 0.5], "predicted label -1 in row 1 is no known class"),
        ([0, 1], [0.5, np.nan], "row 1: nan"),
        ([[0, 1]], [[0.5, 0.5]], "1 dimension"),
    ],
)
def test_wrong_predictions_are_refused(label: list[Any], score: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(Predictions(np.array(label), np.array(score)))


def test_a_confusion_of_predictions_needs_the_number_of_classes() -> None:
    found = Predictions(np.array([0, 2]), np.array([0.5, 0.5]))
    for n_known in (None, 2):
        with pytest.raises(ValueError, match=f"n_known above every predicted class, got {n_known}"):
            open_set_confusion([0, 1], [0, 1], found, 0.0, n_known=n_known)
