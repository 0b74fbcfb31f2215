"""All settings of one method on one pair of feature sets: the table a search looks through, without Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import NEGATIVE, ProgressFn
from oscbench.metrics import FPRS, CcrRule, ccr_column, ccr_of_many
from oscbench.postprocessors import POSTPROCESSORS, PostProcessor, ScoreKind
from oscbench.postprocessors.base import usable_score_kind

if TYPE_CHECKING:
    from oscbench.numerics.evm.source import NeighborSource

HYPERPARAMETERS: dict[str, Any] = {
    "tail_size": "Int64",
    "distance_multiplier": "float64",
    "alpha": "Int64",
    "cover_threshold": "float64",
    "dummies": "Int64",
}
"""Columns every table has, blank where a method does not use them; other parameters follow behind ``sum``."""


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
    source: NeighborSource | None = None,
    progress: ProgressFn | None = None,
) -> pd.DataFrame:
    """CCR at each false-positive rate, and their sum, for every setting in the order given.

    A method that can score all settings in one pass does so; any other is fitted and scored setting by setting,
    with the same result.

    Args:
        algorithm: A registered post-processor.
        train: Rows to fit on.
        validation: Rows to score.
        settings: Parameter records of that algorithm.
        fprs: Target false-positive rates.
        unknown_label: Which rows of ``validation`` count as false positives.
        rule: How the CCR at a rate is read from the curve.
        score_kind: Kind of score; a method with a single kind answers in that one.
        source: Who computes distances, for methods that need neighbours; default: this process.
        progress: Called as ``progress(done, total)``.

    Returns:
        One row per setting: the columns of ``HYPERPARAMETERS``, ``ccr_1e-3`` … ``ccr_1``, ``sum``, and behind it
        the method's further parameters.
    """
    entry = POSTPROCESSORS.info(algorithm)
    _check_settings(algorithm, entry.params, settings)
    _check_splits(train, validation)
    kind = usable_score_kind(algorithm, score_kind)
    queries = validation.inputs()
    if hasattr(entry.value, "best_of_settings"):
        predicted, confidence = entry.value.best_of_settings(
            train, queries, settings, score_kind=kind, source=source, progress=progress
        )
    else:
        predicted, confidence = best_one_by_one(
            entry.value, train, queries, settings, score_kind=kind, progress=progress
        )
    ccr = ccr_of_many(validation.labels, predicted, confidence, unknown_label=unknown_label, fprs=fprs, rule=rule)
    return pd.concat([_hyperparameter_columns(settings), _rate_columns(ccr, fprs), _further_columns(settings)], axis=1)


def best_one_by_one(
    method: Callable[..., PostProcessor],
    train: FeatureSet,
    queries: Inputs,
    settings: Sequence[Any],
    *,
    score_kind: ScoreKind,
    progress: ProgressFn | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Predicted class and its score, both (Q, S), setting by setting; ties go to the lowest class."""
    predicted = np.empty((len(queries), len(settings)), np.int32)
    confidence = np.empty((len(queries), len(settings)))
    for s, params in enumerate(settings):
        scores = method(params, score_kind=score_kind).fit(train).score(queries)
        predicted[:, s] = np.argmax(scores, axis=1)
        confidence[:, s] = np.max(scores, axis=1)
        if progress is not None:
            progress(s + 1, len(settings))
    return predicted, confidence


def _check_settings(algorithm: str, params: type[Any] | None, settings: Sequence[Any]) -> None:
    if not settings:
        raise UsageError(f"no settings to evaluate for {algorithm}; give at least one")
    for position, setting in enumerate(settings):
        if params is not None and not isinstance(setting, params):
            raise UsageError(f"setting {position} of {algorithm} is {setting!r}, expected a {params.__name__}")


def _check_splits(train: FeatureSet, validation: FeatureSet) -> None:
    if train.n_known != validation.n_known:
        raise UsageError(
            f"training features have {train.n_known} known classes, validation features have "
            f"{validation.n_known}; both must belong to one protocol"
        )


def _rate_columns(ccr: NDArray[np.float64], fprs: Sequence[float]) -> pd.DataFrame:
    """The CCR at each rate, and behind them their sum, a rate that cannot be reached counting as 0."""
    return pd.DataFrame(np.column_stack([ccr, np.nansum(ccr, axis=1)]), columns=[*map(ccr_column, fprs), "sum"])


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
