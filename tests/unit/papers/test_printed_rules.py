"""The printed rules against their wording, sample by sample."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import ccr_at_fpr, oscr_curve
from oscbench.papers.rules import ccr_by_equation_14, ccr_near_fpr


def plain_equation_14(labels, scores, fpr, unknown_label):
    found = []
    strangers = [max(row) for label, row in zip(labels, scores, strict=True) if label == unknown_label]
    knowns = [(label, row) for label, row in zip(labels, scores, strict=True) if label >= 0]
    for threshold in strangers:
        rate = sum(score >= threshold for score in strangers) / len(strangers)
        right = sum(
            max(row) == row[label] == row[np.argmax(row)] and np.argmax(row) == label and max(row) >= threshold
            for label, row in knowns
        )
        if rate >= fpr:
            found.append((rate, right / len(knowns)))
    return min(found)[1] if found else math.nan


def plain_near(labels, scores, fpr, unknown_label):
    strangers = [max(row) for label, row in zip(labels, scores, strict=True) if label == unknown_label]
    knowns = [(label, row) for label, row in zip(labels, scores, strict=True) if label >= 0]
    best = None
    for threshold in sorted({row[label] for label, row in knowns})[:-1]:
        rate = sum(score > threshold for score in strangers) / len(strangers) if strangers else math.nan
        right = sum(np.argmax(row) == label and row[label] > threshold for label, row in knowns) / len(knowns)
        if strangers and (best is None or abs(rate - fpr) < abs(best[0] - fpr)):
            best = (rate, right)
    if best is None or abs(best[0] - fpr) >= 0.1 * fpr:
        return math.nan
    return best[1]


@st.composite
def samples(draw):
    """Few values, so that many are equal; sometimes an output more than there are classes."""
    n_known, n_outputs = 3, draw(st.sampled_from([3, 4]))
    labels = draw(st.lists(st.sampled_from([0, 1, 2, NEGATIVE, UNKNOWN]), min_size=1, max_size=25))
    cells = st.lists(st.integers(0, 6), min_size=n_outputs, max_size=n_outputs)
    scores = draw(st.lists(cells, min_size=len(labels), max_size=len(labels)))
    return np.array(labels), np.array(scores, dtype=float) / 6, n_known


@settings(max_examples=300, deadline=None)
@given(samples(), st.sampled_from([0.1, 0.25, 0.5, 1.0]), st.sampled_from([NEGATIVE, UNKNOWN]))
def test_both_rules_are_their_wording(drawn, fpr, unknown_label):
    labels, scores, _ = drawn
    near = ccr_near_fpr(labels, scores, fpr, unknown_label=unknown_label)
    assert near == pytest.approx(plain_near(labels, scores, fpr, unknown_label), nan_ok=True)
    if (labels >= 0).any():
        curve = oscr_curve(labels, scores, unknown_label=unknown_label)
        found = ccr_by_equation_14(curve, fpr)
        assert found == pytest.approx(plain_equation_14(labels, scores, fpr, unknown_label), nan_ok=True)
        by_code = ccr_at_fpr(curve, fpr, rule="published")
        assert math.isnan(by_code) or found >= by_code


def test_a_background_output_lets_nobody_in_as_known_but_keeps_strangers_in_the_maximum():
    labels = [0, 0, 0, 0, UNKNOWN, UNKNOWN]
    scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8], [0.3, 0.7], [0.1, 0.9]])
    # thresholds .2 .4 .7: above .4 lie both strangers, one of them by its background output alone
    assert ccr_near_fpr(labels, scores, 1.0, unknown_label=UNKNOWN) == 0.5
    assert math.isnan(ccr_near_fpr(labels, scores, 0.25, unknown_label=UNKNOWN))  # .5 is the nearest there is
    assert ccr_near_fpr(labels, scores, 0.5, unknown_label=UNKNOWN) == 0.25


def test_a_rate_off_by_a_tenth_is_blank_and_one_off_by_less_is_not():
    labels = np.array([0] * 3 + [UNKNOWN] * 100)
    scores = np.full((103, 1), 0.1)
    scores[:3, 0] = 0.5, 0.6, 0.7
    scores[3 : 3 + 21, 0] = 0.55
    assert ccr_near_fpr(labels, scores, 0.2, unknown_label=UNKNOWN) == pytest.approx(2 / 3)
    assert math.isnan(ccr_near_fpr(labels, scores, 0.19, unknown_label=UNKNOWN))
