"""OSCR and CCR@FPR against golden values, a double loop over thresholds, and properties that must always hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import (
    FPRS,
    OscrCurve,
    Predictions,
    auoscr,
    ccr_at_fpr,
    ccr_fpr_sum,
    ccr_of_many,
    closed_set_accuracy,
    oscr_curve,
    predict,
)

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "metrics_golden.npz", allow_pickle=False)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


# --- the plainest form of design section 8, sample by sample ------------------------------------------------------


def plain_rates(
    labels: Any, scores: Any, unknown_label: int, threshold: float, class_weights: bool
) -> tuple[float, float]:
    right: dict[int, int] = {}
    size: dict[int, int] = {}
    let_in = n_unknown = 0
    for label, row in zip(labels, scores, strict=True):
        best = max(range(len(row)), key=lambda c: (row[c], -c))
        if label >= 0:
            size[label] = size.get(label, 0) + 1
            right[label] = right.get(label, 0) + int(best == label and row[best] >= threshold)
        elif label == unknown_label:
            n_unknown += 1
            let_in += int(row[best] >= threshold)
    if class_weights:
        ccr = sum(right[c] / size[c] for c in size) / len(size) if size else math.nan
    else:
        ccr = sum(right.values()) / sum(size.values()) if size else math.nan
    return ccr, let_in / n_unknown if n_unknown else math.nan


def plain_thresholds(labels: Any, scores: Any, unknown_label: int) -> tuple[list[float], list[float]]:
    """Scores of unknown samples, and of correctly classified known ones."""
    unknown, correct = [], []
    for label, row in zip(labels, scores, strict=True):
        if label == unknown_label:
            unknown.append(max(row))
        elif label >= 0 and row[label] == max(row) and all(row[c] < row[label] for c in range(label)):
            correct.append(row[label])
    return unknown, correct


def plain_ccr(
    labels: Any, scores: Any, unknown_label: int, fpr: float, rule: str, class_weights: bool = False
) -> float:
    unknown, correct = plain_thresholds(labels, scores, unknown_label)
    if not unknown:
        return math.nan
    if rule == "inclusive":
        points = [plain_rates(labels, scores, unknown_label, t, class_weights) for t in [-math.inf, *unknown, *correct]]
        return max((c for c, f in points if f <= fpr), default=math.nan)
    points = [plain_rates(labels, scores, unknown_label, t, class_weights) for t in unknown]
    below = [(f, c) for c, f in points if f < fpr]
    return max(below)[1] if below else math.nan


@st.composite
def scored_samples(draw: st.DrawFn, *, few_values: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of 1..25 samples, 1..4 classes, half of the time with many equal scores."""
    n_classes = draw(st.integers(1, 4))
    n = draw(st.integers(1, 25))
    labels = draw(st.lists(st.integers(UNKNOWN, n_classes - 1), min_size=n, max_size=n))
    ties = draw(st.booleans()) if few_values is None else few_values
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    width = 32 if dtype is np.float32 else 64
    value = st.integers(-2, 2).map(float) if ties else st.floats(-50, 50, width=width, allow_subnormal=False)
    rows = draw(st.lists(st.lists(value, min_size=n_classes, max_size=n_classes), min_size=n, max_size=n))
    return np.array(labels, dtype=np.int64), np.array(rows, dtype=dtype)


def same(left: float, right: float, tolerance: float = 0.0) -> bool:
    return (math.isnan(left) and math.isnan(right)) or abs(left - right) <= tolerance


# --- golden -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "kind"), [(NEGATIVE, "negative"), (UNKNOWN, "unknown")])
def test_curve_and_published_rule_equal_the_published_code_digit_by_digit(label: int, kind: str) -> None:
    curve = oscr_curve(GOLDEN["query_labels"], softmax(GOLDEN["query_logits"]), unknown_label=label)
    np.testing.assert_array_equal(curve.ccr[curve.at_unknown], GOLDEN[f"oscr_{kind}_ccr"])
    np.testing.assert_array_equal(curve.fpr[curve.at_unknown], GOLDEN[f"oscr_{kind}_fpr"])
    found = [ccr_at_fpr(curve, fpr, rule="published") for fpr in FPRS]
    np.testing.assert_array_equal(found, GOLDEN[f"ccr_at_fpr_strict_{kind}"])
    assert ccr_fpr_sum(curve, rule="published") == np.nansum(found)


