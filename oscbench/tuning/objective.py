"""What a search maximises: settings in, CCR at the four rates out. Tune, a loop and a unit test call the same thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE
from oscbench.metrics import CcrRule
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.records import from_mapping
from oscbench.tuning.grid import evaluate_grid
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES

Outcome = dict[str, Any]
"""Either the columns of ``RATES`` and ``seconds``, or ``error``: what one trial has to report; from the service also
``notes``, what the method had to bend."""


def check_validation(validation: FeatureSet, where: str) -> None:
    """Refuses a validation set on which the objective has no meaning, and says what cannot be computed."""
    if not np.any(validation.labels == NEGATIVE):
        raise UsageError(
            f"{where} has no negatives (label {NEGATIVE}): without them there is no false-positive rate, so CCR at "
            "1e-3, 1e-2 and 1e-1 cannot be computed and nothing can be tuned; add negatives to the validation set"
        )
    if not np.any(validation.labels >= 0):
        raise UsageError(f"{where} has no known samples: no correct-classification rate can be computed")


class Objective:
    """Evaluates settings of one algorithm on one pair of feature sets; shared work is kept between calls.

    Args:
        algorithm: A registered post-processor.
        train: Rows to fit on.
        validation: Rows to score; its negatives give the false-positive rate.
        rule: How the CCR at a rate is read from the curve.
        score_kind: Kind of score.
        expected: Settings between which all others lie. A method with ``open_source(train, settings)`` then keeps
            what they share, for EVM the distances of its tails, from one call to the next.
        make_source: Who computes for such a method; default: this process.
    """

    def __init__(
        self,
        algorithm: str,
        train: FeatureSet,
        validation: FeatureSet,
        *,
        rule: CcrRule = "inclusive",
        score_kind: ScoreKind = "log",
        expected: Sequence[Setting] = (),
        make_source: Callable[..., Any] | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._train = train
        self._validation = validation
        self._rule = rule
        self._score_kind = score_kind
        entry = POSTPROCESSORS.info(algorithm)
        self._params = entry.params
        self._source: Any = None
        self._open_source: Callable[[], Any] | None = None
        if expected and hasattr(entry.value, "open_source"):
            who = {} if make_source is None else {"make_source": make_source}
            self._open_source = partial(entry.value.open_source, train, self._records(expected), **who)

    def __call__(self, settings: Sequence[Setting]) -> list[Outcome]:
        """The outcome of each setting, in order; a setting that fails does not take the others with it."""
        started = time.perf_counter()
        try:
            rows = self._evaluate(settings)
        except Exception as error:  # noqa: BLE001 - whatever a method raises belongs to its trial, not to the search
            if len(settings) > 1:
                return [outcome for setting in settings for outcome in self([setting])]
            return [{"error": describe(error)}]
        share = (time.perf_counter() - started) / len(settings)
        return [row | {"seconds": share} for row in rows]

    def _evaluate(self, settings: Sequence[Setting]) -> list[Outcome]:
        if self._open_source is not None:
            self._source, self._open_source = self._open_source(), None
        table = evaluate_grid(
            self._algorithm,
            self._train,
            self._validation,
            self._records(settings),
            rule=self._rule,
            score_kind=self._score_kind,
            source=self._source,
        )
        return [{name: float(row[name]) for name in RATES} for row in table.to_dict("records")]

    def _records(self, settings: Sequence[Setting]) -> list[Any]:
        return [from_mapping(self._params, setting, "setting") if self._params else None for setting in settings]


def describe(error: Exception) -> str:
    """The message of an error of ours, anything else with its type, in one line."""
    text = str(error) if isinstance(error, OscbenchError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
