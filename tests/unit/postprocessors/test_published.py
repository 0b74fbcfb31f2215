"""Score kind ``published``: the table of a sure network is the one that the original procedure gives, cell by cell.

The procedure is written here sample by sample, in the precision in which the original code computes each step: softmax
and revised logits in single, distances and Weibull fits in double. On such a network most scores round to exactly 1 in
single precision, and who ties with whom decides the rates.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE
from oscbench.metrics import FPRS, ccr_column
from oscbench.numerics.openmax import TailFits, best_of_grid, best_of_published_grid, rank_logits, score_setting
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.openmax import OpenMaxParams
from oscbench.registry import NoParams
from oscbench.tuning import evaluate_grid

K, D = 20, 8
GRID = [
    OpenMaxParams(tail_size=tail, distance_multiplier=kappa, alpha=alpha)
    for tail, kappa, alpha in itertools.product((5, 12, 40), (1.5, 2.0, 2.3), (2, 3, 5))
]
SURE = 12.0
"""Factor on logits that lie a few units apart."""


def sure_set(seed: int, n: int) -> FeatureSet:
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(0).normal(size=(K + 2, D))
    labels = rng.integers(-1, K, n)
    embedding = (means[labels] + 0.8 * rng.normal(size=(n, D))).astype(np.float32)
    logits = (SURE * (embedding @ means[:K].T - np.sum(means[:K] ** 2, axis=1) / 2)).astype(np.float32)
    return FeatureSet.from_arrays(embedding=embedding, labels=labels, logits=logits, n_known=K)


TRAIN, VALIDATION = sure_set(3, 900), sure_set(4, 400)


def rates_as_published(labels: np.ndarray, scores: np.ndarray) -> list[float]:
    """CCR at the largest false-positive rate strictly below each target, thresholds at scores of negatives only."""
    unknown = [float(max(row)) for row, label in zip(scores, labels, strict=True) if label == NEGATIVE]
    correct = [float(max(row)) for row, label in zip(scores, labels, strict=True) if int(np.argmax(row)) == label]
    n_known = int(np.sum(labels >= 0))
    points = []
    for threshold in sorted(set(unknown)):
        fpr = sum(score >= threshold for score in unknown) / len(unknown)
        points.append((fpr, sum(score >= threshold for score in correct) / n_known))
    return [max([point for point in points if point[0] < fpr], default=(0, math.nan))[1] for fpr in FPRS]


def softmax_of(values: list[np.float32]) -> np.ndarray:
    return torch.softmax(torch.tensor(np.array(values, np.float32)), dim=0).numpy()


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def fitted_weibulls(params: OpenMaxParams) -> list[tuple[np.ndarray, float, float, float]]:
    """Mean, shift, shape and scale of each class, the fit by bisection of the likelihood's slope."""
    fits = []
    wide = TRAIN.embedding.astype(np.float64)
    for label in range(K):
        rows = wide[(TRAIN.labels == label) & (TRAIN.logits.argmax(axis=1) == label)]
        mean = rows.mean(axis=0)
        tail = sorted((cosine_distance(row, mean) for row in rows), reverse=True)[: params.tail_size]
        x = np.array([1 + params.distance_multiplier * (d - tail[-1]) for d in tail])

        def slope(k: float, x: np.ndarray = x) -> float:
            powers = (x / x.max()) ** k
            return float(powers @ np.log(x) / powers.sum() - 1 / k - np.log(x).mean())

        shape = brentq(slope, 1e-3, 1e7, xtol=1e-12, rtol=1e-14)
        scale = x.max() * np.mean((x / x.max()) ** shape) ** (1 / shape)
        fits.append((mean, params.distance_multiplier * tail[-1], shape, scale))
    return fits


