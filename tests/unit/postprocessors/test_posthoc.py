"""What the post-hoc methods share: grids, garbage outputs, missing classes, few rows, recovered heads, notes."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
from posthoc_golden import K, fitted, golden, queries, train

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Head, Inputs
from oscbench.numerics.topk import ProductRows
from oscbench.postprocessors import POSTPROCESSORS, knn
from oscbench.postprocessors.posthoc import Posthoc
from oscbench.testing.postprocessors import make_features
from oscbench.tuning import best_one_by_one, evaluate_grid
from oscbench.tuning.evaluator import EvaluationOptions, SharedFeatures
from oscbench.tuning.space import SearchSpace, load_space

METHODS = [
    name
    for name in POSTPROCESSORS.names()
    if isinstance(POSTPROCESSORS.info(name).value, type) and issubclass(POSTPROCESSORS.info(name).grid, Posthoc)
]
WITH_HEAD = [name for name in METHODS if "head" in POSTPROCESSORS.info(name).needs]


def take_rows(rows: FeatureSet, order: Any) -> FeatureSet:
    """Some of the rows, in this order."""
    arrays = {name: np.asarray(getattr(rows, name))[order] for name in ("embedding", "labels", "logits", "pooled")}
    return FeatureSet.from_arrays(**arrays, n_known=rows.n_known, head=rows.head)


def grid(name: str) -> list[Any]:
    params = POSTPROCESSORS.info(name).params
    return [params(**point) for point in load_space(name, params).settings()]


def scores(name: str, rows: FeatureSet, inputs: Inputs | None = None, **params: Any) -> Any:
    return fitted(name, rows, **params).predict(queries() if inputs is None else inputs).score


@pytest.mark.parametrize("name", METHODS)
def test_the_published_grid_in_one_pass_equals_setting_by_setting(name: str) -> None:
    """To the last bit, but where a product of another shape adds in another order."""
    method, settings = POSTPROCESSORS.info(name), grid(name)
    kind = method.score_kinds[0]
    together = method.grid.best_of_settings(train(), queries(), settings, score_kind=kind)
    single = best_one_by_one(method.value, train(), queries(), settings, score_kind=kind)
    np.testing.assert_array_equal(together.label, single.label)
    np.testing.assert_allclose(together.score, single.score, rtol=1e-12, atol=1e-13 * np.abs(single.score).max())


@pytest.mark.parametrize("name", METHODS)
def test_what_a_search_keeps_gives_the_same_answers(name: str) -> None:
    method, settings = POSTPROCESSORS.info(name), grid(name)
    kind = method.score_kinds[0]
    source = method.grid.open_source(train(), settings)
    plain = method.grid.best_of_settings(train(), queries(), settings, score_kind=kind)
    shared = method.grid.best_of_settings(train(), queries(), settings[-2:], score_kind=kind, source=source)
    np.testing.assert_array_equal(shared.label, plain.label[:, -2:])
    np.testing.assert_allclose(shared.score, plain.score[:, -2:], rtol=1e-12, atol=1e-13 * np.abs(plain.score).max())


def drawn(space: SearchSpace, rng: np.random.Generator) -> dict[str, Any]:
    """A setting from inside the ranges."""
    values: dict[str, Any] = {}
    for name, limits in space.ranges.items():
        low, high = limits.probes()[0], limits.probes()[-1]
        if limits.type == "choice":
            values[name] = limits.values[rng.integers(len(limits.values))]
        else:
            value = low + rng.random() * (high - low)
            values[name] = int(value) if limits.type == "int" else float(value)
    return values


@pytest.mark.parametrize("name", METHODS)
def test_a_search_opened_with_the_ends_of_its_ranges_answers_what_lies_between(name: str) -> None:
    """As a budgeted search does: what it keeps between trials must serve settings that it did not know of."""
    params = POSTPROCESSORS.info(name).params
    space = load_space(name, params)
    ends = [
        dict(zip(space.ranges, ends, strict=True)) for ends in product(*(r.probes() for r in space.ranges.values()))
    ]
    validation = FeatureSet.from_arrays(
        embedding=golden()["query_embedding"],
        labels=golden()["query_labels"].astype(np.int64),
        logits=golden()["query_logits"],
        pooled=golden()["query_pooled"],
        n_known=K,
    )
    options = EvaluationOptions(expected=tuple(ends), score_kind=POSTPROCESSORS.info(name).score_kinds[0])
    rng = np.random.default_rng(5)
    settings = [drawn(space, rng) for _ in range(3)]
    found = SharedFeatures(name, train(), validation, options)(settings)
    table = evaluate_grid(name, train(), validation, [params(**setting) for setting in settings])
    assert [outcome.get("error") for outcome in found] == [None] * 3
    assert [outcome["sum"] for outcome in found] == pytest.approx(list(table["sum"]), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "opened", "asked"),
    [("vim", {"dim": 1500}, {"dim": 8}), ("knn", {"k": 1000}, {"k": 5}), ("nnguide", {"k": 1000}, {"k": 5})],
)
def test_notes_are_of_settings_that_were_tried(name: str, opened: dict[str, Any], asked: dict[str, Any]) -> None:
    method = POSTPROCESSORS.info(name)
    source = method.grid.open_source(train(), [method.params(**opened)])
    for params, noted in ((asked, False), (opened, True)):
        answer = method.grid.best_of_settings(
            train(), queries(), [method.params(**params)], score_kind="native", source=source
        )
        assert any("clipped" in str(note) for note in answer.notes) == noted


@pytest.mark.parametrize("name", METHODS)
def test_blocks_of_rows_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scores(name, train())
    monkeypatch.setattr("oscbench.postprocessors.posthoc.BLOCK_VALUES", 1000)
    np.testing.assert_allclose(scores(name, train()), whole, rtol=1e-8, atol=1e-10 * np.abs(whole).max())


@pytest.mark.parametrize("name", METHODS)
def test_negatives_are_not_fitted(name: str) -> None:
    known = golden()["train_labels"] >= 0
    rows = FeatureSet.from_arrays(
        embedding=train().embedding[known],
        labels=train().labels[known],
        logits=golden()["train_logits"][known],
        pooled=golden()["train_pooled"][known],
        n_known=K,
        head=train().head,
    )
    np.testing.assert_allclose(scores(name, rows), scores(name, train()), rtol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_garbage_output_counts_for_nothing(name: str) -> None:
    """K + 1 logits and rows of the head, of which the last belongs to no known class, whatever it says."""

    def with_garbage(rows: Any) -> Any:
        extra = 1.0 + rows.penultimate[:, :1] * 3.0
        return dataclasses.replace(rows, logits=np.hstack([rows.logits, extra]).astype(np.float32))

    head = train().head
    assert head is not None
    weight = np.zeros((1, head.weight.shape[1]), np.float32)
    weight[0, 0] = 3.0
    wide = Head(np.vstack([head.weight, weight]), np.append(head.bias, np.float32(1.0)))
    rows = with_garbage(dataclasses.replace(train(), head=None))
    found = scores(name, dataclasses.replace(rows, head=wide), with_garbage(queries()))
    np.testing.assert_allclose(found, scores(name, train()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_a_class_without_training_rows_breaks_nothing(name: str) -> None:
    keep = train().labels != 3
    rows = FeatureSet.from_arrays(
        embedding=train().embedding[keep],
        labels=train().labels[keep],
        logits=golden()["train_logits"][keep],
        pooled=golden()["train_pooled"][keep],
        n_known=K,
        head=train().head,
    )
    found = fitted(name, rows).predict(queries())
    assert np.isfinite(found.score).all()
    assert ((found.label >= 0) & (found.label < K)).all()


@pytest.mark.parametrize("name", METHODS)
def test_fewer_training_rows_than_features(name: str) -> None:
    some = np.flatnonzero(train().labels >= 0)[:40]  # of 64 features
    rows = FeatureSet.from_arrays(
        embedding=train().embedding[some],
        labels=train().labels[some],
        logits=golden()["train_logits"][some],
        pooled=golden()["train_pooled"][some],
        n_known=K,
        head=train().head,
    )
    assert np.isfinite(scores(name, rows)).all()


@pytest.mark.parametrize("name", WITH_HEAD)
def test_a_head_is_recovered_from_the_logits(name: str) -> None:
    method = fitted(name, dataclasses.replace(train(), head=None))
    plain = scores(name, train())
    # logits are stored in single precision, and percentiles of weights may fall on the other side of one
    np.testing.assert_allclose(method.predict(queries()).score, plain, rtol=1e-3, atol=2e-3 * plain.std())
    assert any("the head was recovered" in str(note) for note in method.notes)


@pytest.mark.parametrize("name", WITH_HEAD)
def test_no_head_and_none_to_be_found_is_refused(name: str) -> None:
    rows = dataclasses.replace(train(), head=None, logits=np.tanh(golden()["train_logits"]))
    with pytest.raises(UsageError, match=r"needs the head: .* add head_weight.npy .*; or use one of .*gen, .*\bmss"):
        fitted(name, rows)


@pytest.mark.parametrize("name", ["scale", "ash", "react", "dice", "optfs", "gradnorm", "cadref"])
def test_signed_features_are_noted(name: str) -> None:
    assert not any("negative" in str(note) for note in fitted(name).notes)
    pooled = golden()["train_pooled"] - 0.1
    head = train().head
    assert head is not None
    shifted = Head(head.weight, head.bias + 0.1 * head.weight.sum(axis=1))
    method = fitted(name, dataclasses.replace(train(), pooled=pooled, head=shifted))
    share = round(100 * float((pooled[train().labels >= 0] < 0).mean()), 1)
    assert any(f"{share:g} % of the features are negative" in str(note) for note in method.notes)


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("gen", {"top": 50}, "top up to 50 clipped to 10 classes in 1 settings"),
        ("vim", {"dim": 64}, "dim up to 64 clipped to 63"),
        ("residual", {"dim": 1000}, "dim up to 1000 clipped to 63"),
    ],
)
def test_values_that_the_rows_do_not_allow_are_clipped_and_noted(name: str, params: dict[str, Any], said: str) -> None:
    method = fitted(name, **params)
    assert any(said in str(note) for note in method.notes), method.notes
    largest = {"top": 10} if name == "gen" else {"dim": 63}
    np.testing.assert_array_equal(method.predict(queries()).score, scores(name, train(), **largest))


@pytest.mark.parametrize("name", ["mds", "rmds", "cop", "corp", "pnml", "knn", "nnguide", "relation"])
def test_a_row_of_zeros_has_no_direction_and_is_named(name: str) -> None:
    pooled = np.array(golden()["query_pooled"])
    pooled[17] = 0
    damaged = dataclasses.replace(queries(), pooled=pooled)
    with pytest.raises(UsageError, match="row 17 of the features is all zero"):
        fitted(name).predict(damaged)
    pooled = np.array(golden()["train_pooled"])
    pooled[5] = 0
    with pytest.raises(UsageError, match="row 5 of the features is all zero"):
        fitted(name, dataclasses.replace(train(), pooled=pooled))


@pytest.mark.parametrize(
    "name",
    [
        *("scale", "ash", "react", "dice", "optfs", "fdbd", "nci", "cadref", "she", "vim"),
        *("residual", "neco", "ora", "gradnorm"),
    ],
)
def test_a_row_of_zeros_has_a_finite_score_elsewhere(name: str) -> None:
    damaged = dataclasses.replace(queries(), pooled=np.zeros_like(golden()["query_pooled"]))
    for params in grid(name):
        method = POSTPROCESSORS.get(name)(params).fit(train())
        assert np.isfinite(method.predict(damaged).score).all()


@pytest.mark.parametrize("name", ["mds", "rmds"])
def test_without_logits_the_class_is_that_of_the_nearest_mean(name: str) -> None:
    rows, asked = make_features(0), make_features(1)
    bare = FeatureSet.from_arrays(
        embedding=rows.embedding, labels=rows.labels, pooled=rows.pooled, n_known=rows.n_known
    )
    inputs = Inputs(embedding=asked.embedding, logits=None, pooled=asked.pooled, n_known=asked.n_known)
    method = POSTPROCESSORS.get(name)(POSTPROCESSORS.info(name).params(normalize=False)).fit(bare)
    found = method.predict(inputs)
    known = rows.labels >= 0
    means = np.stack([rows.penultimate[rows.labels == k].mean(axis=0) for k in range(rows.n_known)])
    spread = rows.penultimate[known] - means[rows.labels[known]]
    inverse = np.linalg.inv(spread.T @ spread / known.sum())
    apart = asked.penultimate[:, None] - means
    nearest = np.einsum("nkp,pq,nkq->nk", apart, inverse, apart).argmin(axis=1)
    np.testing.assert_array_equal(found.label, nearest)
    assert any("no logits" in str(note) for note in method.notes)


def test_prediction_by_the_method_is_the_class_with_the_largest_number() -> None:
    plain, own = fitted("klm").predict(queries()), fitted("klm", prediction="method").predict(queries())
    np.testing.assert_array_equal(plain.score, own.score)
    assert (plain.label != own.label).any()


def without_channels(array: Any, count: int) -> Any:
    """The features with some channels that never fire."""
    array = np.array(array)
    array[:, :count] = 0
    return array


@pytest.mark.parametrize("name", ["vim", "residual"])
def test_directions_that_training_rows_do_not_have_leave_no_residual_to_measure(name: str) -> None:
    rows = dataclasses.replace(train(), pooled=without_channels(golden()["train_pooled"], 3))
    method = fitted(name, rows, dim=64)
    assert any("dim up to 64 clipped to 61, one below the rank" in str(note) for note in method.notes), method.notes
    dead = dataclasses.replace(queries(), pooled=without_channels(golden()["query_pooled"], 3))
    for inputs in (dead, queries()):
        found = method.predict(inputs).score
        order = np.random.default_rng(0).permutation(len(rows))
        shuffled = fitted(name, take_rows(rows, order), dim=64).predict(inputs).score
        np.testing.assert_allclose(shuffled, found, atol=1e-6 * found.std())
        assert np.abs(found).max() < 1e4


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["mds", "rmds"])
def test_classes_without_spread_are_told_and_not_guessed_from_rounding(name: str, normalize: bool) -> None:
    first = [int(np.flatnonzero(train().labels == k)[0]) for k in range(K)]
    method = fitted(name, take_rows(train(), np.array(first)), normalize=normalize)
    assert any("training rows of a class do not differ" in str(note) for note in method.notes)
    found = method.predict(queries()).score
    reversed_rows = fitted(name, take_rows(train(), np.array(first[::-1])), normalize=normalize)
    np.testing.assert_allclose(reversed_rows.predict(queries()).score, found, rtol=1e-6, atol=1e-9)
    assert np.abs(found).max() < 1e5


@pytest.mark.parametrize("name", ["mds", "rmds"])
def test_features_far_from_the_origin_keep_their_distances(name: str) -> None:
    """Distances do not change when all rows move; as differences of large squares they would."""
    moved = [np.asarray(golden()[f"{part}_pooled"], np.float64) + 1e5 for part in ("train", "query")]
    plain = fitted(name, normalize=False).predict(queries()).score
    far = fitted(name, dataclasses.replace(train(), pooled=moved[0]), normalize=False)
    found = far.predict(dataclasses.replace(queries(), pooled=moved[1])).score
    np.testing.assert_allclose(found, plain, atol=1e-4 * plain.std())


def test_scores_that_are_set_to_the_floor_count_so_in_their_mean() -> None:
    low = dataclasses.replace(
        train(), logits=golden()["train_logits"] - 6, head=Head(golden()["weight"], golden()["bias"] - 6)
    )
    method = fitted("cadref", low, logit_score="maxlogit")
    known = low.labels >= 0
    largest = np.asarray(low.logits, np.float64)[known].max(axis=1)
    assert method._average["maxlogit"] == pytest.approx(np.maximum(largest, 1e-6).mean())


@pytest.mark.parametrize("fraction", [1.0, 0.1, 0.01])
def test_the_bank_is_the_same_for_rows_in_double_precision(fraction: float) -> None:
    wide = dataclasses.replace(train(), pooled=np.asarray(golden()["train_pooled"], np.float64))
    plain = scores("nnguide", train(), k=3, bank_fraction=fraction)
    np.testing.assert_allclose(scores("nnguide", wide, k=3, bank_fraction=fraction), plain, rtol=1e-9)
    order = np.random.default_rng(1).permutation(len(train()))
    shuffled = scores("nnguide", take_rows(train(), order), k=3, bank_fraction=fraction)
    np.testing.assert_allclose(shuffled, plain, rtol=1e-9)


def test_distances_of_large_sets_are_computed_again_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in tight clusters: of distances in single precision many would be equal."""
    rng = np.random.default_rng(6)
    centres = np.maximum(rng.normal(size=(20, 128)), 0)

    def clustered(count: int) -> Any:
        labels = np.arange(count) % 20
        pooled = np.maximum(centres[labels] + rng.normal(0, 0.1, size=(count, 128)), 0).astype(np.float32)
        return FeatureSet.from_arrays(
            embedding=pooled[:, :20], logits=pooled[:, :20], pooled=pooled, labels=labels, n_known=20
        )

    rows, asked = clustered(2000), clustered(3000)
    exact = {k: scores("knn", rows, asked.inputs(), k=k) for k in (1, 20, 200)}
    monkeypatch.setattr(knn, "LARGE_VALUES", 1)
    for k, expected in exact.items():
        found = scores("knn", rows, asked.inputs(), k=k)
        assert np.abs(found - expected).max() <= 1e-3 * expected.std()
        assert len(np.unique(found)) == len(np.unique(expected))


