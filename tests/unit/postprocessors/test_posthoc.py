"""What the post-hoc methods share: grids, garbage outputs, missing classes, few rows, recovered heads, notes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from posthoc_golden import K, fitted, golden, queries, train

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Head, Inputs
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.posthoc import Posthoc
from oscbench.testing.postprocessors import make_features
from oscbench.tuning import best_one_by_one
from oscbench.tuning.space import load_space

METHODS = [
    name
    for name in POSTPROCESSORS.names()
    if isinstance(POSTPROCESSORS.info(name).value, type) and issubclass(POSTPROCESSORS.info(name).grid, Posthoc)
]
WITH_HEAD = [name for name in METHODS if "head" in POSTPROCESSORS.info(name).needs]


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
    assert any("the head was recovered" in str(note) for note in method.notes) or name == "she"


@pytest.mark.parametrize("name", WITH_HEAD)
def test_no_head_and_none_to_be_found_is_refused(name: str) -> None:
    rows = dataclasses.replace(train(), head=None, logits=np.tanh(golden()["train_logits"]))
    with pytest.raises(UsageError, match=r"needs the head: .* add head_weight.npy .*; or use one of .*gen, .*\bmss"):
        fitted(name, rows)


@pytest.mark.parametrize("name", ["scale", "ash", "react", "dice", "optfs"])
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


@pytest.mark.parametrize("name", ["mds", "rmds", "cop", "corp", "pnml"])
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


@pytest.mark.parametrize("name", ["scale", "ash", "react", "dice", "optfs", "fdbd", "nci", "cadref", "she", "vim"])
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
