"""KNN: the distance to the k-th nearest training row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.labels import FloatArray, ProgressFn
from oscbench.notes import Note
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Layer, Posthoc, Rows, SharedFit, TrainingRows
from oscbench.records import check_choices

if TYPE_CHECKING:
    from oscbench.numerics.topk import ProductSource

LARGE_VALUES: Final = 1 << 24
"""Numbers of a gallery from which on it is kept and compared in float32: half the memory, twice as fast."""


def unit_gallery(rows: TrainingRows, layer: Layer, order: NDArray[np.intp] | None = None) -> FloatArray:
    """(N, P) all training rows with length 1, perhaps in another order; in float64, large sets in float32."""
    shape = (len(rows), rows.stored(layer).shape[1])
    gallery = np.empty(shape, np.float32 if shape[0] * shape[1] >= LARGE_VALUES else np.float64)
    place = np.arange(len(rows)) if order is None else np.argsort(order)
    for part, block in rows.blocks(shape[1]):
        gallery[place[part]] = block.unit_features(layer)
    return gallery


class ComparesRows(SharedFit):
    """A method that asks for products of queries with all training rows; in a search actors may share large ones.

    Attributes:
        sources: Who computes the products with the rows of a layer.
    """

    sources: dict[Layer, ProductSource]

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return max(width, *(getattr(setting, "k", 1) for setting in self.settings))

    def rows_at_once(self) -> int:
        """See ``Posthoc``."""
        return max(source.queries_at_once for source in self.sources.values())

    @classmethod
    def open_source(
        cls,
        train: FeatureSet,
        settings: Sequence[Any],
        make_source: Callable[..., Any] | None = None,
        progress: ProgressFn | None = None,
    ) -> Posthoc:
        """The fitted method, its large rows with whoever computes, the largest first: others may find no room."""
        from oscbench.numerics.topk import ProductRows

        fitted = super().open_source(train, settings)
        assert isinstance(fitted, ComparesRows)
        if make_source is not None:
            own = {layer: rows for layer, rows in fitted.sources.items() if isinstance(rows, ProductRows)}
            for layer, rows in sorted(own.items(), key=lambda item: -item[1].rows.size):
                if rows.rows.size >= LARGE_VALUES:
                    fitted.sources[layer] = make_source(rows)
        return fitted

    def close(self) -> None:
        """Ends whoever computes."""
        for source in self.sources.values():
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
        check_choices(self)


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
    here it is refused by name. Small sets are compared in float64. In large ones (16 million numbers) rows are kept and
    ranked in float32, and the distances of those asked for computed again in float64: they are off by 1e-8, and by the
    gap to a neighbour in rank where that is below 2e-6.
    """

    name = "knn"
    layers = ("pooled", "embedding")

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        from oscbench.numerics.topk import ProductRows

        self._labels = rows.labels.astype(np.int32)
        self._galleries = {layer: unit_gallery(rows, layer) for layer in {setting.layer for setting in self.settings}}
        self.sources = {layer: ProductRows(gallery) for layer, gallery in self._galleries.items()}
        if rows.inputs.logits is None:
            rows.notes.append(Note("KNN: no logits, so the class is that of the nearest training row"))

    def bent(self) -> Iterator[Note]:
        """See ``Posthoc``."""
        clipped = [setting.k for setting in self.settings if setting.k > len(self._labels)]
        if clipped:
            numbers = (max(clipped), len(self._labels), len(clipped))
            yield Note("KNN: k up to {} clipped to {} training rows in {} settings", numbers)

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        score = np.empty((len(rows), len(self.settings)))
        label = np.empty(score.shape, np.int32)
        for layer in {setting.layer for setting in self.settings}:
            chosen = [s for s, setting in enumerate(self.settings) if setting.layer == layer]
            k = np.minimum([self.settings[s].k for s in chosen], len(self._labels))
            cosines, nearest = self._compare(layer, rows.unit_features(layer), k, rows.inputs.logits is None)
            score[:, chosen] = np.minimum(2 * cosines - 2, 0.0)  # of the same row it may be above 1 by rounding
            label[:, chosen] = (rows.predicted if nearest is None else self._labels[nearest])[:, None]
        return label, score

    def _compare(
        self, layer: Layer, units: Array, k: NDArray[np.int64], name_nearest: bool
    ) -> tuple[Array, NDArray[np.intp] | None]:
        """(N, len(k)) cosines with the k-th nearest rows, and (N,) the nearest where it is asked for."""
        from oscbench.numerics.topk import nearest_rows, rows_of

        gallery, source, largest = self._galleries[layer], self.sources[layer], int(k.max())
        if gallery.dtype == np.float64:
            cosines = np.asarray(source.largest(units, largest)[:, k - 1], np.float64)
            return cosines, nearest_rows(units, gallery) if name_nearest else None
        ranks = rows_of(source.ranked(units, largest))
        cosines = np.stack(
            [np.einsum("np,np->n", units, gallery[rows].astype(np.float64)) for rows in ranks[:, k - 1].T], axis=1
        )
        return cosines, ranks[:, 0] if name_nearest else None
