"""Thresholds for a rate, decisions and open-set confusion against loops over samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import (
    bootstrap,
    ccr_at_fpr,
    decide,
    open_set_confusion,
    operating_point,
    oscr_curve,
    threshold_for_fpr,
)


def samples(seed: int, n: int = 200, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-2, 3, n)
    scores = rng.normal(size=(n, 3))
    scores[np.arange(n), np.maximum(labels, 0)] += 2 * (labels >= 0)
    return labels, scores.astype(dtype)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.sampled_from([0.02, 0.1, 0.3, 1.0]), st.sampled_from([np.float32, np.float64]))
def test_threshold_keeps_the_rate_and_no_lower_score_does(seed: int, fpr: float, dtype: Any) -> None:
    labels, scores = samples(seed, 60, dtype)
    curve = oscr_curve(labels, scores, unknown_label=NEGATIVE)
    if math.isnan(ccr_at_fpr(curve, fpr)):
        with pytest.raises(ValueError, match="no threshold keeps"):
            threshold_for_fpr(labels, scores, fpr, n=5)
        return
    chosen = threshold_for_fpr(labels, scores, fpr, n=5)
    confidence = scores.max(axis=1)
    negatives = confidence[labels == NEGATIVE]
    assert np.mean(negatives >= chosen.value) == chosen.point.fpr <= fpr
    assert chosen.point.ccr == ccr_at_fpr(curve, fpr)
    occurring = np.concatenate((negatives, confidence[(labels >= 0) & (scores.argmax(axis=1) == labels)]))
    assert all(np.mean(negatives >= lower) > fpr for lower in occurring[occurring < chosen.value])


def test_the_interval_is_the_bootstrap_of_ccr_at_that_rate() -> None:
    labels, scores = samples(1)
    chosen = threshold_for_fpr(labels, scores, 0.1, n=50, seed=4)
    assert (chosen.interval,) == bootstrap("ccr", labels, scores, n=50, seed=4, unknown_label=NEGATIVE, fprs=[0.1])
    assert chosen.interval.estimate == chosen.point.ccr


def test_rate_one_accepts_everything() -> None:
    labels, scores = samples(2)
    chosen = threshold_for_fpr(labels, scores, 1.0, n=5)
    assert chosen.value == -math.inf
    assert not np.any(decide(scores, chosen.value) == UNKNOWN)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample has label -1"):
        threshold_for_fpr([0, -2], [[1.0], [0.5]], 0.1)
    with pytest.raises(ValueError, match=r"lets in 1 of 1 samples"):
        threshold_for_fpr([0, -1], [[0.5], [1.0]], 0.1)
    with pytest.raises(ValueError, match="NaN"):
        decide([[1.0]], math.nan)


def test_decisions_compare_exactly_in_float32() -> None:
    score = np.float32(0.3)  # 0.30000001192092896
    scores = np.array([[score, 0.0]], dtype=np.float32)
    assert decide(scores, float(score)).tolist() == [0]
    assert decide(scores, float(np.nextafter(np.float64(score), 1))).tolist() == [UNKNOWN]


@pytest.mark.parametrize("weights", ["sample", "class"])
def test_operating_point_equals_a_loop(weights: Any) -> None:
    labels, scores = samples(3)
    point = operating_point(labels, scores, 0.8, unknown_label=UNKNOWN, weights=weights)
    right: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    accepted = []
    for label, row in zip(labels, scores, strict=True):
        if label >= 0:
            right[label].append(bool(row.argmax() == label and row.max() >= 0.8))
        elif label == UNKNOWN:
            accepted.append(bool(row.max() >= 0.8))
    every = [value for values in right.values() for value in values]
    ccr = np.mean(every) if weights == "sample" else np.mean([np.mean(values) for values in right.values()])
    assert point.ccr == pytest.approx(ccr, abs=1e-12)
    assert point.fpr == np.mean(accepted)
    assert (point.n_known, point.n_unknown, point.n_false_positives) == (len(every), len(accepted), sum(accepted))


def test_confusion_equals_a_loop() -> None:
    labels, scores = samples(4)
    rng = np.random.default_rng(0)
    # negatives are classes 3 and 7, unknowns 5 and 9
    class_index = np.where(
        labels >= 0, labels, np.where(labels == NEGATIVE, 3, 5) + 4 * rng.integers(0, 2, len(labels))
    )
    found = open_set_confusion(labels, class_index, scores, 1.0)
    known, others = np.zeros((3, 4), int), {c: np.zeros(4, int) for c in (3, 5, 7, 9)}
    for label, true_class, row in zip(labels, class_index, scores, strict=True):
        column = int(row.argmax()) if row.max() >= 1.0 else 3
        (known[label] if label >= 0 else others[int(true_class)])[column] += 1
    np.testing.assert_array_equal(found.known, known)
    assert found.class_index.tolist() == [3, 5, 7, 9]
    assert found.label.tolist() == [NEGATIVE, UNKNOWN, NEGATIVE, UNKNOWN]
    np.testing.assert_array_equal(found.taken_in, [others[c][:3] for c in (3, 5, 7, 9)])
    np.testing.assert_array_equal(found.rejected, [others[c][3] for c in (3, 5, 7, 9)])
    assert found.known.sum() + found.taken_in.sum() + found.rejected.sum() == len(labels)


def test_confusion_without_unknowns_and_with_wrong_classes() -> None:
    alone = open_set_confusion([0, 1], [0, 1], np.eye(2), 0.5)
    assert alone.taken_in.shape == (0, 2)
    assert alone.known.tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="class 4 in row 1 is labelled both"):
        open_set_confusion([-1, -2], [4, 4], np.eye(2), 0.5)
    with pytest.raises(ValueError, match="class_index has shape"):
        open_set_confusion([-1, -2], [4], np.eye(2), 0.5)
