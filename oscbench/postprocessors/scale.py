"""SCALE and LTS: logits scaled by how much of a row's activation its largest features carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from oscbench.errors import UsageError
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Rows, SharedFit, TrainingRows, log_sum_exp
from oscbench.records import check_choices

Form = Literal["scale", "lts"]

LARGEST_EXPONENT: Final = 300.0
"""Of the factor of SCALE: beyond it logits would leave the range of floats; r is 3 to 6 in the papers."""


def check_percentile(percentile: float) -> None:
    """Refuses what leaves no feature, or is no percentile."""
    if not 0 <= percentile < 100:
        raise UsageError(f"percentile must be in [0, 100), got {percentile}")


@dataclass(frozen=True, kw_only=True)
class ScaleParams:
    """Hyperparameters of SCALE.

    Attributes:
        percentile: Features above it are the large ones (LTS counts the share above: its 0.05 is 95 here).
        form: ``scale`` multiplies the features by e^r, ``lts`` the logits by r^2.
    """

    percentile: float = 85.0
    form: Form = "scale"

    def __post_init__(self) -> None:
        check_percentile(self.percentile)
        check_choices(self)


@POSTPROCESSORS.register(
    "scale",
    label="SCALE",
    params=ScaleParams,
    paper="arXiv:2310.00227, arXiv:2409.01175",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Known rows spread their activation over more features than unknowns, and are scaled up the more for it.",
        "r = sum z / sum of the largest z; SCALE: LSE(e^r (l - b) + b), LTS: LSE(r^2 l)",
        "Wide ReLU networks: among the best for ResNet-50 on ImageNet, and nearly free.",
        "Signed features (ViT, Swin, ConvNeXt), and networks with few features.",
    ),
)
class Scale(SharedFit):
    """LSE of logits scaled by r = sum z / sum of the k largest z (Xu et al. 2024; LTS: Djurisic et al. 2024).

    e^r W z + b = e^r (l - b) + b, so no product is needed. Differs from public code for negative features only: both
    sums are of max(z, 0), which bounds r between 1 and P / k; r = 1 for a row without a positive one (NaN elsewhere).
    """

    name = "scale"
    in_threads = True

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        rows.note_signed_features()
        needs_bias = any(setting.form == "scale" for setting in self.settings)
        self._bias = rows.head[1] if needs_bias else None

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        from oscbench.numerics.shaping import kept_features, top_shares

        features = rows.features()
        kept = [kept_features(features.shape[1], setting.percentile) for setting in self.settings]
        distinct = sorted(set(kept))
        shares = top_shares(features, distinct)
        found = [
            self._score(rows, shares[:, distinct.index(k)], s.form) for k, s in zip(kept, self.settings, strict=True)
        ]
        return np.stack(found, axis=1)

    def _score(self, rows: Rows, share: Array, form: Form) -> Array:
        if form == "lts":
            return log_sum_exp(share[:, None] ** 2 * rows.logits)
        assert self._bias is not None, "it was learnt for LTS alone"
        factor = np.exp(np.minimum(share, LARGEST_EXPONENT))[:, None]
        return log_sum_exp(factor * (rows.logits - self._bias) + self._bias)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * width
