"""KL matching: how far the probabilities are from those that are typical for a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oscbench.numerics.softmax import log_softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Prediction, Rows, SharedFit, TrainingRows, decide_by_class
from oscbench.records import check_choices

FLOOR: Final = np.log(1e-300)
"""Of the logarithm of a typical probability that is 0."""


@dataclass(frozen=True, kw_only=True)
class KlmParams:
    """Whose class goes with a score; ``method``: the class whose typical probabilities are nearest."""

    prediction: Prediction = "classifier"

    def __post_init__(self) -> None:
        check_choices(self)


@POSTPROCESSORS.register(
    "klm",
    label="KLM",
    params=KlmParams,
    paper="arXiv:1911.11132",
    needs={"logits"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="logits",
    about=About(
        "Every class has its typical probabilities, look-alikes included; a known row has those of one class.",
        "-min_k KL(p || mean p of training rows predicted k)",
        "Classes with look-alikes: a row torn between a class and its usual neighbour is still known.",
        "Few training rows a class, or trainings that end with probabilities of 1.",
    ),
)
class Klm(SharedFit):
    """Minus the smallest Kullback-Leibler divergence from a class's typical probabilities (Hendrycks et al. 2022).

    d_k is the mean softmax of the training rows that are predicted k, one-hot where there are none; the score of k is
    p . ln d_k - p . ln p: one product for all rows and classes, where OpenOOD calls scipy for every pair. Fitted on
    training rows; OpenOOD takes validation rows.
    """

    name = "klm"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        k = rows.n_known
        sums, counts = np.zeros((k, k)), np.zeros(k)
        for _, block in rows.blocks(k):
            np.add.at(sums, block.predicted, np.exp(log_softmax(block.logits)))
            counts += np.bincount(block.predicted, minlength=k)
        typical = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], np.eye(k))
        with np.errstate(divide="ignore"):
            self._log_typical = np.maximum(np.log(typical), FLOOR)

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        log_p = log_softmax(rows.logits)
        p = np.exp(log_p)
        per_class = p @ self._log_typical.T - np.einsum("nk,nk->n", p, np.maximum(log_p, FLOOR))[:, None]
        return decide_by_class(rows, [per_class] * len(self.settings), self.settings)
