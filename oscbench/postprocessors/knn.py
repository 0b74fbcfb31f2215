"""KNN: the distance to the k-th nearest training row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.labels import FloatArray, ProgressFn
from oscbench.notes import Note
from oscbench.numerics.topk import ProductRows, ProductSource, nearest_rows, rows_of
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Layer, Posthoc, Rows, SharedFit, TrainingRows

LARGE_VALUES: Final = 1 << 24
"""Numbers of a gallery from which on it is kept and compared in float32: half the memory, twice as fast."""


def unit_gallery(rows: TrainingRows, layer: Layer) -> FloatArray:
    """(N, P) all training rows with length 1; in float64, large sets in float32."""
    shape = (len(rows), rows.stored(layer).shape[1])
    gallery = np.empty(shape, np.float32 if shape[0] * shape[1] >= LARGE_VALUES else np.float64)
    for part, block in rows.blocks(shape[1]):
        gallery[part] = block.unit_features(layer)
    return gallery


class ComparesRows(SharedFit):
    """A method that asks for products of queries with all training rows; in a search actors may share large ones."""

    _sources: dict[Any, ProductRows]
    _shared: Mapping[Any, ProductSource] = MappingProxyType({})

    def source(self, key: Any) -> ProductSource:
        """Who computes the products with the rows called ``key``."""
        return self._shared.get(key, self._sources[key])

    @classmethod
    def open_source(
        cls,
        train: FeatureSet,
        settings: Sequence[Any],
        make_source: Callable[..., Any] | None = None,
        progress: ProgressFn | None = None,
    ) -> Posthoc:
        """The fitted method, its large rows with whoever computes."""
        fitted = super().open_source(train, settings)
        assert isinstance(fitted, ComparesRows)
        if make_source is not None:
            large = {key: rows for key, rows in fitted._sources.items() if rows.rows.size >= LARGE_VALUES}
            fitted._shared = {key: make_source(rows) for key, rows in large.items()}
        return fitted

    def close(self) -> None:
        """Ends whoever computes."""
        for source in self._shared.values():
            source.close()


@dataclass(frozen=True, kw_only=True)
class KnnParams:
    """Hyperparameters of KNN.

    Attributes:
        k: Which of the nearest rows counts.
        layer: Which features are compared.
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
class Knn(ComparesRows):
    """Minus the squared distance of unit rows to the k-th nearest known training row (Sun et al. 2022).

    All k of a grid come from one product. OpenOOD divides by |x| and then adds 1e-10, so a row of zeros is NaN there;
    here it is refused by name. Small sets are compared in float64. In large ones (16 million numbers) the rows are
    ranked in float32 and the distances of those asked for computed again in float64: one is off by the gap to a
    neighbour in rank at most, and only where that is below 2e-6.
    """

    name = "knn"
    layers = ("pooled", "embedding")

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._labels = rows.labels.astype(np.int32)
        layers = {setting.layer for setting in self.settings}
        self._sources = {layer: ProductRows(unit_gallery(rows, layer)) for layer in layers}
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
            units = rows.unit_features(layer)
            score[:, chosen] = 2 * self._cosines(layer, units, k) - 2
            has_classifier = rows.inputs.logits is not None
            own = rows.predicted if has_classifier else self._labels[nearest_rows(units, self._sources[layer].rows)]
            label[:, chosen] = own[:, None]
        return label, score

    def _cosines(self, layer: Layer, units: Array, k: NDArray[np.int64]) -> Array:
        """(N, len(k)) cosines with the k-th nearest rows."""
        gallery, largest = self._sources[layer].rows, int(k.max())
        if gallery.dtype == np.float64:
            return np.asarray(self.source(layer).largest(units, largest)[:, k - 1], np.float64)
        nearest = rows_of(self.source(layer).ranked(units, largest)[:, k - 1])
        return np.stack([np.einsum("np,np->n", units, gallery[rows].astype(np.float64)) for rows in nearest.T], axis=1)