# --- double loop --------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, *FPRS]))
def test_both_rules_equal_a_double_loop(sample: Any, unknown_label: int, fpr: float) -> None:
    labels, scores = sample
    for weights in ("sample", "class"):
        curve = oscr_curve(labels, scores, unknown_label=unknown_label, weights=weights)
        for rule in ("inclusive", "published"):
            expected = plain_ccr(labels, scores, unknown_label, fpr, rule, weights == "class")
            # Counts divide exactly; class means add fractions in another order.
            assert same(ccr_at_fpr(curve, fpr, rule=rule), expected, 0.0 if weights == "sample" else 1e-12)


@settings(max_examples=150)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]), st.integers(1, 4), st.randoms())
def test_the_rates_of_many_classifiers_equal_those_of_their_curves(
    sample: Any, unknown_label: int, n_classifiers: int, random: Any
) -> None:
    labels, scores = sample
    orders = [random.sample(range(len(scores)), len(scores)) for _ in range(n_classifiers)]
    classifiers = [predict(scores[order]) for order in orders]
    predicted, score = (np.stack(column, axis=1) for column in zip(*classifiers, strict=True))
    fprs = (0.0, 0.1, 0.25, 0.5, 2 / 3, *FPRS)
    for rule in ("inclusive", "published"):
        found = ccr_of_many(labels, predicted, score, unknown_label=unknown_label, fprs=fprs, rule=rule)
        curves = [oscr_curve(labels, scores[order], unknown_label=unknown_label) for order in orders]
        expected = [[ccr_at_fpr(curve, fpr, rule=rule) for fpr in fprs] for curve in curves]
        np.testing.assert_array_equal(found, np.array(expected))
        np.testing.assert_array_equal(np.nansum(found[:, 5:], axis=1), [ccr_fpr_sum(c, rule=rule) for c in curves])


@pytest.mark.parametrize("fprs", [FPRS, (1.0,)])
@pytest.mark.parametrize("rule", ["inclusive", "published"])
def test_the_rates_of_many_classifiers_at_a_larger_size_with_ties(rule: Any, fprs: tuple[float, ...]) -> None:
    rng = np.random.default_rng(8)
    labels, predicted = rng.integers(-2, 4, 3000), rng.integers(0, 4, (3000, 5))
    score = np.round(rng.normal(size=(3000, 5)), 2)
    found = ccr_of_many(labels, predicted, score, unknown_label=NEGATIVE, fprs=fprs, rule=rule)
    for s in range(5):
        curve = oscr_curve(labels, Predictions(predicted[:, s], score[:, s]), unknown_label=NEGATIVE)
        np.testing.assert_array_equal(found[s], [ccr_at_fpr(curve, fpr, rule=rule) for fpr in fprs])


@settings(max_examples=80)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]))
def test_every_point_of_the_curve_is_what_its_threshold_gives(sample: Any, unknown_label: int) -> None:
    labels, scores = sample
    curve = oscr_curve(labels, scores, unknown_label=unknown_label)
    unknown, correct = plain_thresholds(labels, scores, unknown_label)
    assert curve.thresholds.tolist() == sorted({-math.inf, *map(float, unknown), *map(float, correct)})
    assert curve.thresholds.dtype == scores.dtype
    assert curve.at_unknown.tolist() == [t in set(map(float, unknown)) for t in curve.thresholds.tolist()]
    for threshold, ccr, fpr in zip(curve.thresholds, curve.ccr, curve.fpr, strict=True):
        expected = plain_rates(labels, scores, unknown_label, threshold, class_weights=False)
        assert same(ccr, expected[0])
        assert same(fpr, expected[1])


@settings(max_examples=80)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]))
def test_areas_are_the_chances_they_claim_to_be(sample: Any, unknown_label: int) -> None:
    labels, scores = sample
    unknown, correct = plain_thresholds(labels, scores, unknown_label)
    n_pairs = len(unknown) * int(np.count_nonzero(labels >= 0))
    above = sum(c > u for c in correct for u in unknown)
    equal = sum(c == u for c in correct for u in unknown)
    curve = oscr_curve(labels, scores, unknown_label=unknown_label)
    assert same(auoscr(curve, rule="step"), above / n_pairs if n_pairs else math.nan, 1e-12)
    assert same(auoscr(curve, rule="trapezoid"), (above + equal / 2) / n_pairs if n_pairs else math.nan, 1e-12)


