"""Maximum softmax score (MSS) and maximum logit score (MLS): the network's own outputs as they are."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray
from oscbench.numerics.softmax import log_softmax, softmax
from oscbench.postprocessors.base import (
    POSTPROCESSORS,
    NoParams,
    ScoreKind,
    finite_logits,
    require_fitted,
    require_score_kind,
    require_width,
)


class _LogitScore:
    """Shared by both: fitting only remembers how many outputs the network has."""

    who: ClassVar[str]
    score_kinds: ClassVar[tuple[ScoreKind, ...]]

    def __init__(self, params: NoParams | None = None, score_kind: ScoreKind | None = None) -> None:
        self.params = params or NoParams()
        self.score_kind: ScoreKind = require_score_kind(self.who, score_kind or self.score_kinds[0], self.score_kinds)
        self._n_outputs: int | None = None

    def fit(self, train: FeatureSet) -> Self:
        """Remembers the number of outputs; there is nothing to learn."""
        self._n_outputs = finite_logits(train, self.who).shape[1]
        return self

    def _logits(self, inputs: Inputs) -> FloatArray:
        n_outputs = require_fitted(self._n_outputs, self.who)
        return require_width(finite_logits(inputs, self.who), n_outputs, "logits")


@POSTPROCESSORS.register("mss", label="MSS", params=NoParams, paper="arXiv:1610.02136")
class MaximumSoftmaxScore(_LogitScore):
    """Softmax over all C outputs, of which the first K are the scores (Hendrycks and Gimpel 2017).

    A garbage output takes its share of the probability but is never predicted.
    """

    who = "MSS"
    score_kinds = ("log", "probability")

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) softmax probabilities of the known classes, or their logarithms."""
        logits = self._logits(inputs)
        values = log_softmax(logits) if self.score_kind == "log" else softmax(logits)
        return values[:, : inputs.n_known]


@POSTPROCESSORS.register("mls", label="MLS", params=NoParams, paper="arXiv:2110.06207")
class MaximumLogitScore(_LogitScore):
    """The first K logits themselves (Vaze et al. 2022)."""

    who = "MLS"
    score_kinds = ("logit",)

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) logits of the known classes."""
        return np.array(self._logits(inputs)[:, : inputs.n_known], np.float64)
