"""OptFS: features reweighted by what features of their size contribute to training logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.numerics.quantiles import percentiles
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import TINY, Array, Posthoc, Rows, TrainingRows, log_sum_exp
from oscbench.records import check_choices

Form = Literal["vanilla", "energy"]

ENDS: Final = (0.1, 99.9)
"""Percentiles of the training features between which there are bins."""

LENGTH: Final = 1000.0
"""Of the vector of all bins' weights."""


@dataclass(frozen=True, kw_only=True)
class OptfsParams:
    """Hyperparameters of OptFS.

    Attributes:
        bins: Into how many equal ones the range of features is cut.
        form: ``vanilla``: the predicted class's weights times the shaped features; ``energy``: LSE of all logits.
    """

    bins: int = 100
    form: Form = "vanilla"

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise UsageError(f"bins must be >= 1, got {self.bins}")
        check_choices(self)


@POSTPROCESSORS.register(
    "optfs",
    label="OptFS",
    params=OptfsParams,
    paper="arXiv:2402.00865",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "The shaping of features by their size that raises training logits most, found instead of assumed.",
        "z'_i = theta_bin(z_i) z_i, theta = 1000 I / |I|, I_b = mean contribution of bin b; w_y . z' or LSE(W z' + b)",
        "Wide ReLU networks: the shape follows the features.",
        "Few training rows: the weights of rare sizes are noise.",
    ),
)
class Optfs(Posthoc):
    """Optimal piecewise constant feature shaping (Zhao et al. 2024).

    Features outside the bins count as 0, as in the authors' program; bins are looked up by division, not compared one
    by one.
    """

    name = "optfs"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        self._weight, self._bias = rows.head
        low, high = percentiles(lambda: (block for _, block in rows.feature_blocks()), ENDS).tolist()
        self._low, self._range = low, max(high - low, TINY)
        sums = {setting.bins: np.zeros(setting.bins + 1) for setting in self.settings}
        for part, block in rows.feature_blocks():
            contribution = (self._weight[rows.predicted[part]] * block).ravel()
            for bins, total in sums.items():
                total += np.bincount(self._bin(block, bins).ravel(), contribution, bins + 1)
        self._theta = {}
        for bins, total in sums.items():
            inside = total[:bins] / len(rows)
            length = max(float(np.linalg.norm(inside)), TINY)
            self._theta[bins] = np.append(LENGTH * inside / length, 0.0)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        features, own = rows.features(), self._weight[rows.predicted]
        shaped = {bins: self._theta[bins][self._bin(features, bins)] * features for bins in self._theta}
        return np.stack([self._score(shaped[s.bins], own, s.form) for s in self.settings], axis=1)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return (3 + 2 * len(self.settings)) * width

    def _score(self, shaped: Array, own: Array, form: Form) -> Array:
        if form == "vanilla":
            return np.asarray(np.einsum("np,np->n", own, shaped))
        return log_sum_exp(shaped @ self._weight.T + self._bias)

    def _bin(self, features: Array, bins: int) -> NDArray[np.intp]:
        """(N, P) the bin of each feature; ``bins`` for those outside."""
        place = np.floor((features - self._low) * (bins / self._range))
        return np.where((place >= 0) & (place < bins), place, bins).astype(np.intp)
