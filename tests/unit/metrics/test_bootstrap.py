"""Bootstrap intervals: every resample equals the metric on the drawn rows, and the ends are their percentiles."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import auroc, bootstrap, ccr_at_fpr, closed_set_accuracy, oscr_curve

N = 60
RATES = (0.0, 0.01, 0.1, 0.5, 1.0)
module: Any = sys.modules["oscbench.metrics.bootstrap"]  # the package gives the function under this name


def samples(seed: int, *, decimals: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A few dozen samples in which equal scores and unreachable rates occur."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat([0, 1, 2, NEGATIVE, UNKNOWN], [12, 5, 3, 14, 9]))
    scores = rng.normal(size=(len(labels), 3))
    scores[np.arange(len(labels)), np.maximum(labels, 0)] += 0.5 * (labels >= 0)
    return labels, scores.round(decimals)


def drawn_rows(labels: np.ndarray, scores: np.ndarray, unknown_label: int, weights: Any, seed: int) -> list[np.ndarray]:
    sample = module._Sample.of(labels, scores, unknown_label, weights)
    rows = []
    for _, known, unknown in sample.blocks(N, seed):
        rows.extend(np.concatenate((known, unknown), axis=1))
    return rows


def ends(values: list[float], level: float) -> tuple[float, float]:
    """Percentiles by counting: the smallest value with at least that share at or below it; NaN lowest."""
    ranked = sorted(-math.inf if math.isnan(v) else v for v in values)
    found = [ranked[math.ceil(share * len(ranked)) - 1] for share in ((1 - level) / 2, (1 + level) / 2)]
    return tuple(v if math.isfinite(v) else math.nan for v in found)


@pytest.mark.parametrize("weights", ["sample", "class"])
@pytest.mark.parametrize("rule", ["inclusive", "published"])
@pytest.mark.parametrize("unknown_label", [NEGATIVE, UNKNOWN])
def test_ccr_of_each_resample_is_that_of_the_drawn_rows(unknown_label: int, rule: Any, weights: Any) -> None:
    labels, scores = samples(1)
    values: list[list[float]] = [[] for _ in RATES]
    for rows in drawn_rows(labels, scores, unknown_label, weights, seed=5):
        curve = oscr_curve(labels[rows], scores[rows], unknown_label=unknown_label, weights=weights)
        for column, fpr in zip(values, RATES, strict=True):
            column.append(ccr_at_fpr(curve, fpr, rule=rule))
    options: dict[str, Any] = {"unknown_label": unknown_label, "rule": rule, "weights": weights, "fprs": RATES}
    found = bootstrap("ccr", labels, scores, n=N, seed=5, level=0.9, **options)
    whole = oscr_curve(labels, scores, unknown_label=unknown_label, weights=weights)
    for interval, column, fpr in zip(found, values, RATES, strict=True):
        assert interval.estimate == pytest.approx(ccr_at_fpr(whole, fpr, rule=rule), nan_ok=True, abs=1e-12)
        assert (interval.low, interval.high) == pytest.approx(ends(column, 0.9), nan_ok=True, abs=1e-12)
        assert interval.unreachable == np.mean(np.isnan(column))


@pytest.mark.parametrize("weights", ["sample", "class"])
def test_auroc_and_accuracy_of_each_resample_are_those_of_the_drawn_rows(weights: Any) -> None:
    labels, scores = samples(2)
    rows = drawn_rows(labels, scores, UNKNOWN, weights, seed=6)
    aurocs = [auroc(labels[r], scores[r], unknown_label=UNKNOWN, weights=weights) for r in rows]
    accuracies = [closed_set_accuracy(labels[r], scores[r], weights=weights) for r in rows]
    (of_auroc,) = bootstrap("auroc", labels, scores, n=N, seed=6, unknown_label=UNKNOWN, weights=weights)
    (of_accuracy,) = bootstrap("accuracy", labels, scores, n=N, seed=6, weights=weights)
    assert of_auroc[1:3] == pytest.approx(ends(aurocs, 0.95), abs=1e-12)
    assert of_accuracy[1:3] == pytest.approx(ends(accuracies, 0.95), abs=1e-12)
    assert of_auroc.estimate == pytest.approx(auroc(labels, scores, unknown_label=UNKNOWN, weights=weights), abs=1e-12)
    assert of_accuracy.estimate == closed_set_accuracy(labels, scores, weights=weights)


@pytest.mark.parametrize("weights", ["sample", "class"])
def test_draws_keep_the_number_of_each_kind(weights: Any) -> None:
    labels, scores = samples(3)
    for rows in drawn_rows(labels, scores, NEGATIVE, weights, seed=1):
        drawn = labels[rows]
        assert np.count_nonzero(drawn >= 0) == 20
        assert np.count_nonzero(drawn == NEGATIVE) == 14
        assert np.count_nonzero(drawn == UNKNOWN) == 0
        if weights == "class":
            assert np.bincount(drawn[drawn >= 0]).tolist() == [12, 5, 3]


def test_every_sample_is_drawn_equally_often() -> None:
    labels, scores = samples(4)
    counts = np.zeros(len(labels))
    for seed in range(50):
        for rows in drawn_rows(labels, scores, NEGATIVE, "sample", seed):
            counts += np.bincount(rows, minlength=len(labels))
    per_draw = counts[labels != UNKNOWN] / (50 * N)
    assert np.abs(per_draw - 1).max() < 0.1  # 3000 draws of mean 1, deviation 1: five deviations are 0.09


def test_block_size_and_repetition_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, scores = samples(5)
    options: dict[str, Any] = {"n": N, "unknown_label": NEGATIVE, "fprs": (0.4, 0.6, 1.0)}
    whole = bootstrap("ccr", labels, scores, seed=2, **options)
    assert bootstrap("ccr", labels, scores, seed=2, **options) == whole
    assert bootstrap("ccr", labels, scores, seed=3, **options) != whole
    monkeypatch.setattr(module, "_BLOCK_CELLS", 7 * len(labels))
    assert bootstrap("ccr", labels, scores, seed=2, **options) == whole


def test_accuracy_interval_agrees_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(9)
    labels = np.zeros(4000, dtype=int)
    scores = np.where(rng.random((4000, 1)) < 0.7, [[1.0, 0.0]], [[0.0, 1.0]])
    (interval,) = bootstrap("accuracy", labels, scores, n=2000, seed=0)
    half = 1.96 * math.sqrt(0.7 * 0.3 / 4000)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    assert interval.low < interval.estimate < interval.high


def test_missing_kinds_and_wrong_input() -> None:
    labels, scores = np.array([0, 1]), np.eye(2)
    for unknown in ([-1, -1], [-2, -2]):
        (sum_,) = bootstrap("ccr_sum", unknown, scores, n=5, unknown_label=unknown[0])
        assert math.isnan(sum_.estimate)
        assert math.isnan(sum_.low)
    for metric in ("ccr", "auroc"):
        assert all(math.isnan(i.low) for i in bootstrap(metric, labels, scores, n=5, unknown_label=NEGATIVE))
    (nothing,) = bootstrap("accuracy", [-1], [[1.0]], n=5)
    assert math.isnan(nothing.estimate)
    for change, message in [
        ({"metric": "f1"}, "'f1'"),
        ({"n": 0}, "n=0"),
        ({"level": 1.0}, "level=1.0"),
        ({"unknown_label": None}, "unknown_label"),
    ]:
        good: dict[str, Any] = {"metric": "ccr", "labels": labels, "scores": scores, "unknown_label": NEGATIVE}
        with pytest.raises(ValueError, match=message):
            bootstrap(**(good | change))


@pytest.mark.parametrize("weights", ["sample", "class"])
@pytest.mark.parametrize("rule", ["inclusive", "published"])
def test_the_sum_of_each_resample_is_that_of_the_drawn_rows(rule: Any, weights: Any) -> None:
    labels, scores = samples(7)
    sums = []
    for rows in drawn_rows(labels, scores, UNKNOWN, weights, seed=8):
        curve = oscr_curve(labels[rows], scores[rows], unknown_label=UNKNOWN, weights=weights)
        rates = [ccr_at_fpr(curve, fpr, rule=rule) for fpr in RATES]
        sums.append(sum(rate for rate in rates if not math.isnan(rate)))
    options: dict[str, Any] = {"unknown_label": UNKNOWN, "rule": rule, "weights": weights, "fprs": RATES}
    (found,) = bootstrap("ccr_sum", labels, scores, n=N, seed=8, **options)
    whole = bootstrap("ccr", labels, scores, n=N, seed=8, **options)
    assert found[1:3] == pytest.approx(ends(sums, 0.95), abs=1e-12)
    assert found.estimate == pytest.approx(np.nansum([rate.estimate for rate in whole]), abs=1e-12)
    assert found.unreachable == 0.0
