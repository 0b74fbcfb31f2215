"""Accuracy, AUROC, average precision and openness against scikit-learn, golden values and plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import auroc, average_precision, closed_set_accuracy, openness

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "metrics_golden.npz", allow_pickle=False)
TIGHT = 1e-12  # the same sums of up to a few hundred float64 terms in another order


def random_samples(seed: int, *, decimals: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice([-2, -1, 0, 0, 0, 1, 2], size=400)  # classes of unequal size
    scores = rng.normal(size=(400, 3))
    scores[np.arange(400), np.maximum(labels, 0)] += labels >= 0
    return labels, scores.round(decimals)


@pytest.mark.parametrize(("label", "kind"), [(NEGATIVE, "negative"), (UNKNOWN, "unknown")])
def test_auroc_golden(label: int, kind: str) -> None:
    logits = GOLDEN["query_logits"]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = auroc(GOLDEN["query_labels"], probabilities, unknown_label=label)
    assert found == pytest.approx(float(GOLDEN[f"auroc_{kind}"]), abs=TIGHT)


@pytest.mark.parametrize("decimals", [0, 1, 12])
@pytest.mark.parametrize("label", [NEGATIVE, UNKNOWN])
def test_ranking_metrics_equal_scikit_learn(label: int, decimals: int) -> None:
    labels, scores = random_samples(decimals, decimals=decimals)
    used = (labels >= 0) | (labels == label)
    truth, confidence = labels[used] >= 0, scores[used].max(axis=1)
    assert auroc(labels, scores, unknown_label=label) == pytest.approx(roc_auc_score(truth, confidence), abs=TIGHT)
    precision = average_precision(labels, scores, unknown_label=label)
    assert precision == pytest.approx(average_precision_score(truth, confidence), abs=TIGHT)
    sizes = np.bincount(labels[labels >= 0])
    sample_weight = [1 / sizes[y] if y >= 0 else 1.0 for y in labels[used]]
    weighted = roc_auc_score(truth, confidence, sample_weight=sample_weight)
    assert auroc(labels, scores, unknown_label=label, weights="class") == pytest.approx(weighted, abs=TIGHT)


def test_accuracy_equals_scikit_learn_by_sample_and_by_class() -> None:
    labels, scores = random_samples(7, decimals=1)
    known = labels >= 0
    predicted = scores[known].argmax(axis=1)
    assert closed_set_accuracy(labels, scores) == np.mean(predicted == labels[known])
    balanced = balanced_accuracy_score(labels[known], predicted)
    assert closed_set_accuracy(labels, scores, weights="class") == pytest.approx(balanced, abs=TIGHT)
    assert balanced != pytest.approx(np.mean(predicted == labels[known]), abs=1e-3)  # the two are told apart


def test_missing_kinds_and_equal_scores() -> None:
    assert math.isnan(closed_set_accuracy([-1], [[1.0]]))
    for metric in (auroc, average_precision):
        assert math.isnan(metric([0, 0], [[1.0], [2.0]], unknown_label=NEGATIVE))
        assert math.isnan(metric([-1, -2], [[1.0], [2.0]], unknown_label=NEGATIVE))
        assert metric([0, -1, -1, 0], np.ones((4, 1)), unknown_label=NEGATIVE) == 0.5  # chance and share of known


def test_wrong_input_is_refused() -> None:
    for metric in (auroc, average_precision):
        with pytest.raises(ValueError, match="row 1"):
            metric([0, -1], [[0.5], [math.nan]], unknown_label=NEGATIVE)
        with pytest.raises(ValueError, match="unknown_label"):
            metric([0, -1], [[0.5], [0.1]], unknown_label=3)
    with pytest.raises(ValueError, match="label 1 in row 0"):
        closed_set_accuracy([1], [[0.3]])
    with pytest.raises(ValueError, match="'clas'"):
        closed_set_accuracy([0], [[0.3]], weights="clas")


def test_openness() -> None:
    assert openness(10, 10) == 0.0
    assert openness(2, 6) == pytest.approx(1 - math.sqrt(4 / 8))
    assert openness(4, 6, 2) == pytest.approx(1 - math.sqrt(8 / 8))
    with pytest.raises(ValueError, match="0"):
        openness(0, 5)
