"""OpenMax against the original code's values, against the paper's loops, and at its edges."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.numerics.openmax import _knownness
from oscbench.postprocessors.base import NEVER_WINS
from oscbench.postprocessors.openmax import OpenMax, OpenMaxParams, _Model
from oscbench.records import from_mapping
from oscbench.tuning import best_one_by_one, evaluate_grid

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "openmax_golden.npz", allow_pickle=False)
GRID = [
    OpenMaxParams(tail_size=tail, distance_multiplier=kappa, alpha=alpha, weights=weights)
    for tail, kappa, alpha, weights in itertools.product(
        (1, 5, 12, 40), (0.7, 1.5, 2.3), (1, 2, 5, 9), ("paper", "code")
    )
]


def golden_train() -> FeatureSet:
    return FeatureSet.from_arrays(
        embedding=GOLDEN["train_features"], labels=GOLDEN["train_labels"], logits=GOLDEN["train_logits"], n_known=6
    )


def golden_queries() -> Inputs:
    return Inputs(embedding=GOLDEN["query_features"], logits=GOLDEN["query_logits"], n_known=6)


def gaussian_set(seed: int, n: int = 150, n_known: int = 7, dim: int = 5, spread: float = 1.0) -> FeatureSet:
    """Class means on random directions and a linear classifier that gets some of them wrong."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(0).normal(size=(n_known + 2, dim))
    labels = rng.integers(-2, n_known, n)
    embedding = means[labels] + spread * rng.normal(size=(n, dim))
    return FeatureSet.from_arrays(
        embedding=embedding, labels=labels, logits=2.0 * embedding @ means[:n_known].T, n_known=n_known
    )


# --- the original code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [key for key in GOLDEN.files if key.startswith("openmax_probs")])
def test_probabilities_equal_the_original_code(key: str) -> None:
    tail, multiplier, alpha = re.fullmatch(r"openmax_probs_tail(\d+)_mult([\d.]+)_alpha(\d+)", key).groups()
    params = OpenMaxParams(tail_size=int(tail), distance_multiplier=float(multiplier), alpha=int(alpha))
    scores = {
        kind: OpenMax(params, score_kind=kind).fit(golden_train()).score(golden_queries())
        for kind in ("probability", "log", "published")
    }
    np.testing.assert_allclose(scores["probability"], GOLDEN[key], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.exp(scores["log"]), GOLDEN[key], rtol=0, atol=1e-6)
    np.testing.assert_allclose(scores["published"], GOLDEN[key], rtol=0, atol=3e-6)  # in single precision


