"""ReAct and VRA: features clipped to what training rows usually show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oscbench.errors import UsageError
from oscbench.numerics.quantiles import percentiles
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Posthoc, Rows, TrainingRows, log_sum_exp


@dataclass(frozen=True, kw_only=True)
class ReactParams:
    """Hyperparameters of ReAct.

    Attributes:
        percentile: Of all training activations; larger features are set to it.
        lower: Likewise from below, which makes it VRA; 0 leaves small features alone.
    """

    percentile: float = 90.0
    lower: float = field(default=0.0, metadata={"other": 60.0})

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.percentile <= 100:
            raise UsageError(
                f"0 <= lower < percentile <= 100 is needed, got lower {self.lower} and percentile {self.percentile}"
            )


@POSTPROCESSORS.register(
    "react",
    label="ReAct",
    params=ReactParams,
    paper="arXiv:2111.12797, arXiv:2302.11716",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Unknowns fire a few features far beyond what training rows show; clipping these lowers their logits.",
        "LSE(W clip(z, c_low, c_high) + b), c = percentiles of all training activations",
        "Wide ReLU networks with batch normalisation, unknowns far from the classes.",
        "Small networks, whose known rows need their largest features too.",
    ),
)
class React(Posthoc):
    """Energy of the head's answer to clipped features (Sun et al. 2021); with ``lower`` as OpenOOD's VRA clips.

    The thresholds are percentiles of all activations of the known *training* rows; OpenOOD takes validation rows. The
    class is the classifier's, not that of the clipped logits. pytorch-ood's VRA has percentiles per feature: another
    method.
    """

    name = "react"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        self._weight, self._bias = rows.head
        wanted = sorted({p for s in self.settings for p in (s.percentile, s.lower)})
        found = percentiles(lambda: (block for _, block in rows.feature_blocks()), wanted)
        self._threshold = dict(zip(wanted, found.tolist(), strict=True)) | {0.0: -np.inf}

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        features, threshold = rows.features(), self._threshold
        clipped = (np.clip(features, threshold[s.lower], threshold[s.percentile]) for s in self.settings)
        return np.stack([log_sum_exp(some @ self._weight.T + self._bias) for some in clipped], axis=1)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 2 * width
