"""DICE: only the weights of the head that matter for training rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows, log_sum_exp
from oscbench.postprocessors.scale import check_percentile


@dataclass(frozen=True, kw_only=True)
class DiceParams:
    """``percentile``: weights whose mean contribution lies at or below it, over the whole head, are removed."""

    percentile: float = 70.0

    def __post_init__(self) -> None:
        check_percentile(self.percentile)


@POSTPROCESSORS.register(
    "dice",
    label="DICE",
    params=DiceParams,
    paper="arXiv:2111.09805",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Weights that contribute little on training rows mostly add noise to the logits of unknowns: they are removed.",
        "V = W * mean z; LSE((W where V > percentile of V) z + b)",
        "Wide, over-parametrised ReLU networks.",
        "Signed features, and small networks in which every weight counts.",
    ),
)
class Dice(SharedFit):
    """Energy of a sparse head (Sun and Li 2022).

    All masked heads of a grid are stacked to one product; OpenOOD builds a B x K x P tensor, and its search has no
    effect: every percentile gives the scores of the first.
    """

    name = "dice"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        self._weight, self._bias = rows.head
        self._contribution = self._weight * rows.mean()

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        limits = np.percentile(self._contribution, [setting.percentile for setting in self.settings])
        heads = np.where(self._contribution > limits[:, None, None], self._weight, 0.0)  # (S, K, P)
        logits = rows.features() @ heads.reshape(-1, heads.shape[2]).T
        return log_sum_exp(logits.reshape(len(rows), len(self.settings), -1) + self._bias)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return width + len(self.settings) * len(self._bias)