@pytest.mark.parametrize("key", [key for key in GOLDEN.files if key.startswith("openmax_evt")])
def test_knownness_equals_the_original_code(key: str) -> None:
    tail, multiplier = re.fullmatch(r"openmax_evt_tail(\d+)_mult([\d.]+)", key).groups()
    model = _Model.fit(golden_train(), [OpenMaxParams(tail_size=int(tail), distance_multiplier=float(multiplier))])
    _, distances = model.look_at(golden_queries())
    knownness = [[_knownness(row[k], *(part[0, k] for part in model.fits)) for k in range(6)] for row in distances]
    np.testing.assert_allclose(knownness, GOLDEN[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", [0, 1])
def test_fits_equal_the_original_code(label: int) -> None:
    fits = _Model.fit(golden_train(), [OpenMaxParams(tail_size=20, distance_multiplier=1.5)]).fits
    ours = fits.shape[0, label], math.exp(fits.log_scale[0, label]), fits.shift[0, label]
    np.testing.assert_allclose(ours, GOLDEN[f"weibull_high_class{label}_tail20_mult1.5"], rtol=1e-6)


# --- the paper's loops ---------------------------------------------------------------------------------------------


def fit_by_bisection(tail: list[float]) -> tuple[float, float]:
    """Shape and scale of a two-parameter Weibull by maximum likelihood, one tail, plain sums."""

    def likelihood_slope(k: float) -> float:
        powers = [(x / max(tail)) ** k for x in tail]
        weighted = sum(p * math.log(x) for p, x in zip(powers, tail, strict=True)) / sum(powers)
        return weighted - 1 / k - sum(math.log(x) for x in tail) / len(tail)

    shape = brentq(likelihood_slope, 1e-3, 1e7, xtol=1e-12, rtol=1e-14)
    mean_power = sum((x / max(tail)) ** shape for x in tail) / len(tail)
    return shape, max(tail) * mean_power ** (1 / shape)


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def openmax_by_loops(train: FeatureSet, queries: Inputs, params: OpenMaxParams) -> np.ndarray:
    """Algorithms 1 and 2 of the paper, sample by sample and class by class."""
    assert train.logits is not None
    assert queries.logits is not None
    n_known = train.n_known
    fits = []
    for label in range(n_known):
        rows = [
            train.embedding[n]
            for n in range(len(train))
            if train.labels[n] == label and max(range(n_known), key=lambda k: train.logits[n, k]) == label
        ]
        mean = sum(rows) / len(rows)
        tail = sorted((cosine_distance(row, mean) for row in rows), reverse=True)[: params.tail_size]
        shifted = [1 + params.distance_multiplier * (d - tail[-1]) for d in tail]
        shape, scale = fit_by_bisection(shifted) if max(shifted) > 1 else (1e6, 1.0)
        fits.append((mean, params.distance_multiplier * tail[-1], shape, scale))
    offset = 1 if params.weights == "code" else 0
    alpha = min(params.alpha, n_known)
    probabilities = np.empty((len(queries), n_known))
    for q in range(len(queries)):
        logits = [float(v) for v in queries.logits[q, :n_known]]
        revised, unknown = list(logits), 0.0
        for i, k in enumerate(sorted(range(n_known), key=lambda k: -logits[k])[:alpha], start=1):
            mean, shift, shape, scale = fits[k]
            x = max(0.0, 1 + cosine_distance(queries.embedding[q], mean) - shift)
            with np.errstate(over="ignore"):  # far beyond the tail the power is infinite and the knownness 0
                knownness = float(np.exp(-(np.float64(x / scale) ** shape)))
            revised[k] = logits[k] * (1 - (alpha + offset - i) / alpha * (1 - knownness))
            unknown += logits[k] - revised[k]
        powers = [math.exp(v - max(*revised, unknown)) for v in revised]
        probabilities[q] = np.array(powers) / (sum(powers) + math.exp(unknown - max(*revised, unknown)))
    return probabilities


@pytest.mark.parametrize("weights", ["paper", "code"])
@pytest.mark.parametrize(
    ("tail", "kappa", "alpha"), [(1, 1.5, 3), (6, 0.7, 1), (6, 2.0, 2), (500, 1.3, 4), (9, 1.0, 50)]
)
def test_equals_the_loops_of_the_paper(tail: int, kappa: float, alpha: int, weights: str) -> None:
    params = OpenMaxParams(tail_size=tail, distance_multiplier=kappa, alpha=alpha, weights=weights)
    train, queries = gaussian_set(1), gaussian_set(2, n=40).inputs()
    ours = OpenMax(params, score_kind="probability").fit(train).score(queries)
    np.testing.assert_allclose(ours, openmax_by_loops(train, queries, params), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_any_width_of_features_is_read_as_the_same_numbers(dtype: type) -> None:
    train, queries = gaussian_set(0), gaussian_set(1)
    narrow = [np.round(4 * features.embedding).astype(dtype) for features in (train, queries)]
    scores = []
    for embedding in (narrow, [array.astype(np.float64) for array in narrow]):
        method = OpenMax(OpenMaxParams(tail_size=5, alpha=3)).fit(dataclasses.replace(train, embedding=embedding[0]))
        scores.append(method.score(dataclasses.replace(queries, embedding=embedding[1]).inputs()))
    np.testing.assert_array_equal(*scores)


def test_the_garbage_output_is_not_looked_at() -> None:
    train, queries = gaussian_set(1), gaussian_set(2)
    assert train.logits is not None
    assert queries.logits is not None

    def with_garbage(x: FeatureSet, value: float) -> FeatureSet:
        assert x.logits is not None
        logits = np.hstack([x.logits, np.full((len(x), 1), value)])
        return FeatureSet.from_arrays(embedding=x.embedding, labels=x.labels, logits=logits, n_known=x.n_known)

    plain = OpenMax().fit(train).score(queries.inputs())
    wide = OpenMax().fit(with_garbage(train, 99.0)).score(with_garbage(queries, -99.0).inputs())
    np.testing.assert_array_equal(plain, wide)


def test_the_first_weight_of_one_revised_logit_is_zero_in_the_paper() -> None:
    train, queries = gaussian_set(1), gaussian_set(2).inputs()
    assert queries.logits is not None
    ours = OpenMax(OpenMaxParams(alpha=1), score_kind="probability").fit(train).score(queries)
    powers = np.exp(queries.logits)
    np.testing.assert_allclose(ours, powers / (1 + powers.sum(axis=1, keepdims=True)), rtol=1e-12)  # unknown logit 0


# --- the grid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "probability", "published"])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_grid_equals_single_settings_to_the_last_bit(kind: str, scale: float) -> None:
    """Also where logits of several hundred make whole rows of probabilities exactly 0 or 1."""
    train, validation = gaussian_set(3), gaussian_set(4)
    assert validation.logits is not None
    queries = Inputs(embedding=validation.embedding, logits=scale * validation.logits, n_known=7)
    together = OpenMax.best_of_settings(train, queries, GRID, score_kind=kind)
    one_by_one = best_one_by_one(OpenMax, train, queries, GRID, score_kind=kind)
    np.testing.assert_array_equal(together[0], one_by_one[0])
    np.testing.assert_array_equal(together[1], one_by_one[1])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(1, 6),
    levels=st.integers(1, 3),
    kind=st.sampled_from(["log", "probability", "published"]),
)
def test_ties_go_to_the_lowest_class_in_both_paths(seed: int, classes: int, levels: int, kind: str) -> None:
    """Logits and embeddings from very few values, so that ranks, revised logits and scores tie all the time."""
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % classes
    logits = np.where(np.arange(classes) == labels[:, None], 1.0, 0.0)
    train = FeatureSet.from_arrays(
        embedding=rng.integers(1, 3, (60, 2)).astype(float), labels=labels, logits=logits, n_known=classes
    )
    queries = Inputs(
        embedding=rng.integers(1, 3, (40, 2)).astype(float),
        logits=400.0 * rng.integers(-levels, levels + 1, (40, classes)),
        n_known=classes,
    )
    together = OpenMax.best_of_settings(train, queries, GRID[::5], score_kind=kind)
    one_by_one = best_one_by_one(OpenMax, train, queries, GRID[::5], score_kind=kind)
    np.testing.assert_array_equal(together[0], one_by_one[0])
    np.testing.assert_array_equal(together[1], one_by_one[1])


def test_table_of_the_grid_equals_tables_of_single_settings() -> None:
    train, validation = gaussian_set(3), gaussian_set(4, n=400)
    table = evaluate_grid("openmax", train, validation, GRID)
    assert table["weights"].tolist() == [params.weights for params in GRID]
    for s in (0, 17, 50, len(GRID) - 1):
        single = evaluate_grid("openmax", train, validation, [GRID[s]])
        assert single.iloc[0].equals(table.iloc[s].rename(0))
    assert table["sum"].nunique() > 10


def test_log_scores_order_as_probabilities_and_do_not_saturate() -> None:
    train, validation = gaussian_set(3), gaussian_set(4, n=400, spread=0.3)
    assert validation.logits is not None
    queries = Inputs(embedding=validation.embedding, logits=8.0 * validation.logits, n_known=7)
    probability, log = (
        OpenMax(OpenMaxParams(tail_size=12), score_kind=kind).fit(train).score(queries)
        for kind in ("probability", "log")
    )
    order = np.argsort(log.ravel(), kind="stable")
    assert (np.diff(probability.ravel()[order]) >= -1e-15).all()
    best = log.max(axis=1)
    assert len(np.unique(probability.max(axis=1))) < len(np.unique(best)) == len(best)


# --- edges ---------------------------------------------------------------------------------------------------------


def without_correct_rows(train: FeatureSet, label: int) -> FeatureSet:
    assert train.logits is not None
    logits = train.logits.copy()
    logits[train.labels == label, label] = logits.min() - 1.0
    return FeatureSet.from_arrays(embedding=train.embedding, labels=train.labels, logits=logits, n_known=train.n_known)


@pytest.mark.parametrize("kind", ["log", "probability", "published"])
def test_class_without_correct_row_is_named_and_never_wins(kind: str) -> None:
    train = without_correct_rows(gaussian_set(3), 0)
    queries = gaussian_set(4).inputs()
    assert queries.logits is not None
    # Large logits make all probabilities of a far query exactly 0, where a tie would fall to class 0.
    far = Inputs(embedding=-queries.embedding, logits=1e4 * queries.logits, n_known=7)
    for inputs in (queries, far):
        model = OpenMax(OpenMaxParams(alpha=3), score_kind=kind).fit(train)
        scores = model.score(inputs)
        assert (scores[:, 0] == NEVER_WINS[kind]).all()
        assert np.isfinite(scores).all()
        assert (scores.argmax(axis=1) != 0).all()
        best, _, notes = OpenMax.best_of_settings(train, inputs, [OpenMaxParams(alpha=3)], score_kind=kind)
        np.testing.assert_array_equal(best[:, 0], scores.argmax(axis=1))
    assert "OpenMax: 1 classes have no correct training row and are never predicted: 0" in map(str, model.notes)
    assert notes == model.notes


def test_the_other_classes_are_as_if_it_were_not_there() -> None:
    train, queries = gaussian_set(3), gaussian_set(4).inputs()
    assert train.logits is not None
    assert queries.logits is not None
    train.logits[:, 0] = -1e3  # no row is taken for class 0, so that the other classes keep their correct rows
    rest = train.labels != 0
    smaller = FeatureSet.from_arrays(
        embedding=train.embedding[rest],
        labels=np.where(train.labels > 0, train.labels - 1, train.labels)[rest],
        logits=train.logits[rest, 1:],
        n_known=6,
    )
    fewer = Inputs(embedding=queries.embedding, logits=queries.logits[:, 1:], n_known=6)
    scores = OpenMax(OpenMaxParams(alpha=3)).fit(train).score(queries)
    np.testing.assert_array_equal(scores[:, 1:], OpenMax(OpenMaxParams(alpha=3)).fit(smaller).score(fewer))


def test_clipped_alpha_and_tail_are_counted() -> None:
    train, queries = gaussian_set(3), gaussian_set(4).inputs()
    clipped = OpenMax(OpenMaxParams(alpha=50, tail_size=10**6)).fit(train)
    counts = np.bincount(train.labels[train.correct_mask()])
    assert (
        f"OpenMax: tail size 1000000 clipped for 7 of 7 classes, the smallest has {counts.min()} correct rows"
        in map(str, clipped.notes)
    )
    assert "OpenMax: alpha up to 50 clipped to 7 classes in 1 settings" in map(str, clipped.notes)
    exact = OpenMax(OpenMaxParams(alpha=7, tail_size=int(counts.max()))).fit(train)
    np.testing.assert_array_equal(clipped.score(queries), exact.score(queries))
    assert OpenMax(OpenMaxParams(alpha=7, tail_size=int(counts.min()))).fit(train).notes == ()


def test_tail_of_one_is_a_step() -> None:
    train = gaussian_set(3)
    model = OpenMax(OpenMaxParams(tail_size=1, distance_multiplier=1.5, alpha=2), score_kind="probability").fit(train)
    assert "OpenMax: 7 of 7 tails have no spread and became a step" in map(str, model.notes)
    inner = _Model.fit(train, [model.params])
    assert (inner.fits.shape == 1e6).all()
    assert (inner.fits.log_scale == 0).all()
    for distance, expected in ((0.9, 1.0), (1.0, math.exp(-1)), (1.1, 0.0)):
        knownness = _knownness(distance * inner.fits.shift[0, 0], *(part[0, 0] for part in inner.fits))
        assert knownness == pytest.approx(expected, abs=1e-9)


def test_equal_rows_are_a_step_and_not_an_error() -> None:
    labels = np.arange(20) % 2
    embedding = np.array([[1.0, 0.1], [0.2, 1.0]])[labels]
    train = FeatureSet.from_arrays(embedding=embedding, labels=labels, logits=embedding, n_known=2)
    model = OpenMax(OpenMaxParams(tail_size=5, alpha=2)).fit(train)
    assert "OpenMax: 2 of 2 tails have no spread and became a step" in map(str, model.notes)
    assert np.isfinite(model.score(train.inputs())).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"distance_multiplier": 0.0}, "distance_multiplier must be > 0"),
        ({"distance_multiplier": -1.5}, "distance_multiplier must be > 0"),
        ({"distance_multiplier": math.nan}, "distance_multiplier must be > 0"),
        ({"tail_size": 0}, "tail_size must be >= 1"),
        ({"alpha": 0}, "alpha must be >= 1"),
        ({"weights": "mine"}, "paper"),
    ],
)
def test_impossible_hyperparameters_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OpenMaxParams(**bad)
    with pytest.raises(UsageError, match=f"here: .*{message}"):
        from_mapping(OpenMaxParams, bad, "here")


