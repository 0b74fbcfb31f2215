"""The contract of post-processors, to be run on any registered one: a method is tested by being registered.

In the tests of a plug-in whose module registers the method ``mine``::

    @pytest.mark.parametrize(("check", "kind"), contract_cases("mine"))
    def test_contract(check: str, kind: ScoreKind) -> None:
        run_check(check, "mine", kind)

or all at once, the first breach ending it: ``check_postprocessor("mine")``.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet, Head, Inputs
from oscbench.labels import NEGATIVE
from oscbench.metrics import Predictions, auroc
from oscbench.notes import Note
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.tuning import best_one_by_one, evaluate_grid

K, D, P = 5, 6, 8
"""Known classes, width of the embedding and of the pooled features of the fixture."""

CHECKS: Final[dict[str, Callable[[str, ScoreKind], None]]] = {}
"""All checks by name; each is called with a method's name and a score kind and raises ``AssertionError``."""

_FIRST_KIND_ONLY: Final[set[str]] = set()


def contract_cases(name: str) -> list[tuple[str, ScoreKind]]:
    """Check and score kind of every test that ``name`` has to pass."""
    kinds = POSTPROCESSORS.info(name).score_kinds
    return [(check, kind) for check in CHECKS for kind in (kinds[:1] if check in _FIRST_KIND_ONLY else kinds)]


def run_check(check: str, name: str, kind: ScoreKind) -> None:
    """Runs one check of the contract; raises ``AssertionError`` that says what is broken."""
    CHECKS[check](name, kind)


def check_postprocessor(name: str) -> None:
    """Runs the whole contract; raises ``AssertionError`` that names the first check that fails."""
    for check, kind in contract_cases(name):
        try:
            run_check(check, name, kind)
        except AssertionError as error:
            raise AssertionError(f"{name}, score kind {kind}, {check}: {error}") from error


# --- data ----------------------------------------------------------------------------------------------------------


Negatives = Literal["between", "faint", "elsewhere"]
"""Where the embedding is 0: small logits and all directions; a tenth of a known row; in a direction of their own."""


def make_features(seed: int, per_class: int = 30, negatives: Negatives = "between") -> FeatureSet:
    """Known classes and one kind of negatives around fixed means; most known rows are classified correctly.

    Pooled features are not negative, as behind a ReLU; embedding and logits are linear in them, and the head is stored.
    """
    fixed, rng = np.random.default_rng(99), np.random.default_rng(seed)
    means = np.vstack([2.0 + 2.0 * hadamard(P)[1 : K + 1], np.full(P, 2.0)])  # (K + 1, P), 0 and 4
    projection = np.linalg.qr(fixed.normal(size=(P, P)))[0][:D]
    labels = rng.permutation(np.repeat(np.arange(-1, K), per_class))
    pooled = np.maximum(means[labels] + rng.normal(size=(len(labels), P)), 0.0)
    if negatives == "faint":
        pooled[labels == NEGATIVE] = 0.1 * pooled[labels == 0]
    elif negatives == "elsewhere":
        pooled[labels == NEGATIVE] += 2.0 * hadamard(P)[P - 1] + 2.0
    shift = -projection @ means[NEGATIVE]
    towards = means[:K] @ projection.T + shift
    embedding = pooled @ projection.T + shift
    return FeatureSet.from_arrays(
        embedding=embedding,
        labels=labels,
        logits=embedding @ towards.T,
        pooled=pooled,
        n_known=K,
        head=Head.compose(projection, shift, towards),
    )


_ARRAYS = ("embedding", "logits", "pooled")


def _as_taken_by(name: str, features: FeatureSet) -> FeatureSet:
    """As the method takes them: a network that was fine-tuned for it has an output more, the one of "unknown"."""
    if not POSTPROCESSORS.info(name).fine_tunes:
        return features
    assert features.logits is not None
    unknown = np.full((len(features), 1), 4.0)
    return dataclasses.replace(features, logits=np.hstack([features.logits, unknown]), head=None)


