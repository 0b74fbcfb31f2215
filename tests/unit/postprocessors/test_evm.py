"""EVM against the stored outputs of the original code and against the paper's loops.

``tests/data/evm_golden.npz`` holds small seeded inputs and what the published implementation (Vastlab/vast) returns
for them in float64: the EVM part of the project's golden values, arrays unchanged. ``evm_probs_tail{t}_mult{m}`` are
(Q, 6) probabilities by cosine distance without model reduction, fitted on the rows of ``train_correct``; with
``_cover`` they are those of the stored extreme rows; ``weibull_low_class0_…`` are shape, scale and smallest score.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize
from scipy.spatial.distance import cdist

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.numerics.evm.shard import RowShard
from oscbench.numerics.evm.source import LocalSource
from oscbench.postprocessors.base import NEVER_WINS
from oscbench.postprocessors.evm import Evm, EvmParams
from oscbench.tuning import best_one_by_one, evaluate_grid

GOLDEN = dict(np.load(Path(__file__).parents[2] / "data" / "evm_golden.npz", allow_pickle=False))
STORED = {
    EvmParams(tail_size=int(match[1]), distance_multiplier=float(match[2])): GOLDEN[match[0]]
    for match in (re.fullmatch(r"evm_probs_tail(\d+)_mult([\d.]+)", key) for key in GOLDEN)
    if match
}
COVERED = EvmParams(tail_size=20, distance_multiplier=0.7, cover_threshold=0.5)


def golden_train() -> FeatureSet:
    return FeatureSet.from_arrays(
        embedding=GOLDEN["train_features"],
        labels=GOLDEN["train_labels"],
        logits=GOLDEN["train_logits"],
        n_known=6,
    )


def inputs(embedding: np.ndarray, n_known: int = 6) -> Inputs:
    return Inputs(embedding=embedding, logits=None, n_known=n_known)


QUERIES = inputs(GOLDEN["query_features"])


def test_there_are_sixteen_stored_settings() -> None:
    assert len(STORED) == 16
    np.testing.assert_array_equal(golden_train().correct_mask(), GOLDEN["train_correct"])


@pytest.mark.parametrize("params", STORED, ids=str)
def test_probabilities_equal_the_original(params: EvmParams) -> None:
    probabilities = Evm(params, score_kind="probability").fit(golden_train()).score(QUERIES)
    np.testing.assert_allclose(probabilities, STORED[params], atol=1e-6)
    logs = Evm(params, score_kind="log").fit(golden_train()).score(QUERIES)
    np.testing.assert_allclose(1 - np.exp(-np.exp(np.clip(logs, -700, 5))), STORED[params], atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_float32_path_equals_the_original(compiled: bool) -> None:
    source = LocalSource(Evm.gallery(golden_train(), EvmParams()), compiled=compiled)
    label, score, _ = Evm.best_of_settings(
        golden_train(), QUERIES, list(STORED), score_kind="probability", source=source
    )
    expected = np.stack(list(STORED.values()), axis=1)  # (Q, S, 6)
    np.testing.assert_allclose(score, expected.max(axis=2), atol=1e-4)
    chosen = np.take_along_axis(expected, label[:, :, None].astype(np.intp), axis=2)[:, :, 0]
    np.testing.assert_allclose(chosen, expected.max(axis=2), atol=1e-4)


def test_weibull_parameters_equal_the_original() -> None:
    shard = RowShard(Evm.gallery(golden_train(), EvmParams()), precision="float64")
    shard.fit([EvmParams(tail_size=20, distance_multiplier=0.4)])
    stored = GOLDEN["weibull_low_class0_tail20_mult0.4"]
    assert shard.fits is not None
    np.testing.assert_allclose(shard.fits.shape[: len(stored), 0], stored[:, 0], rtol=1e-6)
    np.testing.assert_allclose(np.exp(shard.fits.log_scale[: len(stored), 0]), stored[:, 1], rtol=1e-6)
    np.testing.assert_allclose(1 - shard.fits.reach[: len(stored), 0], stored[:, 2], atol=1e-6)


def test_stored_extreme_rows_give_the_stored_probabilities() -> None:
    gallery = Evm.gallery(golden_train(), COVERED)
    keep = np.zeros((len(gallery), 1), bool)
    for c, first in enumerate(gallery.class_starts[:-1]):
        keep[first + GOLDEN[f"evm_extreme_rows_tail20_mult0.7_cover0.5_class{c}"]] = True
    shard = RowShard(gallery, precision="float64")
    shard.fit([COVERED])
    shard.restrict(keep)
    probabilities = shard.class_scores(QUERIES.embedding, 0, "probability", -1.0)
    np.testing.assert_allclose(probabilities, GOLDEN["evm_probs_tail20_mult0.7_cover0.5"], atol=1e-6)


def test_own_cover_includes_every_training_row() -> None:
    """What a cover is for: each correct row is included by a kept row of its class with at least the threshold."""
    train = golden_train()
    method = Evm(COVERED, score_kind="probability").fit(train)
    correct = train.correct_mask()
    included = method.score(inputs(train.embedding[correct]))
    own = included[np.arange(len(included)), train.labels[correct]]
    assert (own >= 0.5 - 1e-9).all()
    full = Evm(dataclasses.replace(COVERED, cover_threshold=1.0), score_kind="probability").fit(train).score(QUERIES)
    reduced = method.score(QUERIES)
    assert (reduced <= full).all()
    assert (reduced < full).any()


# --- the paper's loops -----------------------------------------------------------------------------------------------


def paper_probability(train: FeatureSet, queries: np.ndarray, params: EvmParams) -> np.ndarray:
    """Equations 2 and 6 row by row; the fit by a root finder on the likelihood equation."""
    rows = np.flatnonzero(train.correct_mask())
    out = np.zeros((len(queries), train.n_known))
    for i in rows:
        others = [j for j in rows if train.labels[j] != train.labels[i]]
        if params.negatives:
            others += np.flatnonzero(train.labels == -1).tolist()
        distances = sorted(cdist(train.embedding[i][None], train.embedding[others], params.metric)[0])
        tail = [params.distance_multiplier * d for d in distances[: params.tail_size]]
        x = np.array([1 + tail[-1] - d for d in tail])

        def equation(k: float, x: np.ndarray = x) -> float:
            power = (x / x.max()) ** k
            return float((power * np.log(x)).sum() / power.sum() - 1 / k - np.log(x).mean())

        k = optimize.brentq(equation, 1e-3, 1e6)
        scale = x.max() * np.mean((x / x.max()) ** k) ** (1 / k)
        for q, query in enumerate(queries):
            d = cdist(query[None], train.embedding[i][None], params.metric)[0, 0]
            base = max(0.0, 1 + tail[-1] - d)
            inclusion = 1 - math.exp(-min(700.0, (base / scale) ** k))
            out[q, train.labels[i]] = max(out[q, train.labels[i]], inclusion)
    return out


def small_train(seed: int = 0, n: int = 40) -> FeatureSet:
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(9).normal(size=(4, 5))
    labels = rng.permutation(np.arange(n) % 4 - 1)
    embedding = 1.5 * means[labels] + rng.normal(size=(n, 5))
    return FeatureSet.from_arrays(embedding=embedding, labels=labels, logits=embedding @ means[:3].T, n_known=3)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("negatives", [False, True])
def test_scores_equal_the_paper(metric: str, negatives: bool) -> None:
    train, queries = small_train(), small_train(seed=1, n=12).embedding
    for tail_size, multiplier in ((3, 0.3), (12, 1.0)):
        params = EvmParams(
            tail_size=tail_size,
            distance_multiplier=multiplier,
            metric=metric,
            negatives=negatives,
        )
        scores = Evm(params, score_kind="probability").fit(train).score(inputs(queries, 3))
        np.testing.assert_allclose(scores, paper_probability(train, queries, params), atol=1e-7)


@pytest.mark.parametrize("negatives", [False, True])
def test_unknowns_are_never_looked_at(negatives: bool) -> None:
    """Rows of label -2 stand amid the known ones, where they would shorten every tail."""
    train = small_train()
    known = train.embedding[train.labels >= 0]
    with_unknowns = FeatureSet.from_arrays(
        embedding=np.concatenate([train.embedding, 1.001 * known]),
        labels=np.concatenate([train.labels, np.full(len(known), -2)]),
        logits=np.concatenate([train.logits, np.zeros((len(known), 3))]),
        n_known=3,
    )
    params = EvmParams(tail_size=5, negatives=negatives)
    n_rows = train.correct_mask().sum() + (negatives * (train.labels == -1)).sum()
    assert len(Evm.gallery(with_unknowns, params).rows) == n_rows
    queries = inputs(small_train(seed=1, n=12).embedding, 3)
    scores = Evm(params, score_kind="probability").fit(with_unknowns).score(queries)
    np.testing.assert_allclose(scores, paper_probability(train, queries.embedding, params), atol=1e-7)
    together = Evm.best_of_settings(with_unknowns, queries, [params], score_kind="log")
    for one, other in zip(together, Evm.best_of_settings(train, queries, [params], score_kind="log"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_unknowns_alone_are_no_negatives() -> None:
    train = small_train()
    with pytest.raises(UsageError, match="hold no negatives"):
        Evm(EvmParams(negatives=True)).fit(
            dataclasses.replace(train, labels=np.where(train.labels < 0, -2, train.labels))
        )


@pytest.mark.parametrize("kind", ["log", "probability"])
def test_float64_grid_equals_fit_score_metric_exactly(kind: str) -> None:
    train, validation = small_train(0, 200), small_train(1, 150)
    settings = [
        EvmParams(tail_size=t, distance_multiplier=m, cover_threshold=c)
        for t, m, c in itertools.product((1, 8, 40), (0.2, 1.0), (1.0, 0.6))
    ]
    source = LocalSource(Evm.gallery(train, settings[0]), precision="float64")
    label, score = source.best(validation.embedding, settings, score_kind=kind)
    single = best_one_by_one(Evm, train, validation.inputs(), settings, score_kind=kind)
    np.testing.assert_array_equal(label, single[0])
    np.testing.assert_array_equal(score, single[1])


def test_float32_grid_is_within_one_sample_per_rate() -> None:
    train, validation = small_train(0, 400), small_train(1, 300)
    settings = [
        EvmParams(tail_size=t, distance_multiplier=m) for t, m in itertools.product((8, 40, 90), (0.2, 0.5, 1.0))
    ]
    reference = LocalSource(Evm.gallery(train, settings[0]), precision="float64")
    fast = evaluate_grid("evm", train, validation, settings)
    slow = evaluate_grid("evm", train, validation, settings, source=reference)
    one_sample = 1.0 / np.count_nonzero(validation.labels >= 0)
    for column in ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"):
        np.testing.assert_allclose(fast[column], slow[column], atol=one_sample + 1e-12)


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "probability"])
@pytest.mark.parametrize("empty", [0, 1])
def test_class_without_correct_rows_never_wins(kind: str, empty: int) -> None:
    train = small_train(0, 120)
    assert train.logits is not None
    logits = train.logits.copy()
    logits[train.labels == empty, (empty + 1) % 3] += 1e3
    train = dataclasses.replace(train, logits=logits)
    far = inputs(-100.0 * train.embedding, 3)  # all probabilities are 0 here
    method = Evm(EvmParams(tail_size=10), score_kind=kind).fit(train)
    scores = method.score(far)
    assert np.isfinite(scores).all()
    assert (scores[:, empty] == NEVER_WINS[kind]).all()
    assert (scores.argmax(axis=1) != empty).all()
    assert str(method.notes[0]).endswith(f"never predicted: {empty}")
    label, _, notes = Evm.best_of_settings(train, far, [method.params], score_kind=kind)
    np.testing.assert_array_equal(label[:, 0], scores.argmax(axis=1))
    assert notes == method.notes


def test_constant_and_clipped_tails_are_counted() -> None:
    train = small_train(0, 120)
    method = Evm(EvmParams(tail_size=1)).fit(train)
    assert method.counts.constant == method.counts.fits == train.correct_mask().sum()
    method = Evm(EvmParams(tail_size=1000)).fit(train)
    assert method.counts.clipped == method.counts.fits
    assert any("clipped" in note.form for note in method.notes)


def test_step_of_a_single_distance_lies_at_the_multiplied_distance() -> None:
    train = small_train(0, 60)
    method = Evm(EvmParams(tail_size=1, distance_multiplier=0.5), score_kind="probability").fit(train)
    rows = np.flatnonzero(train.correct_mask())
    queries = small_train(3, 50).embedding
    between = cdist(train.embedding[rows], train.embedding[rows], "cosine")
    between[train.labels[rows][:, None] == train.labels[rows][None, :]] = np.inf
    inside = cdist(queries, train.embedding[rows], "cosine") < 0.5 * between.min(axis=1)
    expected = np.stack([inside[:, train.labels[rows] == c].any(axis=1) for c in range(3)], axis=1)
    scores = method.score(inputs(queries, 3))
    assert set(np.unique(scores)) <= {0.0, 1.0}
    np.testing.assert_array_equal(scores == 1.0, expected)


def test_without_logits_all_known_rows_count_and_it_says_so() -> None:
    train = dataclasses.replace(small_train(0, 120), logits=None)
    method = Evm(EvmParams(tail_size=5)).fit(train)
    assert method.counts.fits == (train.labels >= 0).sum()
    assert "no logits" in str(method.notes[0])


def test_a_given_source_is_used_but_not_for_covers() -> None:
    class Counting(LocalSource):
        asked: list[float] = []

        def best(self, queries, settings, **options):
            self.asked += [setting.cover_threshold for setting in settings]
            return super().best(queries, settings, **options)

    train = small_train(0, 120)
    settings = [EvmParams(tail_size=9, cover_threshold=c) for c in (0.5, 1.0)]
    source = Counting(Evm.gallery(train, settings[0]))
    label, score, _ = Evm.best_of_settings(train, train.inputs(), settings, score_kind="log", source=source)
    assert source.asked == [1.0]
    own = Evm.best_of_settings(train, train.inputs(), settings, score_kind="log")
    np.testing.assert_array_equal(label, own[0])
    np.testing.assert_allclose(score, own[1], rtol=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tail_size": 0}, "tail_size must be >= 1, got 0"),
        ({"distance_multiplier": 0.0}, "distance_multiplier must be > 0 and finite, got 0.0"),
        ({"distance_multiplier": float("nan")}, "distance_multiplier must be > 0 and finite, got nan"),
        ({"cover_threshold": 0.0}, r"cover_threshold must be in \(0, 1\], got 0.0"),
        ({"cover_threshold": 1.5}, r"cover_threshold must be in \(0, 1\], got 1.5"),
        ({"metric": "manhattan"}, "metric must be one of cosine, euclidean, got 'manhattan'"),
    ],
)
def test_bad_parameters_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EvmParams(**changes)


def changed(data: FeatureSet, row: int, value: float) -> FeatureSet:
    embedding = data.embedding.copy()
    embedding[row] = value
    return dataclasses.replace(data, embedding=embedding)


def test_bad_rows_are_named_by_their_place_in_the_set() -> None:
    train = small_train(0, 60)
    row = int(np.flatnonzero(train.correct_mask())[20])
    with pytest.raises(UsageError, match=f"training embedding: row {row} holds NaN or infinity"):
        Evm().fit(changed(train, row, np.nan))
    with pytest.raises(UsageError, match=f"training embedding: row {row} is all zero"):
        Evm().fit(changed(train, row, 0.0))
    Evm(EvmParams(metric="euclidean")).fit(changed(train, row, 0.0))
    method = Evm().fit(train)
    with pytest.raises(UsageError, match="query features: row 4 has length zero"):
        method.score(changed(train, 4, 0.0).inputs())


def test_training_sets_that_cannot_be_fitted_are_refused() -> None:
    train = small_train(0, 60)
    one_class = dataclasses.replace(train, labels=np.where(train.labels == 1, 1, -1), logits=None)
    with pytest.raises(UsageError, match="a second class"):
        Evm().fit(one_class)
    Evm(EvmParams(negatives=True, tail_size=5)).fit(one_class)
    with pytest.raises(UsageError, match="none of the 60 training rows is known"):
        Evm().fit(dataclasses.replace(train, labels=np.full(60, -1)))
    with pytest.raises(UsageError, match="hold no negatives"):
        Evm(EvmParams(negatives=True)).fit(dataclasses.replace(train, labels=np.maximum(train.labels, 0)))