# --- properties ---------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]), st.randoms(use_true_random=False))
def test_curve_is_monotone_and_blind_to_row_order(sample: Any, unknown_label: int, random: Any) -> None:
    labels, scores = sample
    curve = oscr_curve(labels, scores, unknown_label=unknown_label)
    assert np.all(np.diff(curve.thresholds) > 0)
    assert not np.any(np.diff(curve.ccr) > 0)
    assert not np.any(np.diff(curve.fpr) > 0)
    order = random.sample(range(len(labels)), len(labels))
    shuffled = oscr_curve(labels[order], scores[order], unknown_label=unknown_label)
    for name in ("thresholds", "ccr", "fpr", "at_unknown"):
        np.testing.assert_array_equal(getattr(curve, name), getattr(shuffled, name))


@settings(max_examples=60)
@given(scored_samples(few_values=True), st.sampled_from([NEGATIVE, UNKNOWN]))
def test_strictly_increasing_maps_change_nothing_but_the_thresholds(sample: Any, unknown_label: int) -> None:
    labels, scores = sample
    curve = oscr_curve(labels, scores, unknown_label=unknown_label)
    for mapped in (np.exp(scores), 3 * scores + 7, scores**3):
        other = oscr_curve(labels, mapped, unknown_label=unknown_label)
        np.testing.assert_array_equal(curve.ccr, other.ccr)
        np.testing.assert_array_equal(curve.fpr, other.fpr)


@settings(max_examples=60)
@given(scored_samples(), st.sampled_from([NEGATIVE, UNKNOWN]))
def test_rate_one_is_closed_set_accuracy_and_published_never_gives_more(sample: Any, unknown_label: int) -> None:
    labels, scores = sample
    curve = oscr_curve(labels, scores, unknown_label=unknown_label)
    if curve.n_unknown:
        assert same(ccr_at_fpr(curve, 1.0), closed_set_accuracy(labels, scores))
    for fpr in (0.0, 0.1, 0.3, *FPRS):
        published = ccr_at_fpr(curve, fpr, rule="published")
        if not math.isnan(published):
            assert published <= ccr_at_fpr(curve, fpr)


def test_samples_of_the_other_kind_are_ignored() -> None:
    rng = np.random.default_rng(3)
    labels, scores = rng.integers(-2, 4, 200), rng.normal(size=(200, 4))
    keep = labels != UNKNOWN
    whole = oscr_curve(labels, scores, unknown_label=NEGATIVE)
    part = oscr_curve(labels[keep], scores[keep], unknown_label=NEGATIVE)
    np.testing.assert_array_equal(whole.ccr, part.ccr)
    np.testing.assert_array_equal(whole.thresholds, part.thresholds)


# --- edges --------------------------------------------------------------------------------------------------------


def curve_of(*samples: tuple[int, list[float]], unknown_label: int = NEGATIVE) -> OscrCurve:
    labels, scores = zip(*samples, strict=True)
    return oscr_curve(list(labels), list(scores), unknown_label=unknown_label)


def test_unreachable_only_when_the_highest_score_lets_in_too_many() -> None:
    unknown_on_top = curve_of((0, [0.8, 0.1]), (NEGATIVE, [0.9, 0.0]), (NEGATIVE, [0.2, 0.1]))
    assert math.isnan(ccr_at_fpr(unknown_on_top, 0.4))
    assert ccr_at_fpr(unknown_on_top, 0.5) == 1.0  # threshold 0.8
    assert ccr_fpr_sum(unknown_on_top) == 1.0  # three unreachable rates count as 0
    known_on_top = curve_of((0, [0.9, 0.1]), (1, [0.3, 0.4]), (NEGATIVE, [0.8, 0.0]))
    assert ccr_at_fpr(known_on_top, 0.0) == 0.5
    misclassified_on_top = curve_of((0, [0.1, 0.9]), (NEGATIVE, [0.8, 0.0]))
    assert math.isnan(ccr_at_fpr(misclassified_on_top, 0.0))  # no threshold above all scores that count


def test_equal_scores_pass_together() -> None:
    tied = curve_of((0, [0.7, 0.1]), (NEGATIVE, [0.7, 0.0]), (NEGATIVE, [0.1, 0.7]), (1, [0.0, 0.7]))
    assert tied.thresholds.tolist() == [-math.inf, 0.7]
    assert math.isnan(ccr_at_fpr(tied, 0.5))
    assert ccr_at_fpr(tied, 1.0) == 1.0
    assert math.isnan(ccr_at_fpr(tied, 1.0, rule="published"))


