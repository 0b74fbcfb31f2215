"""NNGuide: the energy of a row, guided by the energies of its nearest training rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.labels import FloatArray
from oscbench.notes import Note
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.knn import ComparesRows, unit_gallery
from oscbench.postprocessors.posthoc import Array, Layer, Rows, TrainingRows, log_sum_exp
from oscbench.records import check_choices


@dataclass(frozen=True, kw_only=True)
class NnguideParams:
    """Hyperparameters of NNGuide.

    Attributes:
        k: How many of the nearest rows count.
        bank_fraction: Share of the training rows that are compared with.
        layer: Which features are compared.
    """

    k: int = 10
    bank_fraction: float = 1.0
    layer: Layer = "pooled"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UsageError(f"k must be >= 1, got {self.k}")
        if not 0 < self.bank_fraction <= 1:
            raise UsageError(f"bank_fraction must be in (0, 1], got {self.bank_fraction}")
        check_choices(self)


def content_hashes(features: FloatArray) -> NDArray[np.uint64]:
    """(N,) a number per row that depends on its content alone, the same for rows in double and in single precision."""
    single = np.ascontiguousarray(features, np.float32)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in single)
    return np.frombuffer(digests, np.uint64)


@POSTPROCESSORS.register(
    "nnguide",
    label="NNGuide",
    params=NnguideParams,
    paper="arXiv:2309.14888",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="pairs",
    about=About(
        "The energy, weighted by those of the nearest training rows: it counts where they are near and large too.",
        "LSE(l) * mean of the k largest cos(z, z_i) LSE(l_i)",
        "Far unknowns with large logits, which have no neighbours.",
        "Networks whose energies can be 0 or below: a product of two negative ones is positive.",
    ),
)
class Nnguide(ComparesRows):
    """Energy times the mean of the k largest energy-weighted cosines (Park et al. 2023).

    All k come from one product with the weighted rows. The bank is chosen by the content of the rows; OpenOOD takes the
    first batches of the loader, and copies the bank for every batch of queries. Large sets (16 million numbers) are
    compared in float32: scores then differ by some 1e-6 of their standard deviation.
    """

    name = "nnguide"
    layers = ("pooled", "embedding")

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        from oscbench.numerics.topk import ProductRows

        energies = np.concatenate([log_sum_exp(block.logits) for _, block in rows.blocks(rows.n_known)])
        if low := int(np.count_nonzero(energies <= 0)):
            form = "NNGuide: energies of {} of {} training rows are not positive; it was made for positive ones"
            rows.notes.append(Note(form, (low, len(rows))))
        self.sources = {}
        for layer in {setting.layer for setting in self.settings}:
            blocks = rows.blocks(rows.stored(layer).shape[1])
            order = np.argsort(np.concatenate([content_hashes(rows.stored(layer)[b.kept]) for _, b in blocks]))
            guides = unit_gallery(rows, layer, order)
            guides *= energies[order, None].astype(guides.dtype)
            self.sources[layer] = ProductRows(guides)
        self._n_rows = len(rows)

    def bent(self) -> Iterator[Note]:
        """See ``Posthoc``."""
        clipped = [s.k for s in self.settings if s.k > self._bank_rows(s.bank_fraction)]
        if clipped:
            yield Note(
                "NNGuide: k up to {} clipped to the rows of the bank in {} settings", (max(clipped), len(clipped))
            )

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        energy, score = log_sum_exp(rows.logits), np.empty((len(rows), len(self.settings)))
        for layer, fraction in {(s.layer, s.bank_fraction) for s in self.settings}:
            chosen = [n for n, s in enumerate(self.settings) if (s.layer, s.bank_fraction) == (layer, fraction)]
            size = self._bank_rows(fraction)
            k = np.minimum([self.settings[n].k for n in chosen], size)
            largest = self.sources[layer].largest(rows.unit_features(layer), int(k.max()), size)
            sums = np.cumsum(largest, axis=1, dtype=np.float64)
            score[:, chosen] = energy[:, None] * (sums[:, k - 1] / k)
        return score

    def _bank_rows(self, fraction: float) -> int:
        return int(np.ceil(fraction * self._n_rows))
