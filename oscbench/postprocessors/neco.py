"""NECO: the share of a row that lies in the principal directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oscbench.errors import UsageError
from oscbench.numerics.principal import principal_directions
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import TINY, Array, Rows, SharedFit, TrainingRows


@dataclass(frozen=True, kw_only=True)
class NecoParams:
    """``variance``: share of the training rows' variance that the principal directions explain."""

    variance: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.variance < 1:
            raise UsageError(f"variance must be in (0, 1), got {self.variance}")


@POSTPROCESSORS.register(
    "neco",
    label="NECO",
    params=NecoParams,
    paper="arXiv:2310.06823",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "Known rows collapse into few directions: the share of a row's length in them, times its largest logit.",
        "|first q principal coordinates of standardised z| / |standardised z| * max l",
        "Networks trained to the end, whose classes have collapsed to points.",
        "Short trainings; unknowns inside the known directions.",
    ),
)
class Neco(SharedFit):
    """Ratio of lengths times the largest logit (Ben Ammar et al. 2024).

    Directions of standardised features are applied to standardised features, as in the authors' own program; a public
    port applies them to raw ones.
    """

    name = "neco"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._mean = rows.mean()
        squares = np.zeros_like(self._mean)
        for _, block in rows.feature_blocks():
            squares += ((block - self._mean) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / len(rows))
        self._scale = np.where(deviation > 0, deviation, 1.0)
        values, self._directions = principal_directions(
            (block - self._mean) / self._scale for _, block in rows.feature_blocks()
        )
        self._explained = np.cumsum(np.maximum(values, 0)) / max(np.maximum(values, 0).sum(), TINY)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        squares = (((rows.features() - self._mean) / self._scale) @ self._directions) ** 2
        inside = np.sqrt(np.cumsum(squares, axis=1))
        wanted = [setting.variance for setting in self.settings]
        last = np.minimum(np.searchsorted(self._explained, wanted, side="right"), len(self._explained) - 1)
        ratio = inside[:, last] / np.maximum(inside[:, -1:], TINY)
        return np.asarray(ratio * rows.logits.max(axis=1)[:, None])

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * width
