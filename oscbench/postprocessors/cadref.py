"""CADRef: the error of a row relative to its class's mean, split by what it does to the logit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from oscbench.notes import Note
from oscbench.numerics.softmax import softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.gen import entropies, log_entropy_terms
from oscbench.postprocessors.posthoc import TINY, Array, Posthoc, Rows, TrainingRows, log_sum_exp
from oscbench.records import check_choices

LogitScore = Literal["gen", "msp", "energy", "maxlogit", "none"]

SMALLEST: Final = 1e-6
"""Floor of a logit score: one that is not positive would turn the sign of what is divided by it."""


def _inverse_entropy(logits: Array) -> Array:
    top = min(logits.shape[1], max(10, logits.shape[1] // 10))
    return 1.0 / np.maximum(entropies(log_entropy_terms(logits), 0.1)[:, top - 1], TINY)


_SCORES: Final[dict[str, Callable[[Array], Array]]] = {
    "gen": _inverse_entropy,
    "msp": lambda logits: softmax(logits).max(axis=1),
    "energy": log_sum_exp,
    "maxlogit": lambda logits: logits.max(axis=1),
}


@dataclass(frozen=True, kw_only=True)
class CadrefParams:
    """``logit_score``: by which the part of the error that raises the logit is divided; ``none`` is CARef."""

    logit_score: LogitScore = "gen"

    def __post_init__(self) -> None:
        check_choices(self)


@POSTPROCESSORS.register(
    "cadref",
    label="CADRef",
    params=CadrefParams,
    paper="arXiv:2503.00325",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Relative distance to the predicted class's mean; what raises the logit counts less where the network is sure.",
        "-(e+ / s(l) + e- / mean s), e+-: parts of |z - m_y|_1 / |z|_1 along and against sign w_y; CARef: their sum",
        "Near unknowns and small networks; combines logits and features without tuning.",
        "Logit scores that can be 0 or below (energy, maxlogit) on networks with small logits.",
    ),
)
class Cadref(Posthoc):
    """Class-aware decoupled relative error (Ling et al. 2025); with ``logit_score: none`` CARef, without the logits.

    Logit scores below 1e-6 are set to that, and counted in a note for training rows: the authors' division turns the
    sign there.
    """

    name = "cadref"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        weight, _ = rows.head
        self._means, _ = rows.class_means()
        self._signs = np.sign(weight)
        self._average: dict[str, float] = {}
        for kind in sorted({setting.logit_score for setting in self.settings} - {"none"}):
            found = _SCORES[kind](rows.logits)
            low = int(np.count_nonzero(found < SMALLEST))
            if low:
                form = f"CADRef: {kind} of {{}} of {{}} training rows is not positive and was set to {SMALLEST:g}"
                rows.notes.append(Note(form, (low, len(rows))))
            self._average[kind] = float(np.maximum(found, SMALLEST).mean())

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        features, predicted = rows.features(), rows.predicted
        apart = features - self._means[predicted]
        along = apart * self._signs[predicted]
        norm = np.maximum(np.abs(features).sum(axis=1), TINY)
        raising, lowering = np.maximum(along, 0).sum(axis=1) / norm, np.maximum(-along, 0).sum(axis=1) / norm
        found = {}
        for kind in {setting.logit_score for setting in self.settings}:
            if kind == "none":
                found[kind] = -np.abs(apart).sum(axis=1) / norm
            else:
                sure = np.maximum(_SCORES[kind](rows.logits), SMALLEST)
                found[kind] = -(raising / sure + lowering / self._average[kind])
        return np.stack([found[setting.logit_score] for setting in self.settings], axis=1)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * width
