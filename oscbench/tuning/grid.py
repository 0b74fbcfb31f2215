"""All settings of one method on one pair of feature sets: the table a search looks through, without Ray."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import NEGATIVE, IntArray, ProgressFn
from oscbench.metrics import FPRS, CcrRule, ccr_column, ccr_of_many
from oscbench.notes import Note, merge_notes
from oscbench.postprocessors import POSTPROCESSORS, GridAnswer, PostProcessor, ScoreKind
from oscbench.postprocessors.base import usable_score_kind
from oscbench.tuning.trials import HYPERPARAMETERS

log = logging.getLogger(__name__)


def evaluate_grid(
    algorithm: str,
    train: FeatureSet,
    validation: FeatureSet,
    settings: Sequence[Any],
    *,
    fprs: Sequence[float] = FPRS,
    unknown_label: int = NEGATIVE,
    rule: CcrRule = "inclusive",
    score_kind: ScoreKind = "log",
    source: Any = None,
    progress: ProgressFn | None = None,
) -> pd.DataFrame:
    """CCR at each false-positive rate, and their sum, for every setting in the order given.

    What the method had to bend is logged.

    Args:
        algorithm: A registered post-processor.
        train: Rows to fit on.
        validation: Rows to score.
        settings: Parameter records of that algorithm.
        fprs: Target false-positive rates.
        unknown_label: Which rows of ``validation`` count as false positives.
        rule: How the CCR at a rate is read from the curve.
        score_kind: Kind of score; a method with a single kind answers in that one.
        source: What the method's ``open_source`` gave, for one that has such a thing; default: this process.
        progress: Called as ``progress(done, total)``.

    Returns:
        One row per setting: the columns of ``HYPERPARAMETERS``, ``ccr_1e-3`` … ``ccr_1``, ``sum``, and behind it
        the method's further parameters.
    """
    answer = grid_answer(
        algorithm, train, validation, settings, score_kind=score_kind, source=source, progress=progress
    )
    for note in answer.notes:
        log.warning("%s", note)
    rates = rate_table(validation.labels, answer, fprs=fprs, unknown_label=unknown_label, rule=rule)
    return pd.concat([_hyperparameter_columns(settings), rates, _further_columns(settings)], axis=1)


def grid_answer(
    algorithm: str,
    train: FeatureSet,
    validation: FeatureSet,
    settings: Sequence[Any],
    *,
    score_kind: ScoreKind = "log",
    source: Any = None,
    progress: ProgressFn | None = None,
) -> GridAnswer:
    """What ``evaluate_grid`` makes its table of: class and score of every validation row for every setting.

    A method that can score all settings in one pass does so; any other is fitted and scored setting by setting,
    with the same result. Arguments as for ``evaluate_grid``.
    """
    method = POSTPROCESSORS.info(algorithm)
    _check_settings(algorithm, method.params, settings)
    _check_splits(train, validation)
    method.require(train)
    method.require(validation)
    kind, queries = usable_score_kind(algorithm, score_kind), validation.inputs()
    if not method.one_pass:
        return best_one_by_one(method.value, train, queries, settings, score_kind=kind, progress=progress)
    return method.grid.best_of_settings(train, queries, settings, score_kind=kind, source=source, progress=progress)


def rate_table(
    labels: IntArray,
    answer: GridAnswer,
    *,
    fprs: Sequence[float] = FPRS,
    unknown_label: int = NEGATIVE,
    rule: CcrRule = "inclusive",
) -> pd.DataFrame:
    """The CCR at each rate, and behind them their sum, a rate that cannot be reached counting as 0."""
    ccr = ccr_of_many(labels, answer.label, answer.score, unknown_label=unknown_label, fprs=fprs, rule=rule)
    return pd.DataFrame(np.column_stack([ccr, np.nansum(ccr, axis=1)]), columns=[*map(ccr_column, fprs), "sum"])


def best_one_by_one(
    method: Callable[..., PostProcessor],
    train: FeatureSet,
    queries: Inputs,
    settings: Sequence[Any],
    *,
    score_kind: ScoreKind,
    progress: ProgressFn | None = None,
) -> GridAnswer:
    """Predicted class and its score, both (Q, S), setting by setting."""
    label = np.empty((len(queries), len(settings)), np.int32)
    score = np.empty((len(queries), len(settings)))
    notes: tuple[Note, ...] = ()
    for s, params in enumerate(settings):
        fitted = method(params, score_kind=score_kind).fit(train)
        label[:, s], score[:, s] = fitted.predict(queries)
        notes = merge_notes(notes, fitted.notes)
        if progress is not None:
            progress(s + 1, len(settings))
    return GridAnswer(label, score, notes)


def _check_settings(algorithm: str, params: type[Any], settings: Sequence[Any]) -> None:
    if not settings:
        raise UsageError(f"no settings to evaluate for {algorithm}; give at least one")
    for position, setting in enumerate(settings):
        if not isinstance(setting, params):
            raise UsageError(f"setting {position} of {algorithm} is {setting!r}, expected a {params.__name__}")


def _check_splits(train: FeatureSet, validation: FeatureSet) -> None:
    if train.n_known != validation.n_known:
        raise UsageError(
            f"training features have {train.n_known} known classes, validation features have "
            f"{validation.n_known}; both must belong to one protocol"
        )


def _hyperparameter_columns(settings: Sequence[Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: pd.array([getattr(setting, name, None) for setting in settings], dtype)
            for name, dtype in HYPERPARAMETERS.items()
        }
    )


def _further_columns(settings: Sequence[Any]) -> pd.DataFrame:
    names = [field.name for field in dataclasses.fields(settings[0]) if field.name not in HYPERPARAMETERS]
    return pd.DataFrame({name: [getattr(setting, name) for setting in settings] for name in names})
