"""Validation confidence against golden values and a loop over samples."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import confidence

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "metrics_golden.npz", allow_pickle=False)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("prefix", ["", "garbage_"])
def test_golden_with_and_without_extra_output(prefix: str) -> None:
    logits = GOLDEN["garbage_logits" if prefix else "query_logits"]
    found = confidence(GOLDEN["query_labels"], softmax(logits), n_known=6, negative_labels=(NEGATIVE, UNKNOWN))
    expected = GOLDEN[f"{prefix}confidence_known_negative"]
    assert found[:2] == pytest.approx(expected, abs=1e-12)
    assert found.mean == pytest.approx(expected.mean(), abs=1e-12)


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("weights", ["sample", "class"])
def test_equals_a_loop_over_samples(extra: int, weights: str) -> None:
    rng = np.random.default_rng(extra)
    labels = rng.choice([-2, -1, -1, 0, 0, 1, 2], size=120)
    probabilities = softmax(rng.normal(size=(120, 3 + extra)))
    known: dict[int, list[float]] = {0: [], 1: [], 2: []}
    negative = []
    for label, row in zip(labels, probabilities, strict=True):
        if label >= 0:
            known[label].append(row[label])
        elif label == NEGATIVE:
            negative.append(1 - max(row[:3]) + (0 if extra else 1 / 3))
    every = [value for values in known.values() for value in values]
    of_known = np.mean(every) if weights == "sample" else np.mean([np.mean(values) for values in known.values()])
    found = confidence(labels, probabilities, n_known=3, weights=weights)
    assert found.known == pytest.approx(of_known, abs=1e-12)
    assert found.negative == pytest.approx(np.mean(negative), abs=1e-12)


def test_perfect_outputs_reach_one() -> None:
    assert confidence([0, -1], [[1.0, 0.0], [0.5, 0.5]], n_known=2) == (1.0, 1.0, 1.0)
    assert confidence([0, -1], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], n_known=2) == (1.0, 1.0, 1.0)


def test_missing_kinds_and_wrong_input() -> None:
    only_known = confidence([0], [[1.0, 0.0]], n_known=2)
    assert only_known.known == 1.0
    assert math.isnan(only_known.negative)
    assert math.isnan(only_known.mean)
    with pytest.raises(ValueError, match="row 1 holds a value outside"):
        confidence([0, 0], [[1.0, 0.0], [4.2, -1.0]], n_known=2)
    with pytest.raises(ValueError, match="row 0 holds a value outside"):
        confidence([0], [[math.nan, 0.0]], n_known=2)
    with pytest.raises(ValueError, match="4 columns"):
        confidence([0], [[1.0, 0.0, 0.0, 0.0]], n_known=2)