def test_regrets_of_sure_rows_still_differ() -> None:
    """Against the plain formula in extended precision, on a head so large that most probabilities round to 1."""
    head = train().head
    assert head is not None
    sure = Head(200 * head.weight, 200 * head.bias)
    method = fitted("pnml", dataclasses.replace(train(), head=sure))
    found = method.predict(queries()).score
    units = np.asarray(queries().pooled, np.longdouble)
    units /= np.sqrt((units**2).sum(axis=1, keepdims=True))
    logits = units @ sure.weight.T.astype(np.longdouble) + sure.bias
    powers = np.exp(logits - logits.max(axis=1)[:, None])
    p = powers / powers.sum(axis=1, keepdims=True)
    q = ((units.astype(float) @ method._whitening) ** 2).sum(axis=1)[:, None]
    regret = np.log((p / (p + (1 - p) * p ** (q / (1 + q)))).sum(axis=1)) / np.log(K)
    np.testing.assert_allclose(-found, regret.astype(float), rtol=1e-6, atol=1e-18)
    assert len(np.unique(found)) == len(found)


@pytest.mark.parametrize("large", [1, 1 << 24])
def test_a_training_row_asked_about_is_at_distance_zero(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "LARGE_VALUES", large)
    found = scores("knn", train(), train().inputs(), k=1)[golden()["train_labels"] >= 0]
    assert found.max() == 0
    np.testing.assert_allclose(found, 0, atol=5e-7 if large == 1 else 1e-14)


