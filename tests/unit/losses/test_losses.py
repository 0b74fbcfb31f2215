"""Losses against the published code's values, hand-written means and each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.errors import UsageError
from oscbench.losses import LOSSES, TrainingClasses, weighted_mean
from oscbench.losses.cross_entropy import balanced_weights
from oscbench.losses.eos import EosParams
from oscbench.losses.objectosphere import ObjectosphereParams
from oscbench.registry import NoParams

# Values of the original authors' code on seeded inputs (float64); labels -1 and -2 both count as negative.
GOLDEN = np.load(Path(__file__).parents[2] / "data" / "loss_golden.npz", allow_pickle=False)
LABELS = torch.from_numpy(np.maximum(GOLDEN["query_labels"], -1))


def classes(labels: torch.Tensor, n_known: int, **options: float) -> TrainingClasses:
    counts = tuple(int((labels == label).sum()) for label in range(n_known))
    return TrainingClasses(n_known=n_known, counts=counts, n_negative=int((labels < 0).sum()), **options)


@pytest.mark.parametrize(("key", "weight"), [("eos_loss", 1.0), ("eos_loss_w0.5", 0.5)])
def test_eos_equals_the_published_value(key: str, weight: float) -> None:
    logits = torch.from_numpy(GOLDEN["query_logits"])
    criterion = LOSSES.get("eos").build(classes(LABELS, 6), EosParams(negative_weight=weight))
    assert float(weighted_mean(criterion, logits, logits, LABELS)) == pytest.approx(float(GOLDEN[key]), abs=1e-6)


def test_garbage_equals_the_published_value_and_class_weights() -> None:
    logits = torch.from_numpy(GOLDEN["garbage_logits"])
    criterion = LOSSES.get("garbage").build(classes(LABELS, 6), NoParams())
    np.testing.assert_allclose(criterion.class_weights, GOLDEN["garbage_class_weights"], rtol=1e-6)
    value = float(weighted_mean(criterion, logits, logits, LABELS))
    assert value == pytest.approx(float(GOLDEN["garbage_loss"]), abs=1e-6)


def by_hand(
    name: str, logits: list[list[float]], embedding: list[list[float]], labels: list[int], smoothing: float
) -> float:
    """The mean loss in plain Python, sample by sample."""
    n_outputs = len(logits[0])
    n_known = n_outputs - 1 if name == "garbage" else n_outputs
    counts = [sum(label == c for label in labels) for c in range(n_known)] + [sum(label < 0 for label in labels)]
    total = weight_sum = 0.0
    for row, point, label in zip(logits, embedding, labels, strict=True):
        log_sum = math.log(sum(math.exp(value) for value in row))
        if label < 0 and name == "softmax":
            continue
        if label < 0 and name in ("eos", "objectosphere"):
            target = [1 / n_outputs] * n_outputs
        else:
            hot = label if label >= 0 else n_outputs - 1
            target = [(1 - smoothing) * (c == hot) + smoothing / n_outputs for c in range(n_outputs)]
        weight = len(labels) / (n_outputs * counts[label]) if name == "garbage" else 1.0
        loss = weight * sum(t * (log_sum - value) for t, value in zip(target, row, strict=True))
        if name == "objectosphere":
            length = math.sqrt(sum(value * value for value in point))
            loss += 1e-4 * (length**2 if label < 0 else max(10.0 - length, 0.0) ** 2)
        total, weight_sum = total + loss, weight_sum + weight
    return total / weight_sum


@pytest.mark.parametrize("name", ["softmax", "garbage", "eos", "objectosphere"])
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), smoothing=st.sampled_from([0.0, 0.1]))
def test_every_loss_equals_the_mean_written_by_hand(name: str, seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    spec = LOSSES.get(name)
    labels = np.concatenate([[0, 1, 2, -1], rng.integers(-1, 3, 7)])
    logits = rng.normal(0, 3, (len(labels), spec.n_outputs(3)))
    embedding = rng.normal(0, 5, (len(labels), 4))
    params = LOSSES.info(name).params()
    tensor_labels = torch.from_numpy(labels)
    criterion = spec.build(classes(tensor_labels, 3, label_smoothing=smoothing), params)
    value = weighted_mean(criterion, torch.from_numpy(logits), torch.from_numpy(embedding), tensor_labels)
    expected = by_hand(name, logits.tolist(), embedding.tolist(), labels.tolist(), smoothing)
    assert float(value) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", LOSSES.names())
def test_parts_of_a_batch_add_up_to_the_whole(name: str) -> None:
    """What exact gradient averaging over workers rests on: sums of losses over sums of weights."""
    rng = np.random.default_rng(3)
    spec = LOSSES.get(name)
    labels = torch.from_numpy(np.array([0, 1, -1, 2, 2, -1, 0, 1]))
    criterion = spec.build(classes(labels, 3), LOSSES.info(name).params())
    logits = torch.from_numpy(rng.normal(size=(8, spec.n_outputs(3))))
    whole = weighted_mean(criterion, logits, logits, labels)
    parts = [(logits[:3], labels[:3]), (logits[3:], labels[3:])]
    total = sum(criterion.losses(part, part, part_labels).sum() for part, part_labels in parts)
    weight = sum(criterion.weights(part_labels).sum() for _, part_labels in parts)
    torch.testing.assert_close(total / weight, whole)


@pytest.mark.parametrize("name", LOSSES.names())
def test_gradients_stay_finite_on_extreme_outputs(name: str) -> None:
    spec = LOSSES.get(name)
    labels = torch.tensor([0, 1, -1, -1])
    criterion = spec.build(classes(labels, 2), LOSSES.info(name).params())
    width = spec.n_outputs(2)
    logits = torch.full((4, width), -1e4).index_fill(1, torch.tensor([0]), 1e4).requires_grad_()
    embedding = torch.zeros(4, 3, requires_grad=True)
    weighted_mean(criterion, logits, embedding, labels).backward()
    assert torch.isfinite(logits.grad).all()
    assert embedding.grad is None or torch.isfinite(embedding.grad).all()


def test_output_width_comes_from_the_spec() -> None:
    assert {name: LOSSES.get(name).n_outputs(116) for name in ("softmax", "garbage", "eos")} == {
        "softmax": 116,
        "garbage": 117,
        "eos": 116,
    }


def test_impossible_parameters_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match="negative_weight must be > 0, got 0"):
        EosParams(negative_weight=0)
    with pytest.raises(ValueError, match="radius must be > 0"):
        ObjectosphereParams(radius=-1)
    with pytest.raises(ValueError, match="class 1 of 3 has no training sample"):
        balanced_weights((3, 0, 2))
    with pytest.raises(UsageError, match="did you mean 'eos'"):
        LOSSES.get("eoss")
