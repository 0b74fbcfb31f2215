"""Relation: how strongly a row is related, in features and probabilities, to the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oscbench.errors import UsageError
from oscbench.numerics.softmax import softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.knn import ComparesRows, unit_gallery
from oscbench.postprocessors.posthoc import Array, Rows, TrainingRows

FLOOR: Final = 0.03
"""Relations at or below it do not count, as in the original."""


@dataclass(frozen=True, kw_only=True)
class RelationParams:
    """``power``: of each relation before they are added up; 1 as published."""

    power: int = 1

    def __post_init__(self) -> None:
        if self.power < 1:
            raise UsageError(f"power must be >= 1, got {self.power}")


@POSTPROCESSORS.register(
    "relation",
    label="Relation",
    params=RelationParams,
    paper="arXiv:2301.12321",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="pairs",
    about=About(
        "A known row has many training rows that resemble it and are classified alike.",
        "sum_i r_i^power over r_i > 0.03, r_i = max(cos(z, z_i), 0) p . p_i",
        "Classes of similar size, many training rows.",
        "Small classes: the sum counts related rows, and they have few.",
    ),
)
class Relation(ComparesRows):
    """Sum of powers of relations to all known training rows (Kim et al. 2023).

    All powers come from one pass. OpenOOD's form writes into the feature tensor it is given. Large sets (16 million
    numbers) are compared in float32: sums then differ by some 4e-5 of their standard deviation.
    """

    name = "relation"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        from oscbench.numerics.topk import ProductRows

        gallery = unit_gallery(rows, "pooled")
        self.sources = {"pooled": ProductRows(gallery, softmax(rows.logits).astype(gallery.dtype))}

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        powers = [setting.power for setting in self.settings]
        return self.sources["pooled"].related(rows.unit_features(), softmax(rows.logits), powers, FLOOR)