@cache
def _train(name: str) -> FeatureSet:
    return _as_taken_by(name, make_features(0, per_class=54))  # more than the 50 neighbours that KNN looks at


@cache
def _validation(name: str) -> FeatureSet:
    return _as_taken_by(name, make_features(1, per_class=20))


def _queries(name: str) -> Inputs:
    return _validation(name).inputs()


def _changed(inputs: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    return dataclasses.replace(inputs, **{name: change(getattr(inputs, name)) for name in _ARRAYS})


def _rows(inputs: Inputs, index: Any) -> Any:
    return _changed(inputs, lambda array: array[index])


def _made(name: str, kind: ScoreKind, **changes: Any) -> Any:
    method = POSTPROCESSORS.info(name)
    return method.value(method.params(**changes), score_kind=kind)


def _answer(name: str, method: Any, inputs: Inputs) -> NDArray[np.float64]:
    """What is compared: the score of every class where there is one, else the class and its score."""
    if POSTPROCESSORS.info(name).per_class:
        return np.asarray(method.score(inputs))
    return np.column_stack(method.predict(inputs))


def _fitted_answer(name: str, kind: ScoreKind, train: FeatureSet | None = None, inputs: Inputs | None = None) -> Any:
    method = _made(name, kind).fit(_train(name) if train is None else train)
    return _answer(name, method, _queries(name) if inputs is None else inputs)


def _tolerance(kind: ScoreKind) -> dict[str, Any]:
    """Matrix products of other shapes may add in another order; shapes of Weibull fits magnify that a thousandfold.

    What is published may have been computed in single precision.
    """
    return {"rtol": 1e-6, "atol": 1e-6} if kind == "published" else {"rtol": 1e-9, "atol": 1e-12}


def _demand(kept: Any, said: str) -> None:
    if not kept:
        raise AssertionError(said)


def _refusal(call: Callable[[], Any], error: type[Exception], pattern: str, what: str) -> None:
    """Demands that the call raises the error with a message that matches."""
    try:
        call()
    except error as raised:
        _demand(re.search(pattern, str(raised)), f"{what} is refused with {str(raised)!r}, expected {pattern!r}")
    else:
        raise AssertionError(f"{what} is not refused with a {error.__name__}")


def _check(function: Callable[[str, ScoreKind], None]) -> Callable[[str, ScoreKind], None]:
    CHECKS[function.__name__.removeprefix("_")] = function
    return function


def _check_once(function: Callable[[str, ScoreKind], None]) -> Callable[[str, ScoreKind], None]:
    """A check whose outcome does not depend on the kind of score."""
    _FIRST_KIND_ONLY.add(function.__name__.removeprefix("_"))
    return _check(function)


# --- checks --------------------------------------------------------------------------------------------------------


@_check
def _predictions_have_the_agreed_form(name: str, kind: ScoreKind) -> None:
    method = _made(name, kind)
    _demand(method.fit(_train(name)) is method, "fit does not return the method itself")
    _demand(method.score_kind == kind, f"score_kind is {method.score_kind!r} after asking for {kind!r}")
    _demand(
        isinstance(method.notes, tuple) and all(isinstance(note, Note) for note in method.notes),
        f"notes is no tuple of Note: {method.notes!r}",
    )
    found = method.predict(_queries(name))
    _demand(isinstance(found, Predictions), f"predict gives a {type(found).__name__}, not Predictions")
    for what, array, dtype in (("label", found.label, np.int32), ("score", found.score, np.float64)):
        form = f"{array.dtype} {array.shape}"
        _demand(
            array.shape == (len(_queries(name)),) and array.dtype == dtype, f"{what} is {form}, expected {dtype} (N,)"
        )
    _demand(np.all((found.label >= 0) & (found.label < K)), "a predicted label is no known class")
    _demand(np.isfinite(found.score).all(), "a score is not finite")
    if kind == "probability":
        _demand(found.score.min() >= 0 and found.score.max() <= 1, "a probability lies outside 0..1")


@_check
def _class_scores_decide_the_prediction(name: str, kind: ScoreKind) -> None:
    if POSTPROCESSORS.info(name).per_class:
        method = _made(name, kind).fit(_train(name))
        scores, found = method.score(_queries(name)), method.predict(_queries(name))
        form = f"{scores.dtype} {scores.shape}"
        _demand(
            scores.shape == (len(_queries(name)), K) and scores.dtype == np.float64, f"score is {form}, expected (N, K)"
        )
        _demand(np.isfinite(scores).all(), "a score is not finite")
        np.testing.assert_array_equal(found.label, scores.argmax(axis=1), "predict is not the argmax of score")
        np.testing.assert_array_equal(found.score, scores.max(axis=1), "predict does not give the maximum of score")
        if kind == "probability":
            _demand(scores.min() >= 0 and scores.max() <= 1, "a probability lies outside 0..1")


@_check
def _higher_means_more_known(name: str, kind: ScoreKind) -> None:
    """A method may be blind to one kind of negatives, and has to see another."""
    method, areas = _made(name, kind).fit(_train(name)), []
    for negatives in get_args(Negatives):
        validation = _as_taken_by(name, make_features(1, 20, negatives))
        found, known = method.predict(validation.inputs()), validation.labels >= 0
        accuracy = np.mean((found.label == validation.labels)[known])
        _demand(accuracy > 0.8, f"accuracy is {accuracy:.2f} on classes far apart")
        areas.append(auroc(validation.labels, found, unknown_label=NEGATIVE))
    _demand(max(areas) > 0.75, f"the largest AUROC is {max(areas):.2f} against three kinds of negatives")


@_check
def _permuted_rows_give_permuted_answers(name: str, kind: ScoreKind) -> None:
    order = np.random.default_rng(2).permutation(len(_queries(name)))
    method = _made(name, kind).fit(_train(name))
    permuted = _answer(name, method, _rows(_queries(name), order))
    np.testing.assert_allclose(permuted, _answer(name, method, _queries(name))[order], **_tolerance(kind))


@_check
def _order_of_training_rows_does_not_matter(name: str, kind: ScoreKind) -> None:
    order = np.random.default_rng(2).permutation(len(_train(name)))
    shuffled = FeatureSet.from_arrays(
        embedding=_train(name).embedding[order],
        labels=_train(name).labels[order],
        logits=_train(name).require_logits(name)[order],
        pooled=_train(name).penultimate[order],
        n_known=K,
        head=_train(name).head,
    )
    tolerance = _tolerance(kind) if kind == "published" else {"rtol": 1e-7, "atol": 1e-9}
    np.testing.assert_allclose(_fitted_answer(name, kind, shuffled), _fitted_answer(name, kind), **tolerance)


@_check
def _a_batch_equals_its_rows_one_by_one(name: str, kind: ScoreKind) -> None:
    method = _made(name, kind).fit(_train(name))
    singly = np.vstack([_answer(name, method, _rows(_queries(name), [n])) for n in range(len(_queries(name)))])
    np.testing.assert_allclose(singly, _answer(name, method, _queries(name)), **_tolerance(kind))


@_check
def _inputs_are_not_written_to(name: str, kind: ScoreKind) -> None:
    train, validation = _as_taken_by(name, make_features(0)), _as_taken_by(name, make_features(1))
    before = train.content_fingerprint(), validation.content_fingerprint()
    for data in (train, validation):
        for array in (data.embedding, data.logits, data.pooled, data.labels):
            if array is not None:
                array.setflags(write=False)
    try:
        _fitted_answer(name, kind, train, validation.inputs())
    except ValueError as error:
        raise AssertionError(f"an input is written to: {error}") from error
    after = train.content_fingerprint(), validation.content_fingerprint()
    _demand(after == before, "an input was changed")


@_check
def _fitting_again_forgets_the_first_fit(name: str, kind: ScoreKind) -> None:
    used = _made(name, kind).fit(_as_taken_by(name, make_features(7, per_class=12)))
    used.predict(_queries(name))
    again = _answer(name, used.fit(_train(name)), _queries(name))
    np.testing.assert_array_equal(again, _fitted_answer(name, kind), "a second fit remembers the first")


@_check
def _a_pickled_copy_answers_the_same(name: str, kind: ScoreKind) -> None:
    method = _made(name, kind).fit(_train(name))
    try:
        copy = pickle.loads(pickle.dumps(method))
    except Exception as error:
        raise AssertionError(f"it cannot be pickled: {error}") from error
    _demand(copy.score_kind == kind, "the copy has another score kind")
    np.testing.assert_array_equal(_answer(name, copy, _queries(name)), _answer(name, method, _queries(name)))


@_check
def _single_precision_inputs_are_near_double(name: str, kind: ScoreKind) -> None:
    """Rounding the inputs to 24 bits moves x by 1e-7; Weibull shapes of up to a thousand leave 1e-4."""
    train, queries = (_changed(data, lambda array: array.astype(np.float32)) for data in (_train(name), _queries(name)))
    narrow = _fitted_answer(name, kind, train, queries)
    _demand(narrow.dtype == np.float64, f"scores of single precision inputs are {narrow.dtype}")
    np.testing.assert_allclose(narrow, _fitted_answer(name, kind), rtol=1e-3, atol=1e-4)


@_check
def _scores_of_extremes_are_finite(name: str, kind: ScoreKind) -> None:
    method = _made(name, kind).fit(_train(name))
    for scale in (1e-18, 1e-3, 1e6, 1e18):
        for sign in (1.0, -1.0):
            extreme = Inputs(
                embedding=sign * scale * _queries(name).embedding,
                logits=scale * _queries(name).require_logits(name),
                pooled=sign * scale * _queries(name).penultimate,
                n_known=K,
            )
            with np.errstate(all="ignore"):
                finite = np.isfinite(_answer(name, method, extreme)).all()
            _demand(finite, f"a score is not finite where inputs are {sign * scale:g} times the usual")


@_check_once
def _predicting_before_fitting_is_a_clear_error(name: str, kind: ScoreKind) -> None:
    _refusal(lambda: _made(name, kind).predict(_queries(name)), OscbenchError, "fit", "predicting before fitting")


@_check_once
def _other_widths_than_in_training_are_refused(name: str, kind: ScoreKind) -> None:
    wider = _changed(_queries(name), lambda array: np.hstack([array, array[:, :1]]))
    queries = _queries(name)
    widths = {array.shape[1] for array in (queries.embedding, queries.logits, queries.pooled) if array is not None}
    pattern = "|".join(f"{width + 1}.*{width}" for width in sorted(widths))
    _refusal(lambda: _made(name, kind).fit(_train(name)).predict(wider), UsageError, pattern, "another width")


@_check_once
def _missing_logits_are_refused_or_not_needed(name: str, kind: ScoreKind) -> None:
    bare = FeatureSet.from_arrays(
        embedding=_train(name).embedding, labels=_train(name).labels, pooled=_train(name).pooled, n_known=K
    )
    method = POSTPROCESSORS.info(name)
    if "logits" in method.needs:
        said = f"{method.label} needs logits, and these features have none"
        _refusal(lambda: method.require(bare), UsageError, re.escape(said), "a missing array")
        return
    try:
        answer = _fitted_answer(name, kind, bare, bare.inputs())
    except Exception as error:
        raise AssertionError(f"it does not say that it needs logits, and fails without: {error!r}") from error
    _demand(np.isfinite(answer).all(), "a score is not finite without logits")


@_check_once
def _nan_is_refused_by_row_or_not_looked_at(name: str, kind: ScoreKind) -> None:
    method = _made(name, kind).fit(_train(name))
    plain = _answer(name, method, _queries(name))
    for part in _ARRAYS:
        holed = np.array(getattr(_queries(name), part))
        holed[13, 2] = np.nan
        change: dict[str, Any] = {part: holed}
        damaged = dataclasses.replace(_queries(name), **change)
        try:
            answer = _answer(name, method, damaged)
        except UsageError as error:
            _demand("row 13" in str(error), f"NaN in {part} is refused without its row: {error}")
        else:
            np.testing.assert_array_equal(answer, plain, f"NaN in {part} goes into the scores")


# --- hyperparameters -----------------------------------------------------------------------------------------------


def _variants(name: str) -> dict[str, Any]:
    """For each hyperparameter another legal value, well away from its default."""
    params = POSTPROCESSORS.info(name).params
    hints = get_type_hints(params)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(params):
        default = getattr(params(), field.name)
        if "other" in field.metadata:  # half of the default, or 0.5, would change nothing here
            other: Any = field.metadata["other"]
        elif isinstance(default, bool):
            other = not default
        elif isinstance(default, int):
            other = 4 if default != 4 else 3
        elif isinstance(default, float):
            other = default / 2 or 0.5
        else:
            other = next(choice for choice in get_args(hints[field.name]) if choice != default)
        found[field.name] = other
    return found


@_check_once
def _every_hyperparameter_changes_the_scores(name: str, kind: ScoreKind) -> None:
    if POSTPROCESSORS.info(name).fine_tunes:  # they have changed the network
        return
    plain = _fitted_answer(name, kind)
    for field, value in _variants(name).items():
        changed = _answer(name, _made(name, kind, **{field: value}).fit(_train(name)), _queries(name))
        _demand(not np.allclose(plain, changed, rtol=1e-6, atol=1e-9), f"{field}={value!r} changes nothing")


@_check
def _one_pass_equals_setting_by_setting(name: str, kind: ScoreKind) -> None:
    """Predicted classes agree; each rate agrees within one sample (a float32 path may swap two neighbours)."""
    method = POSTPROCESSORS.info(name)
    if not method.one_pass:
        return
    settings = [method.params(), *(method.params(**{field: value}) for field, value in _variants(name).items())]
    single = best_one_by_one(method.value, _train(name), _queries(name), settings, score_kind=kind)
    together = method.grid.best_of_settings(_train(name), _queries(name), settings, score_kind=kind)
    shape = (len(_queries(name)), len(settings))
    _demand(together.label.shape == together.score.shape == shape, "label and score are not both (Q, S)")
    _demand(together.label.dtype == np.int32 and together.score.dtype == np.float64, "not int32 and float64")
    _demand(all(isinstance(note, Note) for note in together.notes), "notes holds something else than notes")
    np.testing.assert_array_equal(together.label, single.label, "one pass predicts other classes")
    np.testing.assert_allclose(together.score, single.score, rtol=1e-3, atol=1e-4)
    shared = method.grid.open_source(_train(name), settings[:1])
    again = method.grid.best_of_settings(_train(name), _queries(name), settings[:1], score_kind=kind, source=shared)
    np.testing.assert_array_equal(again.label, together.label[:, :1], "a shared source predicts other classes")
    np.testing.assert_allclose(again.score, together.score[:, :1], rtol=1e-9, atol=1e-12)
    table = evaluate_grid(name, _train(name), _validation(name), settings, score_kind=kind)
    one_sample = 1.0 / np.count_nonzero(_validation(name).labels >= 0)
    for s, setting in enumerate(settings):
        alone = evaluate_grid(name, _train(name), _validation(name), [setting], score_kind=kind)
        for column in ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"):
            np.testing.assert_allclose(table[column][s], alone[column][0], atol=one_sample + 1e-12)