def openmax_as_published(params: OpenMaxParams) -> np.ndarray:
    fits, one = fitted_weibulls(params), np.float32(1)
    probabilities = np.empty((len(VALIDATION), K), np.float32)
    for q in range(len(VALIDATION)):
        logits, query = VALIDATION.logits[q], VALIDATION.embedding[q].astype(np.float64)
        revised, taken = list(logits), [np.float32(0)] * K
        for i, k in enumerate(sorted(range(K), key=lambda k: -logits[k])[: params.alpha], start=1):
            mean, shift, shape, scale = fits[k]
            x = max(0.0, 1 + cosine_distance(query, mean) - shift)
            with np.errstate(over="ignore"):
                unknownness = 1 - float(np.exp(-(np.float64(x / scale) ** shape)))
            share = np.float32(params.alpha - i) / np.float32(params.alpha)
            kept = np.float32(1 - float(share) * unknownness)  # multiplied in double, kept in single precision
            revised[k], taken[i - 1] = logits[k] * kept, logits[k] * (one - kept)
        unknown = torch.tensor(np.array(taken)).sum().numpy()
        probabilities[q] = softmax_of([unknown, *revised])[1:]
    return probabilities


def cells(table: Any, s: int) -> list[float]:
    return [float(table[ccr_column(fpr)][s]) for fpr in FPRS]


def table_of(name: str, settings: list[Any], kind: Any) -> Any:
    return evaluate_grid(name, TRAIN, VALIDATION, settings, score_kind=kind, rule="published")


def test_mss_of_a_sure_network() -> None:
    original = np.array([softmax_of(list(row)) for row in VALIDATION.logits])
    ties = np.mean(original.max(axis=1) == 1)
    assert 0.3 < ties < 0.95
    method = POSTPROCESSORS.info("mss").value(score_kind="published").fit(TRAIN)
    np.testing.assert_array_equal(method.score(VALIDATION.inputs()), original)
    expected = rates_as_published(VALIDATION.labels, original)
    np.testing.assert_array_equal(cells(table_of("mss", [NoParams()], "published"), 0), expected)
    assert cells(table_of("mss", [NoParams()], "probability"), 0) != expected  # double precision breaks ties


def test_openmax_of_a_sure_network_in_one_pass_and_setting_by_setting() -> None:
    grid, doubled = table_of("openmax", GRID, "published"), table_of("openmax", GRID, "probability")
    differ = 0
    for s, params in enumerate(GRID):
        original = openmax_as_published(params)
        expected = rates_as_published(VALIDATION.labels, original)
        np.testing.assert_array_equal(cells(grid, s), expected)
        np.testing.assert_array_equal(cells(table_of("openmax", [params], "published"), 0), expected)
        method = POSTPROCESSORS.info("openmax").value(params, score_kind="published").fit(TRAIN)
        scores = method.score(VALIDATION.inputs())
        np.testing.assert_array_equal(scores, scores.astype(np.float32))
        np.testing.assert_allclose(scores, original, rtol=0, atol=2e-6)
        assert 0.1 < np.mean(original.max(axis=1) == 1) < 0.95
        differ += sum(repr(a) != repr(b) for a, b in zip(cells(doubled, s), expected, strict=True))
    assert differ > 5  # so the test can tell


@pytest.mark.parametrize("name", ["evm", "mls"])
def test_the_others_are_as_published_already(name: str) -> None:
    params = POSTPROCESSORS.info(name).params
    tables = [table_of(name, [params()], kind) for kind in ("published", "probability")]
    assert tables[0].equals(tables[1])


# --- the kernels' own guard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, K + 1, 1000])
def test_more_revised_logits_than_classes_are_refused_not_read(alpha: int) -> None:
    rng = np.random.default_rng(0)
    logits, distances = rng.normal(size=(4, K)), rng.uniform(size=(4, K))
    fits = TailFits(*(np.ones((1, K)) for _ in range(3)))
    columns = (np.zeros(1, np.int64), np.array([alpha]), np.zeros(1, np.int64))
    for call in (
        lambda: score_setting(rank_logits(logits), distances, fits, alpha=alpha, offset=0, log=True),
        lambda: best_of_grid(logits, distances, fits, *columns, log=True),
        lambda: best_of_published_grid(logits, distances, fits, *columns),
    ):
        with pytest.raises(ValueError, match=f"alpha must be within 1..{K}, the number of classes, got {alpha}"):
            call()