def test_a_rate_met_exactly_is_inclusive_and_not_published() -> None:
    samples = [(0, [float(i), 0.0]) for i in range(1, 1001)] + [(NEGATIVE, [float(i) + 0.5, 0.0]) for i in range(1000)]
    curve = curve_of(*samples)
    assert ccr_at_fpr(curve, 1e-3) == 2 / 1000  # knowns 1000 and 999 above the second highest negative, 998.5
    assert math.isnan(ccr_at_fpr(curve, 1e-3, rule="published"))
    assert ccr_at_fpr(curve, 2e-3, rule="published") == 1 / 1000


def test_none_of_a_kind_and_one_sample() -> None:
    no_unknowns = curve_of((0, [0.5, 0.1]))
    assert math.isnan(ccr_at_fpr(no_unknowns, 1.0))
    assert math.isnan(auoscr(no_unknowns, rule="step"))
    assert ccr_fpr_sum(no_unknowns) == 0.0
    no_knowns = curve_of((NEGATIVE, [0.5, 0.1]))
    assert math.isnan(ccr_at_fpr(no_knowns, 1.0))
    assert no_knowns.fpr.tolist() == [1.0, 1.0]


def test_float32_scores_are_compared_as_they_are() -> None:
    high = np.float32(0.1)
    low = np.nextafter(high, np.float32(0))
    scores = np.array([[high, 0], [low, 0], [high, 0]], dtype=np.float32)
    curve = oscr_curve([0, 0, NEGATIVE], scores, unknown_label=NEGATIVE)
    assert curve.thresholds.tolist() == [-math.inf, float(low), float(high)]
    assert curve.ccr.tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 2])
def test_scores_that_are_not_finite_are_refused_with_their_row(bad: float, column: int) -> None:
    scores = np.zeros((5000, 3))
    scores[:, 1] = 1.0
    scores[4321, column] = bad
    with pytest.raises(ValueError, match="row 4321"):
        predict(scores)
    with pytest.raises(ValueError, match="row 4321"):
        predict(Predictions(np.zeros(5000, int), scores[:, column]))
    with pytest.raises(ValueError, match="row 4321"):
        ccr_of_many(np.zeros(5000, int), np.zeros((5000, 3), int), scores, unknown_label=NEGATIVE)


@pytest.mark.parametrize("bad", [-3, 2, 100])
def test_labels_outside_are_refused_with_their_row(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"label {bad} in row 1 is outside -2..1"):
        oscr_curve([0, bad], [[1.0, 0.0], [0.0, 1.0]], unknown_label=NEGATIVE)


def test_other_wrong_input_is_refused() -> None:
    good: dict[str, Any] = {"labels": [0, NEGATIVE], "scores": [[1.0, 0.0], [0.0, 1.0]], "unknown_label": NEGATIVE}
    for change, message in [
        ({"unknown_label": 0}, "unknown_label"),
        ({"labels": [0]}, "2 rows"),
        ({"labels": [0.0, -1.0]}, "integers"),
        ({"scores": [1.0, 2.0]}, "2 dimension"),
        ({"scores": np.zeros((2, 0))}, "no columns"),
        ({"weights": "clas"}, "'clas'"),
    ]:
        with pytest.raises(ValueError, match=message):
            oscr_curve(**(good | change))
    curve = oscr_curve(**good)
    for call in (lambda: ccr_at_fpr(curve, 1.5), lambda: ccr_at_fpr(curve, 0.5, rule="strict")):
        with pytest.raises(ValueError, match=r"1\.5|'strict'"):
            call()
    many: dict[str, Any] = {"labels": [0, NEGATIVE], "predicted": [[0], [0]], "score": [[1.0], [0.0]]}
    for change, message in [
        ({"unknown_label": 0}, "unknown_label"),
        ({"predicted": [[0]]}, r"\(1, 1\).*\(2, 1\)"),
        ({"labels": [0]}, "2 rows"),
        ({"fprs": (0.5, -0.1)}, r"-0\.1"),
        ({"rule": "strict"}, "'strict'"),
    ]:
        with pytest.raises(ValueError, match=message):
            ccr_of_many(**({"unknown_label": NEGATIVE} | many | change))
    with pytest.raises(ValueError, match="'simpson'"):
        auoscr(curve, rule="simpson")


def test_predict_takes_the_lowest_of_equal_classes_in_every_block() -> None:
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 3, size=(20_000, 37)).astype(np.float32)  # several blocks
    predicted, confidence = predict(scores)
    np.testing.assert_array_equal(predicted, scores.argmax(axis=1))
    np.testing.assert_array_equal(confidence, scores.max(axis=1))
