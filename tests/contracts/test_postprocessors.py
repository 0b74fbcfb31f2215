"""What every registered post-processor keeps, so that a new one is tested by being registered."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import NEGATIVE
from oscbench.postprocessors import POSTPROCESSORS, PostProcessor, ScoreKind
from oscbench.tuning import best_one_by_one, evaluate_grid

K, D = 5, 6
NEED_LOGITS = ("mss", "mls", "openmax")
TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}
"""Matrix products of other shapes may add in another order; shapes of Weibull fits magnify that a thousandfold."""


def kinds_of(name: str) -> tuple[ScoreKind, ...]:
    return getattr(POSTPROCESSORS.get(name), "score_kinds", ("log", "probability"))


NAMES = POSTPROCESSORS.names()
CASES = [(name, kind) for name in NAMES for kind in kinds_of(name)]


def make(name: str, kind: ScoreKind | None = None, **changes: Any) -> PostProcessor:
    params = POSTPROCESSORS.info(name).params
    assert params is not None, f"{name} is registered without a parameter record"
    return POSTPROCESSORS.get(name)(params(**changes), score_kind=kind or kinds_of(name)[0])


def gaussian_set(seed: int, per_class: int = 30) -> FeatureSet:
    """Five known classes and one kind of negatives around fixed means; most known rows are classified correctly."""
    rng = np.random.default_rng(seed)
    means = 2.0 * np.random.default_rng(99).normal(size=(K + 1, D))
    means[NEGATIVE] = 0.0  # small logits and all directions, so that any method can tell
    labels = rng.permutation(np.repeat(np.arange(-1, K), per_class))
    embedding = means[labels] + rng.normal(size=(len(labels), D))
    return FeatureSet.from_arrays(embedding=embedding, labels=labels, logits=embedding @ means[:K].T, n_known=K)


TRAIN, VALIDATION = gaussian_set(0), gaussian_set(1, per_class=20)
QUERIES = VALIDATION.inputs()


def rows(inputs: Inputs, idx: Any) -> Inputs:
    return dataclasses.replace(inputs, embedding=inputs.embedding[idx], logits=inputs.logits[idx])


def as_type(data: FeatureSet, dtype: type[np.floating[Any]]) -> FeatureSet:
    assert data.logits is not None
    return dataclasses.replace(data, embedding=data.embedding.astype(dtype), logits=data.logits.astype(dtype))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_scores_have_the_agreed_form(name: str, kind: ScoreKind) -> None:
    method = make(name, kind)
    assert method.fit(TRAIN) is method
    assert method.score_kind == kind
    scores = method.score(QUERIES)
    assert scores.shape == (len(QUERIES), K)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    if kind == "probability":
        assert scores.min() >= 0
        assert scores.max() <= 1


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_higher_means_more_known_and_argmax_is_the_class(name: str, kind: ScoreKind) -> None:
    scores = make(name, kind).fit(TRAIN).score(QUERIES)
    known = VALIDATION.labels >= 0
    assert (scores.argmax(axis=1) == VALIDATION.labels)[known].mean() > 0.8
    best = scores.max(axis=1)
    above = best[known][:, None] - best[~known][None, :]
    assert (above > 0).mean() + 0.5 * (above == 0).mean() > 0.7  # AUROC


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_permuted_rows_give_permuted_scores(name: str, kind: ScoreKind) -> None:
    order = np.random.default_rng(2).permutation(len(QUERIES))
    method = make(name, kind).fit(TRAIN)
    np.testing.assert_allclose(method.score(rows(QUERIES, order)), method.score(QUERIES)[order], **TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_order_of_training_rows_does_not_matter(name: str, kind: ScoreKind) -> None:
    order = np.random.default_rng(2).permutation(len(TRAIN))
    shuffled = FeatureSet.from_arrays(
        embedding=TRAIN.embedding[order],
        labels=TRAIN.labels[order],
        logits=TRAIN.logits[order],
        n_known=K,
    )
    once, again = (make(name, kind).fit(train).score(QUERIES) for train in (TRAIN, shuffled))
    np.testing.assert_allclose(once, again, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_batch_equals_its_rows_one_by_one(name: str, kind: ScoreKind) -> None:
    method = make(name, kind).fit(TRAIN)
    singly = np.vstack([method.score(rows(QUERIES, slice(n, n + 1))) for n in range(len(QUERIES))])
    np.testing.assert_allclose(singly, method.score(QUERIES), **TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_inputs_are_not_written_to(name: str, kind: ScoreKind) -> None:
    train, validation = gaussian_set(0), gaussian_set(1)
    for data in (train, validation):
        for array in (data.embedding, data.logits, data.labels):
            assert array is not None
            array.setflags(write=False)
    before = train.content_fingerprint(), validation.content_fingerprint()
    make(name, kind).fit(train).score(validation.inputs())
    assert (train.content_fingerprint(), validation.content_fingerprint()) == before


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_fitting_again_forgets_the_first_fit(name: str, kind: ScoreKind) -> None:
    fresh = make(name, kind).fit(TRAIN).score(QUERIES)
    used = make(name, kind).fit(gaussian_set(7, per_class=12))
    used.score(QUERIES)
    np.testing.assert_array_equal(used.fit(TRAIN).score(QUERIES), fresh)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_pickle_round_trip(name: str, kind: ScoreKind) -> None:
    method = make(name, kind).fit(TRAIN)
    copy = pickle.loads(pickle.dumps(method))
    assert copy.score_kind == kind
    np.testing.assert_array_equal(copy.score(QUERIES), method.score(QUERIES))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_float32_is_near_float64(name: str, kind: ScoreKind) -> None:
    """Rounding the inputs to 24 bits moves x by 1e-7; Weibull shapes of up to a thousand leave 1e-4."""
    narrow, wide = (
        make(name, kind).fit(as_type(TRAIN, dtype)).score(as_type(VALIDATION, dtype).inputs())
        for dtype in (np.float32, np.float64)
    )
    assert narrow.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e6, 1e18])
def test_finite_on_extremes(name: str, kind: ScoreKind, scale: float) -> None:
    assert QUERIES.logits is not None
    method = make(name, kind).fit(TRAIN)
    for sign in (1.0, -1.0):
        extreme = Inputs(embedding=sign * scale * QUERIES.embedding, logits=scale * QUERIES.logits, n_known=K)
        assert np.isfinite(method.score(extreme)).all()


@pytest.mark.parametrize("name", NAMES)
def test_scoring_before_fitting_is_a_clear_error(name: str) -> None:
    with pytest.raises(OscbenchError, match="fit"):
        make(name).score(QUERIES)


@pytest.mark.parametrize("name", NAMES)
def test_other_widths_than_in_training_are_refused(name: str) -> None:
    assert QUERIES.logits is not None
    wider = Inputs(
        embedding=np.hstack([QUERIES.embedding, QUERIES.embedding[:, :1]]),
        logits=np.hstack([QUERIES.logits, QUERIES.logits[:, :1]]),
        n_known=K,
    )
    with pytest.raises(UsageError, match=f"{D + 1}.*{D}|{K + 1}.*{K}"):
        make(name).fit(TRAIN).score(wider)


@pytest.mark.parametrize("name", NAMES)
def test_features_without_logits_are_refused_or_used(name: str) -> None:
    bare = FeatureSet.from_arrays(embedding=TRAIN.embedding, labels=TRAIN.labels, n_known=K)
    if name in NEED_LOGITS:
        with pytest.raises(UsageError, match="needs logits, and these features have none"):
            make(name).fit(bare)
        with pytest.raises(UsageError, match="needs logits, and these features have none"):
            make(name).fit(TRAIN).score(bare.inputs())
    else:
        assert np.isfinite(make(name).fit(bare).score(bare.inputs())).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["embedding", "logits"])
def test_nan_is_refused_by_row_or_not_looked_at(name: str, part: str) -> None:
    """A method names the row, or gives scores that do not depend on the damaged array."""
    method = make(name).fit(TRAIN)
    holed = getattr(QUERIES, part).copy()
    holed[13, 2] = np.nan
    damaged = dataclasses.replace(QUERIES, **{part: holed})
    try:
        scores = method.score(damaged)
    except UsageError:
        with pytest.raises(UsageError, match="row 13"):
            method.score(damaged)
    else:
        np.testing.assert_array_equal(scores, method.score(QUERIES))


# --- hyperparameters -----------------------------------------------------------------------------------------------


def variants(name: str) -> list[tuple[str, Any]]:
    """For each hyperparameter another legal value, well away from its default."""
    params = POSTPROCESSORS.info(name).params
    assert params is not None
    hints = get_type_hints(params)
    found = []
    for field in dataclasses.fields(params):
        default = getattr(params(), field.name)
        if isinstance(default, bool):
            other: Any = not default
        elif isinstance(default, int):
            other = 4 if default != 4 else 3
        elif isinstance(default, float):
            other = default / 2
        else:
            other = next(choice for choice in get_args(hints[field.name]) if choice != default)
        found.append((field.name, other))
    return found


@pytest.mark.parametrize(("name", "field", "value"), [(name, *variant) for name in NAMES for variant in variants(name)])
def test_every_hyperparameter_changes_the_scores(name: str, field: str, value: Any) -> None:
    plain, changed = (make(name, **changes).fit(TRAIN).score(QUERIES) for changes in ({}, {field: value}))
    assert not np.allclose(plain, changed, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"), [case for case in CASES if hasattr(POSTPROCESSORS.get(case[0]), "best_of_settings")]
)
def test_grid_path_equals_single_path(name: str, kind: ScoreKind) -> None:
    """Predicted classes agree; each rate agrees within one sample (a float32 path may swap two neighbours)."""
    params = POSTPROCESSORS.info(name).params
    assert params is not None
    settings = [params(), *(params(**{field: value}) for field, value in variants(name))]
    method = POSTPROCESSORS.get(name)
    together = method.best_of_settings(TRAIN, QUERIES, settings, score_kind=kind)
    single = best_one_by_one(method, TRAIN, QUERIES, settings, score_kind=kind)
    assert together[0].shape == together[1].shape == (len(QUERIES), len(settings))
    assert together[0].dtype == np.int32
    assert together[1].dtype == np.float64
    np.testing.assert_array_equal(together[0], single[0])
    np.testing.assert_allclose(together[1], single[1], rtol=1e-3, atol=1e-4)
    table = evaluate_grid(name, TRAIN, VALIDATION, settings, score_kind=kind)
    one_sample = 1.0 / np.count_nonzero(VALIDATION.labels >= 0)
    for s, setting in enumerate(settings):
        alone = evaluate_grid(name, TRAIN, VALIDATION, [setting], score_kind=kind, unknown_label=NEGATIVE)
        for column in ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"):
            np.testing.assert_allclose(table[column][s], alone[column][0], atol=one_sample + 1e-12)