def test_classes_that_ora_leaves_out_are_told_so() -> None:
    notes = fitted("ora", take_rows(train(), train().labels != 3)).notes
    assert [str(note) for note in notes] == ["ORA: 1 classes have no training row that counts; they are left out"]


@pytest.mark.parametrize("name", ["knn", "nnguide", "relation"])
def test_a_question_keeps_all_threads_busy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the features are: 200 queries in questions of 150, not of one."""
    monkeypatch.setattr("oscbench.postprocessors.posthoc.BLOCK_VALUES", 1)
    monkeypatch.setattr(ProductRows, "queries_at_once", 150)
    asked: list[int] = []
    for question in ("largest", "related"):
        real = getattr(ProductRows, question)
        monkeypatch.setattr(
            ProductRows,
            question,
            lambda self, rows, *more, real=real: asked.append(len(rows)) or real(self, rows, *more),
        )
    scores(name, train())
    assert asked == [150, 50]


def test_the_largest_rows_are_shared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second may find no room for actors of its own."""
    monkeypatch.setattr(knn, "LARGE_VALUES", 1)
    shared: list[int] = []

    def make_source(rows: ProductRows) -> ProductRows:
        shared.append(rows.rows.shape[1])
        return rows

    method = POSTPROCESSORS.info("knn")
    method.grid.open_source(train(), [method.params(layer=layer) for layer in ("embedding", "pooled")], make_source)
    assert shared == [64, 12]
