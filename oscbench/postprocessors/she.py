"""SHE: how much a row resembles the stored pattern of its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Prediction, Rows, SharedFit, TrainingRows
from oscbench.records import check_choices

Metric = Literal["inner_product", "euclidean", "cosine"]


@dataclass(frozen=True, kw_only=True)
class SheParams:
    """Hyperparameters of SHE.

    Attributes:
        metric: How a row is compared with a pattern.
        prediction: ``method`` takes the class whose pattern resembles the row most.
    """

    metric: Metric = "inner_product"
    prediction: Prediction = "classifier"

    def __post_init__(self) -> None:
        check_choices(self)


@POSTPROCESSORS.register(
    "she",
    label="SHE",
    params=SheParams,
    paper="openreview KkazG4lgKL",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "One pattern per class, the mean of its correct rows; a known row resembles that of its class.",
        "z . pattern_y (or minus the distance, or the cosine), y the predicted class",
        "Transformers; and it is cheap.",
        "Features whose length says more about the image than about the class.",
    ),
)
class She(SharedFit):
    """Similarity to the mean of the correct training rows of the predicted class (Zhang et al. 2023).

    A class without a correct row has the mean of all correct rows for its pattern; OpenOOD's is NaN.
    """

    name = "she"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._patterns, _ = rows.class_means(rows.predicted == rows.labels)

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        features = rows.features()
        found = {metric: self._similarities(features, metric) for metric in {s.metric for s in self.settings}}
        label, score = np.empty((len(rows), len(self.settings)), np.int32), np.empty((len(rows), len(self.settings)))
        for s, setting in enumerate(self.settings):
            per_class = found[setting.metric]
            label[:, s] = rows.predicted if setting.prediction == "classifier" else per_class.argmax(axis=1)
            score[:, s] = np.take_along_axis(per_class, label[:, s, None].astype(np.intp), axis=1)[:, 0]
        return label, score

    def _similarities(self, features: Array, metric: Metric) -> Array:
        """(N, K)."""
        products = features @ self._patterns.T
        if metric == "inner_product":
            return np.asarray(products)
        squares = np.einsum("np,np->n", features, features)[:, None]
        pattern_squares = np.einsum("kp,kp->k", self._patterns, self._patterns)
        if metric == "euclidean":
            return np.asarray(-np.sqrt(np.maximum(squares + pattern_squares - 2 * products, 0.0)))
        return np.asarray(products / np.maximum(np.sqrt(squares) * np.sqrt(pattern_squares), np.finfo(np.float64).tiny))
