"""fDBD: the distance to the decision boundaries, relative to the distance from the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import TINY, Array, Rows, SharedFit, TrainingRows
from oscbench.records import check_choices

Normalizer = Literal["distance", "norm"]


def weight_gaps(weight: Array) -> Array:
    """(K, K) lengths of all differences of two classes' weights, at least 1e-12 of the largest; 1 on the diagonal."""
    squares = np.einsum("kp,kp->k", weight, weight)
    gaps = np.sqrt(np.maximum(squares[:, None] + squares - 2 * weight @ weight.T, 0.0))
    gaps = np.maximum(gaps, max(TINY * gaps.max(initial=0.0), np.finfo(np.float64).tiny))
    np.fill_diagonal(gaps, 1.0)
    return np.asarray(gaps)


@dataclass(frozen=True, kw_only=True)
class FdbdParams:
    """``normalizer``: what is divided by: the ``distance`` from the training mean, or the row's ``norm``."""

    normalizer: Normalizer = "distance"

    def __post_init__(self) -> None:
        check_choices(self)


@POSTPROCESSORS.register(
    "fdbd",
    label="fDBD",
    params=FdbdParams,
    paper="arXiv:2312.11536",
    needs={"logits", "pooled", "head"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="features",
    about=About(
        "Known rows lie far from the boundaries of their class, relative to their distance from the training mean.",
        "sum_c (l_y - l_c) / |w_y - w_c| / n, n = |z - mean z| (distance) or |z| (norm)",
        "Most networks: steady, cheap, and with next to nothing to tune.",
        "Unknowns deep inside a known class's region.",
    ),
)
class Fdbd(SharedFit):
    """Sum of the distances in feature space to all boundaries of the predicted class (Liu and Qin 2024).

    All |w_i - w_j| come from one Gram matrix; pytorch-ood builds a (K, K, P) tensor. OpenOOD's form fails on a
    head without bias.
    """

    name = "fdbd"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._gaps, self._mean = weight_gaps(rows.head[0]), rows.mean()

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        logits, features, predicted = rows.logits, rows.features(), rows.predicted
        margins = (np.take_along_axis(logits, predicted[:, None], axis=1) - logits) / self._gaps[predicted]
        depth = margins.sum(axis=1)
        length = {"distance": np.linalg.norm(features - self._mean, axis=1), "norm": np.linalg.norm(features, axis=1)}
        return np.stack([depth / np.maximum(length[s.normalizer], TINY) for s in self.settings], axis=1)
