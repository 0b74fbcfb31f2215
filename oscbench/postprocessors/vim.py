"""ViM and its residual: the part of a row that the training rows hardly ever use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.notes import Note
from oscbench.numerics.principal import principal_directions, residual_squares
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows, log_sum_exp

RANK_CUT: Final = 1e-5
"""Singular values of a head below this share of the largest are noise of single precision."""


@dataclass(frozen=True, kw_only=True)
class ResidualParams:
    """``dim``: how many principal directions are taken away before a row's remainder is measured."""

    dim: int = 256

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise UsageError(f"dim must be >= 1, got {self.dim}")


@POSTPROCESSORS.register(
    "residual",
    label="Residual",
    params=ResidualParams,
    paper="arXiv:2203.10807",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "The length of a row outside the directions in which the training rows vary most.",
        "-|R(z - u)|, R the projection on all but the first dim principal directions, u = -W^+ b",
        "Unknowns of another kind altogether: textures, other sensors.",
        "Unknowns that resemble known classes: they lie in the same directions.",
    ),
)
class Residual(SharedFit):
    """Length of the projection on the smaller principal directions (Wang et al. 2022, without the logits).

    The origin u solves W u = -b with singular values below 1e-5 of the largest cut: OpenOOD's 1e-15 makes it 168,349
    long instead of 1.95 for a head whose rows add up to zero. One symmetric eigendecomposition serves every ``dim``;
    one that reaches the rank of the training rows would leave nothing (OpenOOD's scores are NaN there) and is clipped
    to one below it. Fitted on training rows; OpenOOD's Residual takes validation rows.
    """

    name = "residual"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        weight, bias = rows.head
        self._origin = -np.linalg.pinv(weight, rcond=RANK_CUT) @ bias
        values, self._directions = principal_directions(block - self._origin for _, block in rows.feature_blocks())
        rank = np.count_nonzero(values > RANK_CUT**2 * values[0])  # eigenvalues are squares of singular values
        self._longest = max(1, int(rank) - 1)

    def bent(self) -> Iterator[Note]:
        """See ``Posthoc``."""
        clipped = [setting.dim for setting in self.settings if setting.dim > self._longest]
        if clipped:
            numbers = (max(clipped), self._longest, len(clipped))
            form = "dim up to {} clipped to {}, one below the rank of the training rows, in {} settings"
            yield Note(f"{self.label}: {form}", numbers)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        return -self._lengths(rows.features())[:, self._dims()]

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * width

    def _lengths(self, features: Array) -> Array:
        """(N, P + 1) lengths of what the first 0, 1, … P directions leave."""
        return np.sqrt(residual_squares((features - self._origin) @ self._directions))

    def _dims(self) -> NDArray[np.int64]:
        return np.minimum([setting.dim for setting in self.settings], self._longest)


@POSTPROCESSORS.register(
    "vim",
    label="ViM",
    params=ResidualParams,
    paper="arXiv:2203.10807",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "The energy of the logits less the residual, which is scaled to be a logit of its own.",
        "ln sum_k exp(l_k) - alpha |R(z - u)|, alpha = mean max logit / mean residual of training rows",
        "Mixed unknowns: the logits see those near the classes, the residual those far from everything.",
        "Small networks whose features have no unused directions.",
    ),
)
class Vim(Residual):
    """Energy minus the residual, scaled to the size of the largest logit (Wang et al. 2022)."""

    name = "vim"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        super().learn(rows)
        sums = np.zeros(len(self._directions) + 1)
        for _, block in rows.feature_blocks():
            sums += self._lengths(block).sum(axis=0)
        largest = rows.logits.max(axis=1).sum()
        self._alpha = np.divide(largest, sums, out=np.zeros_like(sums), where=sums > 0)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        return np.asarray(log_sum_exp(rows.logits)[:, None] + self._alpha[self._dims()] * super().scores(rows))
