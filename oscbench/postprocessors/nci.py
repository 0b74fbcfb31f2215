"""NCI: how well a row points to its class's weights, seen from the training mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oscbench.errors import UsageError
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import TINY, Array, Rows, SharedFit, TrainingRows


@dataclass(frozen=True, kw_only=True)
class NciParams:
    """``norm_weight``: factor of the features' L1 norm, which is added."""

    norm_weight: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.norm_weight < np.inf:
            raise UsageError(f"norm_weight must be finite and not negative, got {self.norm_weight}")


@POSTPROCESSORS.register(
    "nci",
    label="NCI",
    params=NciParams,
    paper="arXiv:2311.01479",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Late in training the features of a class point along its weights, those of unknowns along none.",
        "w_y . (z - mean z) / |z - mean z| + norm_weight |z|_1",
        "Networks trained to the end (neural collapse), and unknowns with weak features.",
        "Short trainings; norm_weight must fit the size of the features.",
    ),
)
class Nci(SharedFit):
    """Projection of the centred row's direction on the predicted class's weights, plus its norm (Liu and Qin 2025).

    The numerator is (l - b - W mean)_y, so there is no product.
    """

    name = "nci"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        weight, bias = rows.head
        self._mean = rows.mean()
        self._centre = weight @ self._mean + bias

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        features = rows.features()
        centred = rows.logits - self._centre
        along = np.take_along_axis(centred, rows.predicted[:, None], axis=1)[:, 0]
        along /= np.maximum(np.linalg.norm(features - self._mean, axis=1), TINY)
        norm = np.abs(features).sum(axis=1)
        return np.stack([along + setting.norm_weight * norm for setting in self.settings], axis=1)
