"""Ranks and critical differences against scipy and Demšar's printed values; differences against plain arithmetic."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from oscbench.labels import UNKNOWN
from oscbench.metrics import Predictions, ccr_fpr_sum, oscr_curve
from oscbench.report.ranks import (
    RankTest,
    block_ranks,
    critical_difference,
    differences_over_resamples,
    differences_over_seeds,
    friedman,
    resampled_sums,
)

PRINTED_Q = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
"""Demšar 2006, Table 5(a), α = 0.05."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("digits", [1, 8])
def test_friedman_is_scipys(seed: int, digits: int) -> None:
    values = np.random.default_rng(seed).normal(size=(12, 5)).round(digits) + [0, 0, 0, 0.2, 0.4]
    statistic, p = friedman(values)
    expected = stats.friedmanchisquare(*values.T)
    assert statistic == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue)


def test_ranks_share_what_is_equal_and_blanks_come_last() -> None:
    assert block_ranks(np.array([[0.2, 0.9, 0.9, 0.1]])).tolist() == [[3.0, 1.5, 1.5, 4.0]]
    found = RankTest.of(np.array([[0.2, np.nan, 0.9]] * 10))
    assert found.mean_ranks.tolist() == [2.0, 3.0, 1.0]


@pytest.mark.parametrize(("k", "q"), PRINTED_Q.items())
def test_critical_differences_are_the_printed_ones(k: int, q: float) -> None:
    expected = q * math.sqrt(k * (k + 1) / (6 * 14))
    assert critical_difference(k, 14) == pytest.approx(expected, rel=5e-4)
    exact = stats.studentized_range.ppf(0.95, k, np.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / 84)
    assert critical_difference(k, 14) == pytest.approx(exact)


def test_demsars_example() -> None:
    """Four methods on 14 data sets with mean ranks 3.143, 2.000, 2.893, 1.964: Demšar 2006, section 3.2.2."""
    values = np.array([
        [0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970],
    ])  # fmt: skip
    found = RankTest.of(values)
    assert found.mean_ranks == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.difference == pytest.approx(1.25, abs=5e-3)
    assert found.told_from_best.tolist() == [False, False, False, False]
    without_ties = 12 * 14 / (4 * 5) * (sum(rank**2 for rank in found.mean_ranks) - 4 * 25 / 4)
    assert without_ties == pytest.approx(9.28, abs=5e-3)  # as printed; ours corrects for equal figures
    assert found.statistic > without_ties


def test_letters_name_groups_in_which_nobody_can_be_told() -> None:
    base = np.array([[4.0, 3.0, 2.0, 1.0]] * 10)
    swapped = base.copy()
    swapped[:5] = [[3.0, 4.0, 1.0, 2.0]] * 5
    found = RankTest.of(swapped)  # mean ranks 1.5, 1.5, 3.5, 3.5; critical difference 1.48
    assert found.letters == ["a", "a", "b", "b"]
    assert found.told_from_best.tolist() == [False, False, True, True]
    chain = RankTest.of(base)  # mean ranks 1, 2, 3, 4
    assert chain.letters == ["a", "ab", "bc", "c"]
    for one in range(4):
        for other in range(4):
            apart = abs(chain.mean_ranks[one] - chain.mean_ranks[other]) > chain.difference
            assert apart == (not set(chain.letters[one]) & set(chain.letters[other]))


def test_noise_gives_no_order() -> None:
    found = RankTest.of(np.random.default_rng(3).normal(size=(9, 5)))
    assert found.p > 0.05
    assert math.isinf(found.difference)
    assert set(found.letters) == {"a"}
    alike = RankTest.of(np.ones((9, 3)))
    assert (alike.p, alike.letters) == (1.0, ["a"] * 3)


def test_differences_over_seeds_are_students() -> None:
    values = np.array([[1.0, 0.7, 0.95], [1.2, 0.8, 1.21], [1.1, 0.6, 1.0]])
    found = differences_over_seeds(values)
    assert found.best == 0
    for method in (1, 2):
        each = [row[0] - row[method] for row in values]
        low, high = stats.ttest_1samp(each, 0.0).confidence_interval(1 - 0.05 / 2)
        assert found.lacking[method] == pytest.approx(statistics.fmean(each))
        assert found.lacking[method] - found.half[method] == pytest.approx(low)
        assert found.lacking[method] + found.half[method] == pytest.approx(high)
    assert found.told_from_best.tolist() == [False, True, False]


def test_differences_over_resamples_use_their_deviation() -> None:
    figures = np.array([0.5, 0.9, 0.8])
    resampled = figures + np.random.default_rng(0).normal(scale=[0.1, 0.1, 0.1], size=(400, 3))
    found = differences_over_resamples(figures, resampled)
    assert found.best == 1
    each = [row[1] - row[2] for row in resampled]
    assert found.half[2] == pytest.approx(stats.norm.ppf(1 - 0.05 / 4) * statistics.stdev(each))
    assert found.told_from_best.tolist() == [True, False, False]
    assert math.isnan(found.half[1])


def test_resampled_sums_are_those_of_the_drawn_samples() -> None:
    rng = np.random.default_rng(5)
    labels = np.array([0, 1, 2] * 10 + [UNKNOWN] * 12 + [-1] * 5)
    predicted = [rng.integers(0, 3, len(labels)) for _ in range(2)]
    scores = [rng.normal(size=len(labels)).round(1) for _ in range(2)]
    found = resampled_sums(labels, predicted, scores, unknown_label=UNKNOWN, n=6, seed=9)
    draws = np.random.default_rng(9)
    known, unknown = np.flatnonzero(labels >= 0), np.flatnonzero(labels == UNKNOWN)
    for row in found:
        drawn = np.concatenate((draws.choice(known, len(known)), draws.choice(unknown, len(unknown))))
        for system in range(2):
            own = Predictions(predicted[system][drawn], scores[system][drawn])
            assert row[system] == pytest.approx(ccr_fpr_sum(oscr_curve(labels[drawn], own, unknown_label=UNKNOWN)))


def test_a_method_that_is_the_same_lacks_nothing_in_any_resample() -> None:
    rng = np.random.default_rng(6)
    labels = np.array([0, 1] * 20 + [UNKNOWN] * 20)
    predicted, score = rng.integers(0, 2, len(labels)), rng.normal(size=len(labels))
    sums = resampled_sums(labels, [predicted] * 2, [score, 2 * score], unknown_label=UNKNOWN)
    found = differences_over_resamples(sums[0], sums)
    assert found.lacking.tolist() == [0.0, 0.0]
    assert not found.told_from_best.any()
