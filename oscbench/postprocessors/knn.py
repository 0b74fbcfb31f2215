"""KNN: the distance to the k-th nearest training row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.notes import Note
from oscbench.numerics.topk import largest_products
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Layer, Rows, SharedFit, TrainingRows

LARGE_PAIRS: Final = 2e8
"""Pairs of a query and a training row from which on they are compared in float32, twice as fast."""


def unit_gallery(rows: TrainingRows, layer: Layer) -> Array:
    """(N, P) all training rows with length 1."""
    gallery = np.empty((len(rows), rows.stored(layer).shape[1]))
    for part, block in rows.blocks(gallery.shape[1]):
        gallery[part] = block.unit_features(layer)
    return gallery


def comparable(gallery: Array, n_queries: int) -> NDArray[np.floating]:  # type: ignore[type-arg]
    """The gallery in the precision in which so many queries are compared with it."""
    return gallery.astype(np.float32) if len(gallery) * n_queries >= LARGE_PAIRS else gallery


@dataclass(frozen=True, kw_only=True)
class KnnParams:
    """Hyperparameters of KNN.

    Attributes:
        k: Which of the nearest rows counts.
        layer: Which features.
    """

    k: int = 50
    layer: Layer = "pooled"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UsageError(f"k must be >= 1, got {self.k}")


@POSTPROCESSORS.register(
    "knn",
    label="KNN",
    params=KnnParams,
    paper="arXiv:2204.06507",
    needs={"pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="pairs",
    about=About(
        "A known row has training rows in its neighbourhood, whatever their class.",
        "-|z / |z| - k-th nearest|^2 = 2 cos_(k) - 2",
        "Classes of several clusters; needs no classifier and assumes no shape of the classes.",
        "Few training rows a class; large sets, where it costs a comparison with every row.",
    ),
)
class Knn(SharedFit):
    """Minus the squared distance of unit rows to the k-th nearest known training row (Sun et al. 2022).

    All k of a grid come from one product. OpenOOD divides by |x| and then adds 1e-10, so a row of zeros is NaN there;
    here it is refused by name. Small sets are compared in float64, large ones (2e8 pairs) in float32, within 2e-6.
    """

    name = "knn"
    layers = ("pooled", "embedding")

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._labels = rows.labels.astype(np.int32)
        self._galleries = {layer: unit_gallery(rows, layer) for layer in {setting.layer for setting in self.settings}}
        if rows.inputs.logits is None:
            rows.notes.append(Note("KNN: no logits, so the class is that of the nearest training row"))

    def bent(self) -> Iterator[Note]:
        """See ``Posthoc``."""
        clipped = [setting.k for setting in self.settings if setting.k > len(self._labels)]
        if clipped:
            numbers = (max(clipped), len(self._labels), len(clipped))
            yield Note("KNN: k up to {} clipped to {} training rows in {} settings", numbers)

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return width

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        score = np.empty((len(rows), len(self.settings)))
        label = np.empty(score.shape, np.int32)
        for layer in {setting.layer for setting in self.settings}:
            chosen = [s for s, setting in enumerate(self.settings) if setting.layer == layer]
            k = np.minimum([self.settings[s].k for s in chosen], len(self._labels))
            gallery, units = self._galleries[layer], rows.unit_features(layer)
            nearest = largest_products(units, comparable(gallery, len(rows.inputs)), int(k.max()))
            score[:, chosen] = 2 * nearest[:, k - 1] - 2
            has_classifier = rows.inputs.logits is not None
            own = rows.predicted if has_classifier else self._labels[(units @ gallery.T).argmax(axis=1)]
            label[:, chosen] = own[:, None]
        return label, score
