"""The figures of an evaluation are those of the metrics, and a threshold is applied as it was chosen."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from oscbench import metrics
from oscbench.data.synthetic import demo_features
from oscbench.errors import OscbenchError
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import FPRS
from oscbench.report.evaluation import Options, choose_threshold, evaluate_split
from oscbench.runs import load_scores
from oscbench.scores import ScoreSet
from oscbench.scoring import fit_and_score

DEMO = load_scores("demo")


def test_figures_are_those_of_the_metrics() -> None:
    test = DEMO["test"]
    options = Options(rule="published", weights="class", resamples=30, seed=7)
    found = evaluate_split("test", test, options)
    assert [against.kind for against in found.against] == ["negative", "unknown"]
    arguments = {"n": 30, "seed": 7, "weights": "class"}
    assert (found.accuracy,) == metrics.bootstrap("accuracy", test.labels, test.scores, **arguments)
    for against, label in zip(found.against, (NEGATIVE, UNKNOWN), strict=True):
        curve = metrics.oscr_curve(test.labels, test.scores, unknown_label=label, weights="class")
        assert against.n == np.count_nonzero(test.labels == label)
        expected = metrics.bootstrap(
            "ccr", test.labels, test.scores, unknown_label=label, rule="published", **arguments
        )
        np.testing.assert_array_equal(against.ccr, expected)
        by_rule = [metrics.ccr_at_fpr(curve, f, rule="published") for f in FPRS]
        np.testing.assert_array_equal([c.estimate for c in against.ccr], by_rule)
        assert against.ccr_sum.estimate == metrics.ccr_fpr_sum(curve, rule="published")
        assert (against.auroc,) == metrics.bootstrap(
            "auroc", test.labels, test.scores, unknown_label=label, **arguments
        )
        n_classes = 20 + (10 if label == NEGATIVE else 15)
        assert against.openness == metrics.openness(20, n_classes)
        assert against.auoscr_step == metrics.auoscr(curve, rule="step")
        assert against.average_precision == metrics.average_precision(test.labels, test.scores, unknown_label=label)


def test_confidence_is_that_of_the_network_on_all_its_outputs() -> None:
    features = demo_features()
    wide = {
        split: dataclasses.replace(part, logits=np.column_stack((part.logits, part.logits.mean(axis=1) + 3)))
        for split, part in features.items()
    }
    for network, n_outputs in ((features, 20), (wide, 21)):
        scores = fit_and_score(network, "mls", {})["test"]
        logits = network["test"].logits.astype(np.float64)
        assert logits.shape[1] == n_outputs
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = metrics.confidence(scores.labels, probabilities, n_known=20)
        found = evaluate_split("test", scores, Options()).confidence
        assert found == pytest.approx(expected, abs=1e-12)
    own = dataclasses.replace(scores, info=None)
    figures = evaluate_split("test", own, Options())
    assert figures.confidence is None
    assert math.isnan(figures.against[0].openness)


def test_without_resamples_there_are_no_ends_and_missing_kinds_are_left_out() -> None:
    found = evaluate_split("val", DEMO["val"], Options())
    assert [against.kind for against in found.against] == ["negative"]
    assert math.isnan(found.accuracy.low)
    assert found.accuracy.estimate == metrics.closed_set_accuracy(DEMO["val"].labels, DEMO["val"].scores)
    assert found.n_known == np.count_nonzero(DEMO["val"].labels >= 0)


def test_classes_of_unequal_size_count_the_same_where_asked() -> None:
    val = DEMO["val"]
    rows = np.flatnonzero((val.labels != 3) | (np.arange(len(val.labels)) % 8 == 0))
    part = ScoreSet.from_scores(val.scores[rows], val.labels[rows])
    found = evaluate_split("val", part, Options(weights="class"))
    expected = metrics.closed_set_accuracy(part.labels, part.scores, weights="class")
    assert found.accuracy.estimate == expected
    assert expected != metrics.closed_set_accuracy(part.labels, part.scores)
    curve = metrics.oscr_curve(part.labels, part.scores, unknown_label=NEGATIVE, weights="class")
    assert found.against[0].ccr[2].estimate == metrics.ccr_at_fpr(curve, 0.1)


def test_threshold_is_chosen_on_validation_and_applied_to_the_test() -> None:
    report = choose_threshold(DEMO, 0.05, resamples=20)
    assert report.chosen_on == "val"
    val, test = DEMO["val"], DEMO["test"]
    value = metrics.threshold_for_fpr(val.labels, val.scores, 0.05, n=20).value
    assert report.threshold.value == value
    assert list(report.applied) == [("test", "negative"), ("test", "unknown")]
    accepted = test.scores.max(axis=1)[test.labels == UNKNOWN] >= value
    assert report.applied["test", "unknown"].fpr == np.mean(accepted)


def test_a_single_split_serves_where_there_is_no_validation() -> None:
    report = choose_threshold({"test": DEMO["test"]}, 0.05, resamples=5)
    assert report.chosen_on == "test"
    assert report.applied == {}


def test_a_rate_that_cannot_be_kept_fails_in_one_line() -> None:
    scores = ScoreSet.from_scores([[0.5], [0.9]], np.array([0, -1]))
    with pytest.raises(OscbenchError, match=r"split val: no threshold keeps .* 0\.1"):
        choose_threshold({"val": scores}, 0.1)
