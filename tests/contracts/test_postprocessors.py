"""Every registered post-processor keeps the contract, a plug-in from outside does, and no breach goes unnoticed."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from oscbench.features import FeatureSet, Inputs
from oscbench.metrics import Predictions
from oscbench.notes import Note
from oscbench.postprocessors import POSTPROCESSORS, GridAnswer, OnePass, ScoreKind
from oscbench.postprocessors.base import best_class, finite_logits, require_fitted, require_width
from oscbench.testing.postprocessors import CHECKS, K, check_postprocessor, contract_cases, run_check

PLUGIN = Path(__file__).parents[1] / "data" / "counted_plugin"
CASES = [(name, *case) for name in POSTPROCESSORS.names() for case in contract_cases(name)]


@pytest.mark.parametrize(("name", "check", "kind"), CASES)
def test_registered_methods_keep_the_contract(name: str, check: str, kind: ScoreKind) -> None:
    run_check(check, name, kind)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered in a test is forgotten after it."""
    monkeypatch.setattr(POSTPROCESSORS, "_entries", dict(POSTPROCESSORS._entries))


@pytest.fixture
def plugin(registry: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.setenv("COUNTED_LOG", str(tmp_path / "log"))
    (tmp_path / "log.seconds").write_text("0")
    importlib.import_module("counted_method")
    yield
    sys.modules.pop("counted_method")


def test_a_plugin_from_outside_keeps_the_contract(plugin: None) -> None:
    check_postprocessor("counted")


# --- what the checks are worth -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GoodParams:
    temperature: float = 4.0


class Good(OnePass):
    """Logits by a temperature: keeps the contract. Those below break one thing each."""

    def __init__(self, params: GoodParams, score_kind: ScoreKind = "native") -> None:
        self.params, self.score_kind = params, score_kind
        self.width: int | None = None

    def fit(self, train: FeatureSet) -> Self:
        self.width = finite_logits(train, "Good").shape[1]
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        width = require_fitted(self.width, "Good")
        logits = require_width(finite_logits(inputs, "Good"), width, "logits")
        return np.asarray(logits[:, : inputs.n_known] / self.params.temperature, np.float64)

    def predict(self, inputs: Inputs) -> Predictions:
        return best_class(self.score(inputs))

    @classmethod
    def best_of_settings(
        cls, train: FeatureSet, queries: Inputs, settings: Sequence[GoodParams], **options: Any
    ) -> GridAnswer:
        found = [cls(params).fit(train).predict(queries) for params in settings]
        return GridAnswer(*(np.stack(column, axis=1) for column in zip(*found, strict=True)))


class SinglePrecision(Good):
    def predict(self, inputs: Inputs) -> Predictions:
        label, score = super().predict(inputs)
        return Predictions(label, score.astype(np.float32))


class NotesAsText(Good):
    notes = ("bent",)  # type: ignore[assignment]


class OtherClass(Good):
    def predict(self, inputs: Inputs) -> Predictions:
        label, score = super().predict(inputs)
        return Predictions(((label + (np.arange(len(label)) == 3)) % inputs.n_known).astype(np.int32), score)


class UpsideDown(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(inputs) - 2 * super().score(inputs).max(axis=1, keepdims=True)


class KnowsTheRow(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(inputs) + 1e-6 * np.arange(len(inputs))[:, None] * (len(inputs) > 1)


class KnowsTheBatch(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        scores = super().score(inputs)
        return np.asarray(scores - 0.01 * scores.max())


class KnowsTheFirstRow(Good):
    def fit(self, train: FeatureSet) -> Self:
        self.shift = 1e-3 * float(train.require_logits("Good")[0, 0])
        return super().fit(train)

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(inputs) + (self.shift if self.width is not None else 0.0)


class WritesToInputs(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        inputs.embedding[0] *= 1.0
        return super().score(inputs)


class RemembersTheFirstFit(Good):
    first: float | None = None

    def fit(self, train: FeatureSet) -> Self:
        self.first = float(np.abs(train.embedding).max()) if self.first is None else self.first
        return super().fit(train)

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(inputs) + 1e-3 * (self.first or 0.0)


class CannotTravel(Good):
    def fit(self, train: FeatureSet) -> Self:
        self.rows = (row for row in train.embedding)
        return super().fit(train)


class LooksAtTheType(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(inputs) + 0.1 * (inputs.require_logits("Good").dtype == np.float32)


class Overflows(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return np.asarray(np.exp(super().score(inputs)))


class NeedsNoFit(Good):
    def __init__(self, params: GoodParams, score_kind: ScoreKind = "native") -> None:
        super().__init__(params, score_kind)
        self.width = K


class AnyWidth(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        require_fitted(self.width, "Good")
        logits = finite_logits(inputs, "Good")[:, : inputs.n_known]
        return np.asarray(logits / self.params.temperature, np.float64)


class SwallowsNan(Good):
    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        return super().score(dataclasses.replace(inputs, logits=np.nan_to_num(inputs.require_logits("Good"))))


class DeafToItsParameter(Good):
    def __init__(self, params: GoodParams, score_kind: ScoreKind = "native") -> None:
        super().__init__(GoodParams(), score_kind)


class OtherInOnePass(Good):
    @classmethod
    def best_of_settings(
        cls, train: FeatureSet, queries: Inputs, settings: Sequence[GoodParams], **options: Any
    ) -> GridAnswer:
        label, score, notes = super().best_of_settings(train, queries, settings)
        return GridAnswer(label, score[:, ::-1], notes)


BROKEN: dict[type[Good], str] = {
    SinglePrecision: "predictions_have_the_agreed_form",
    NotesAsText: "predictions_have_the_agreed_form",
    OtherClass: "class_scores_decide_the_prediction",
    UpsideDown: "higher_means_more_known",
    KnowsTheRow: "permuted_rows_give_permuted_answers",
    KnowsTheFirstRow: "order_of_training_rows_does_not_matter",
    KnowsTheBatch: "a_batch_equals_its_rows_one_by_one",
    WritesToInputs: "inputs_are_not_written_to",
    RemembersTheFirstFit: "fitting_again_forgets_the_first_fit",
    CannotTravel: "a_pickled_copy_answers_the_same",
    LooksAtTheType: "single_precision_inputs_are_near_double",
    Overflows: "scores_of_extremes_are_finite",
    NeedsNoFit: "predicting_before_fitting_is_a_clear_error",
    AnyWidth: "other_widths_than_in_training_are_refused",
    SwallowsNan: "nan_is_refused_by_row_or_not_looked_at",
    DeafToItsParameter: "every_hyperparameter_changes_the_scores",
    OtherInOnePass: "one_pass_equals_setting_by_setting",
}


def register(method: type[Good], needs: tuple[Any, ...] = ("logits",)) -> None:
    POSTPROCESSORS.register("tried", params=GoodParams, needs=needs, score_kinds=("native",), one_pass=True)(method)


def test_a_good_method_passes(registry: None) -> None:
    register(Good)
    check_postprocessor("tried")


@pytest.mark.parametrize("method", BROKEN)
def test_a_broken_method_is_caught_by_the_check_that_is_there_for_it(registry: None, method: type[Good]) -> None:
    register(method)
    with pytest.raises(AssertionError):
        run_check(BROKEN[method], "tried", "native")
    with pytest.raises(AssertionError, match="tried, score kind native, "):
        check_postprocessor("tried")


def test_a_need_that_is_not_declared_is_caught(registry: None) -> None:
    register(Good, needs=())
    with pytest.raises(AssertionError, match="does not say that it needs logits"):
        run_check("missing_logits_are_refused_or_not_needed", "tried", "native")


def test_every_check_has_a_method_that_fails_it() -> None:
    assert {*BROKEN.values(), "missing_logits_are_refused_or_not_needed"} == set(CHECKS)
    assert Note("bent") not in Good.notes
