"""ASH: only the largest features of a row are kept, and adjusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows, log_sum_exp
from oscbench.postprocessors.scale import LARGEST_EXPONENT, check_percentile
from oscbench.records import check_choices

Variant = Literal["s", "b", "p"]


@dataclass(frozen=True, kw_only=True)
class AshParams:
    """Hyperparameters of ASH.

    Attributes:
        percentile: Features below it are removed.
        variant: ``p`` only removes; ``s`` scales what is left by e^r; ``b`` makes all that is left equal.
    """

    percentile: float = 90.0
    variant: Variant = "s"

    def __post_init__(self) -> None:
        check_percentile(self.percentile)
        check_choices(self)


@POSTPROCESSORS.register(
    "ash",
    label="ASH",
    params=AshParams,
    paper="arXiv:2209.09858",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Most features of a row say little about its class; removing them costs unknowns more than known rows.",
        "T = the k largest z; P: W z_T + b; S: e^(sum z / sum z_T) W z_T + b; B: (sum z / k) W 1_T + b; then LSE",
        "Wide ReLU networks and unknowns far from the classes.",
        "Signed features (ViT, Swin, ConvNeXt), small networks, unknowns that resemble the classes.",
    ),
)
class Ash(SharedFit):
    """Energy of the head's answer to the largest features (Djurisic et al. 2023).

    The class is the classifier's; OpenOOD takes the one of the shaped logits. Sums are of max(z, 0), as for SCALE. Of
    equal features the first are kept. One walk down the sorted features of a row serves all variants and percentiles.
    """

    name = "ash"
    in_threads = True

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        weight, self._bias = rows.head
        self._columns = np.ascontiguousarray(weight.T)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        from oscbench.numerics.shaping import kept_features, top_logits

        features = rows.features()
        kept = [kept_features(features.shape[1], setting.percentile) for setting in self.settings]
        distinct = np.array(sorted(set(kept)))
        sums = {  # of weights alone for variant b, of features times weights for the others
            weighted: top_logits(features, self._columns, distinct, weighted=weighted)
            for weighted in {setting.variant != "b" for setting in self.settings}
        }
        total = np.maximum(features, 0.0).sum(axis=1)
        found = []
        for k, setting in zip(kept, self.settings, strict=True):
            logits, top = (array[:, np.searchsorted(distinct, k)] for array in sums[setting.variant != "b"])
            factor = self._factor(setting.variant, total, top, k)
            found.append(log_sum_exp(factor[:, None] * logits + self._bias))
        return np.stack(found, axis=1)

    def _factor(self, variant: Variant, total: Array, top: Array, k: int) -> Array:
        """(N,) what the sums are multiplied by."""
        if variant == "b":
            return total / k
        if variant == "p":
            return np.ones_like(total)
        share = np.divide(total, top, out=np.ones_like(total), where=top > 0)
        return np.asarray(np.exp(np.minimum(share, LARGEST_EXPONENT)))

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * width + 2 * len(self.settings) * len(self._bias)
