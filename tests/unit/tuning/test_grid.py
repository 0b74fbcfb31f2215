"""The table of all settings against loops over settings, rates and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import Predictions, ccr_column
from oscbench.notes import Note
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import ScoreKind
from oscbench.postprocessors.openmax import OpenMaxParams
from oscbench.registry import NoParams
from oscbench.tuning import evaluate_grid, grid_answer, rate_table
from oscbench.tuning.trials import RATES

K = 4
HYPERPARAMETERS = ["tail_size", "distance_multiplier", "alpha", "cover_threshold", "dummies"]


def feature_set(seed: int, n: int = 300, n_known: int = K) -> FeatureSet:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-2, n_known, n)
    known = np.eye(n_known)[np.maximum(labels, 0)] * (labels >= 0)[:, None]
    logits = 2.5 * known + rng.normal(size=(n, n_known))
    return FeatureSet.from_arrays(embedding=rng.normal(size=(n, 3)), labels=labels, logits=logits, n_known=n_known)


@dataclass(frozen=True, kw_only=True)
class TemperedParams:
    temperature: float = 1.0
    alpha: int = 1


class Tempered:
    """A method without a one-pass path."""

    def __init__(self, params: TemperedParams, score_kind: ScoreKind = "log") -> None:
        self.params = params
        self.score_kind = score_kind

    def fit(self, train: FeatureSet) -> Self:
        self.notes = (Note("Tempered: {} degrees", (self.params.temperature,)),)
        return self

    def predict(self, inputs: Inputs) -> Predictions:
        scores = self.probabilities(inputs)
        return Predictions(scores.argmax(axis=1).astype(np.int32), scores.max(axis=1))

    def probabilities(self, inputs: Inputs) -> NDArray[np.float64]:
        assert inputs.logits is not None
        powers = np.exp(inputs.logits / self.params.temperature)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.fixture
def tempered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(POSTPROCESSORS, "_entries", dict(POSTPROCESSORS._entries))
    POSTPROCESSORS.register("tempered", params=TemperedParams, needs={"logits"}, per_class=False)(Tempered)
    return "tempered"


def ccr_by_loops(labels: Sequence[int], scores: NDArray[np.float64], fpr: float, unknown_label: int) -> float:
    """Largest CCR over all thresholds whose FPR is at most ``fpr``."""
    unknown = [max(row) for row, label in zip(scores, labels, strict=True) if label == unknown_label]
    known = [(row, label) for row, label in zip(scores, labels, strict=True) if label >= 0]
    correct = [max(row) for row, label in known if int(np.argmax(row)) == label]
    rates = []
    for threshold in [-math.inf, *unknown, *correct]:
        if sum(score >= threshold for score in unknown) / len(unknown) <= fpr:
            rates.append(sum(score >= threshold for score in correct) / len(known))
    return max(rates, default=math.nan)


@pytest.mark.parametrize("unknown_label", [NEGATIVE, UNKNOWN])
def test_rates_equal_loops_for_each_setting(tempered: str, unknown_label: int) -> None:
    settings = [TemperedParams(temperature=t, alpha=a) for t, a in ((0.5, 3), (1.0, 2), (4.0, 1))]
    train, validation = feature_set(0), feature_set(1)
    calls: list[tuple[int, int]] = []
    table = evaluate_grid(
        tempered, train, validation, settings, unknown_label=unknown_label, progress=lambda *call: calls.append(call)
    )
    for s, params in enumerate(settings):
        scores = Tempered(params).probabilities(validation.inputs())
        expected = [
            ccr_by_loops(validation.labels.tolist(), scores, fpr, unknown_label) for fpr in (1e-3, 1e-2, 1e-1, 1.0)
        ]
        row = table.iloc[s]
        np.testing.assert_array_equal([row[name] for name in ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1")], expected)
        assert row["sum"] == pytest.approx(np.nansum(expected))
    assert table["sum"].nunique() == 3
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_the_answer_behind_the_table_has_the_notes_and_the_table_logs_them(
    tempered: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = [TemperedParams(temperature=t) for t in (0.5, 4.0, 1.0)]
    train, validation = feature_set(0), feature_set(1)
    answer = grid_answer(tempered, train, validation, settings)
    assert [str(note) for note in answer.notes] == ["Tempered: 4 degrees"]
    assert not caplog.records
    assert answer.label.shape == answer.score.shape == (len(validation), 3)
    table = evaluate_grid(tempered, train, validation, settings)
    assert caplog.messages == ["Tempered: 4 degrees"]
    pd.testing.assert_frame_equal(rate_table(validation.labels, answer), table[[*RATES]])


def test_what_is_missing_is_said_before_anything_is_fitted(tempered: str) -> None:
    bare = FeatureSet.from_arrays(embedding=np.zeros((3, 2)), labels=np.array([0, 1, -1]), n_known=K)
    for train, validation in ((bare, feature_set(1)), (feature_set(0), bare)):
        with pytest.raises(UsageError, match="tempered needs logits, and these features have none"):
            grid_answer(tempered, train, validation, [TemperedParams()])


def test_columns_and_types(tempered: str) -> None:
    table = evaluate_grid(tempered, feature_set(0), feature_set(1), [TemperedParams(temperature=2.0, alpha=3)])
    assert list(table) == [*HYPERPARAMETERS, "ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1", "sum", "temperature"]
    assert [str(table[name].dtype) for name in HYPERPARAMETERS] == ["Int64", "float64", "Int64", "float64", "Int64"]
    assert table["alpha"].tolist() == [3]
    assert table["temperature"].tolist() == [2.0]
    assert table[["tail_size", "distance_multiplier", "cover_threshold", "dummies"]].isna().all(axis=None)


def test_own_rates_rule_and_kind_are_used() -> None:
    train, validation = feature_set(0), feature_set(1)
    table = evaluate_grid("mss", train, validation, [NoParams()], fprs=(0.05, 1.0))
    assert [name for name in table if name.startswith("ccr")] == ["ccr_5e-2", "ccr_1"]
    assert table["sum"][0] == pytest.approx(table["ccr_5e-2"][0] + table["ccr_1"][0])
    published = evaluate_grid("mss", train, validation, [NoParams()], rule="published")
    assert published["sum"][0] < evaluate_grid("mss", train, validation, [NoParams()])["sum"][0]
    assert evaluate_grid("mls", train, validation, [NoParams()]).shape == (1, 10)


def test_mss_and_its_logarithm_give_one_table() -> None:
    train, validation = feature_set(0), feature_set(1)
    tables = [evaluate_grid("mss", train, validation, [NoParams()], score_kind=kind) for kind in ("log", "probability")]
    pd.testing.assert_frame_equal(*tables)


def test_no_unknowns_is_nan_and_sums_to_zero() -> None:
    train = feature_set(0)
    validation = feature_set(1)
    known = validation.labels >= 0
    only_known = FeatureSet.from_arrays(
        embedding=validation.embedding[known],
        labels=validation.labels[known],
        logits=validation.logits[known],
        n_known=K,
    )
    table = evaluate_grid("mss", train, only_known, [NoParams()])
    assert table.filter(like="ccr").isna().all(axis=None)
    assert table["sum"].tolist() == [0.0]


def test_wrong_use_is_refused() -> None:
    train, validation = feature_set(0), feature_set(1)
    with pytest.raises(UsageError, match="unknown algorithm 'opnmax', did you mean 'openmax'"):
        evaluate_grid("opnmax", train, validation, [NoParams()])
    with pytest.raises(UsageError, match="no settings"):
        evaluate_grid("mss", train, validation, [])
    with pytest.raises(UsageError, match=r"setting 1 of openmax is NoParams\(\), expected a OpenMaxParams"):
        evaluate_grid("openmax", train, validation, [OpenMaxParams(), NoParams()])
    with pytest.raises(UsageError, match="4 known classes, validation features have 5"):
        evaluate_grid("mss", train, feature_set(1, n_known=5), [NoParams()])


@pytest.mark.parametrize(
    ("fpr", "name"), [(1e-3, "ccr_1e-3"), (0.01, "ccr_1e-2"), (0.1, "ccr_1e-1"), (1, "ccr_1"), (0.025, "ccr_2.5e-2")]
)
def test_column_names(fpr: float, name: str) -> None:
    assert ccr_column(fpr) == name


def test_registry_holds_what_this_module_uses() -> None:
    assert {"mss", "mls", "openmax"} <= set(POSTPROCESSORS.names())
