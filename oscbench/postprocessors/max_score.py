"""Maximum softmax score (MSS) and maximum logit score (MLS): the network's own outputs as they are."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray
from oscbench.metrics import Predictions
from oscbench.notes import Note
from oscbench.numerics.softmax import log_softmax, single_softmax, softmax
from oscbench.postprocessors.base import (
    POSTPROCESSORS,
    About,
    ScoreKind,
    best_class,
    finite_logits,
    require_fitted,
    require_score_kind,
    require_width,
)


class _LogitScore:
    """Shared by both: fitting only remembers how many outputs the network has."""

    name: ClassVar[str]
    notes: tuple[Note, ...] = ()

    def __init__(self, params: Any = None, score_kind: ScoreKind | None = None) -> None:
        self.params = params
        self.score_kind: ScoreKind = require_score_kind(self.name, score_kind)
        self._n_outputs: int | None = None

    def fit(self, train: FeatureSet) -> Self:
        """Remembers the number of outputs; there is nothing to learn."""
        self._n_outputs = finite_logits(train, self.name.upper()).shape[1]
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) scores of the known classes."""
        n_outputs = require_fitted(self._n_outputs, self.name.upper())
        logits = require_width(finite_logits(inputs, self.name.upper()), n_outputs, "logits")
        return np.array(self._of_logits(logits)[:, : inputs.n_known], np.float64)

    def predict(self, inputs: Inputs) -> Predictions:
        """The class with the highest score, and that score."""
        return best_class(self.score(inputs))

    def _of_logits(self, logits: FloatArray) -> FloatArray:
        raise NotImplementedError


@POSTPROCESSORS.register(
    "mss",
    label="MSS",
    paper="arXiv:1610.02136",
    needs={"logits"},
    score_kinds=("log", "probability", "published"),
    cost="logits",
    about=About(
        "How sure the network is of its class: the largest softmax probability.",
        "max_k exp(l_k) / sum_c exp(l_c)",
        "Networks that were taught to be unsure on negatives (Garbage, EOS); the baseline that others must beat.",
        "Overconfident networks; probabilities say nothing about rows that are far from all classes.",
    ),
)
class MaximumSoftmaxScore(_LogitScore):
    """Softmax over all C outputs, of which the first K are the scores (Hendrycks and Gimpel 2017).

    A garbage output takes its share of the probability but is never predicted. The score kind ``published`` is the
    softmax in single precision: rows of a sure network tie at exactly 1 there, as they do in the published tables.
    """

    name = "mss"

    def _of_logits(self, logits: FloatArray) -> FloatArray:
        if self.score_kind == "published":
            return single_softmax(logits)
        return log_softmax(logits) if self.score_kind == "log" else softmax(logits)


@POSTPROCESSORS.register(
    "mls",
    label="MLS",
    paper="arXiv:1911.11132, arXiv:2110.06207",
    needs={"logits"},
    score_kinds=("logit",),
    cost="logits",
    about=About(
        "The largest logit itself: softmax throws away how large all of them are together.",
        "max_k l_k",
        "Many classes that resemble each other: their shares of the probability do not matter.",
        "Networks whose logits have no common scale; and Garbage trainings, whose extra output it does not hear.",
    ),
)
class MaximumLogitScore(_LogitScore):
    """The first K logits themselves (Hendrycks et al. 2022, whom the evaluation paper cites; Vaze et al. 2022)."""

    name = "mls"

    def _of_logits(self, logits: FloatArray) -> FloatArray:
        return logits