def test_rows_that_cannot_be_used_are_named() -> None:
    train, queries = gaussian_set(3), gaussian_set(4)
    zero, holed = queries.embedding.copy(), queries.embedding.copy()
    zero[[7, 9]], holed[5, 1] = 0.0, np.nan
    fitted = OpenMax().fit(train)
    with pytest.raises(UsageError, match=r"embedding in row 7 is all zeros .*\(2 such\)"):
        fitted.score(Inputs(embedding=zero, logits=queries.logits, n_known=7))
    with pytest.raises(UsageError, match="row 5 holds NaN"):
        fitted.score(Inputs(embedding=holed, logits=queries.logits, n_known=7))
    row = int(np.flatnonzero(train.correct_mask())[-1])
    zero_train = train.embedding.copy()
    zero_train[row] = 0.0
    with pytest.raises(UsageError, match=f"training embedding in row {row} is all zeros"):
        OpenMax().fit(FeatureSet.from_arrays(embedding=zero_train, labels=train.labels, logits=train.logits, n_known=7))


def test_nothing_classified_correctly_is_refused() -> None:
    train = gaussian_set(3)
    assert train.logits is not None
    logits = train.logits.copy()
    logits[np.arange(len(train)), np.maximum(train.labels, 0)] = -1e3
    with pytest.raises(UsageError, match="no training row is classified correctly"):
        OpenMax().fit(FeatureSet.from_arrays(embedding=train.embedding, labels=train.labels, logits=logits, n_known=7))
