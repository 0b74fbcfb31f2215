"""Mahalanobis distances to the classes (MDS), relative to the distance to all training rows (RMDS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from oscbench.notes import Note
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import (
    Array,
    Layer,
    Prediction,
    Rows,
    SharedFit,
    TrainingRows,
    decide_by_class,
)
from oscbench.records import check_choices

EIGENVALUE_CUT: Final = float(np.finfo(np.float32).eps)
"""Times the width and the largest eigenvalue: directions with less variance are noise of single precision."""


@dataclass(frozen=True, kw_only=True)
class MahalanobisParams:
    """Hyperparameters of MDS and RMDS.

    Attributes:
        normalize: Features of length 1, as the ++ forms have them.
        layer: Which features are compared.
        prediction: Whose class goes with a score: the classifier's, or that of the nearest mean.
    """

    normalize: bool = True
    layer: Layer = "pooled"
    prediction: Prediction = "classifier"

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, eq=False)
class _Form:
    """The class scores as a function of c, a row less the mean of all rows: c' form c + c' linear_k + offset_k.

    With S the pseudo-inverse of the covariance inside classes and a_k a class mean less that of all, the distance to
    the class is c'Sc - 2 c'Sa_k + a_k'Sa_k; that to all rows is another square form, so the two are one product.

    Attributes:
        mean: (P,) of all known rows.
        square: (P, P).
        linear: (P, K').
        offset: (K',).
        there: (K',) the classes that have rows.
    """

    mean: Array
    square: Array
    linear: Array
    offset: Array
    there: NDArray[np.intp]

    def scores(self, rows: Array) -> Array:
        """(N, K') minus the distances, for RMDS plus that to all rows."""
        apart = rows - self.mean
        squares = np.einsum("np,np->n", apart @ self.square, apart)
        return np.asarray(squares[:, None] + apart @ self.linear + self.offset)


def _pseudo_inverse(covariance: Array, noise: float) -> Array:
    """The inverse where there is any spread; eigenvalues up to ``noise`` are what rounding has left of none."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(len(values) * EIGENVALUE_CUT * values[-1], noise)
    return np.asarray((vectors[:, kept] / values[kept]) @ vectors[:, kept].T)


class _Mahalanobis(SharedFit):
    """Shared by both: means, covariances and the distances to all classes by one product.

    S1 = S0 - sum_k n_k / N (m_k - m_0)(m_k - m_0)^T, so both covariances come from one pass over the rows. OpenOOD
    builds B x B products for every class and keeps their diagonals; pytorch-ood inverts in float32. Eigenvalues below
    P * 1.2e-7 of the largest are cut, as scikit-learn's ``pinvh`` does for float32. Features that never fire in
    training are outside the span and are ignored, also where they fire for an unknown; they are counted in a note.
    """

    layers = ("pooled", "embedding")
    relative: ClassVar[bool]

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        if rows.inputs.logits is None:
            rows.notes.append(Note(f"{self.label}: no logits, so the class is that of the nearest mean"))
        keys = dict.fromkeys((setting.layer, setting.normalize) for setting in self.settings)
        self._forms = {key: self._learn_form(rows, *key) for key in keys}

    def _learn_form(self, rows: TrainingRows, layer: Layer, normalize: bool) -> _Form:
        width = rows.stored(layer).shape[1]
        gram, sums, counts = np.zeros((width, width)), np.zeros((rows.n_known, width)), np.zeros(rows.n_known)
        shift = None
        for part, some in rows.blocks(width):
            block, labels = some.unit_features(layer) if normalize else some.features(layer), rows.labels[part]
            shift = block.mean(axis=0) if shift is None else shift  # near the mean, so that little cancels below
            block = block - shift
            gram += block.T @ block
            np.add.at(sums, labels, block)
            counts += np.bincount(labels, minlength=rows.n_known)
        there = np.flatnonzero(counts)
        assert shift is not None, "there is at least one row"
        if dead := int(np.count_nonzero((np.diag(gram) == 0) & (shift == 0))):
            rows.notes.append(
                Note(f"{self.label}: {{}} of {{}} features are 0 in all training rows and are ignored", (dead, width))
            )
        if len(there) < rows.n_known:
            missing = rows.n_known - len(there)
            rows.notes.append(Note(f"{self.label}: {{}} classes have no training row and no distance", (missing,)))
        mean = sums.sum(axis=0) / len(rows)
        total = gram / len(rows) - np.outer(mean, mean)
        apart = sums[there] / counts[there, None] - mean
        noise = width * np.finfo(np.float64).eps * float(np.trace(gram)) / len(rows)
        within = _pseudo_inverse(total - (apart.T * (counts[there] / len(rows))) @ apart, noise)
        if not within.any():
            rows.notes.append(Note(f"{self.label}: training rows of a class do not differ, so their spread is unknown"))
        linear = within @ apart.T
        return _Form(
            mean=shift + mean,
            square=_pseudo_inverse(total, noise) - within if self.relative else -within,
            linear=2 * linear,
            offset=-np.einsum("kp,pk->k", apart, linear),
            there=there,
        )

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        found = {key: self._per_class(rows, *key) for key in {(s.layer, s.normalize) for s in self.settings}}
        return decide_by_class(rows, [found[s.layer, s.normalize] for s in self.settings], self.settings)

    def _per_class(self, rows: Rows, layer: Layer, normalize: bool) -> Array:
        form = self._forms[layer, normalize]
        block = rows.unit_features(layer) if normalize else rows.features(layer)
        per_class = np.full((len(rows), rows.n_known), -np.inf)
        per_class[:, form.there] = form.scores(block)
        return per_class


@POSTPROCESSORS.register(
    "rmds",
    label="RMDS",
    params=MahalanobisParams,
    paper="arXiv:2106.09022, arXiv:2505.18032",
    needs={"pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "How much nearer a row is to a class than to the training rows as a whole.",
        "max_k (z - m_0)' S_0^+ (z - m_0) - (z - m_k)' S_1^+ (z - m_k); ++: z / |z|",
        "Unknowns that resemble the known classes; fine-grained sets; needs no classifier.",
        "Fewer training rows than features: the covariances are then mostly guesses.",
    ),
)
class Rmds(_Mahalanobis):
    """d_0 - min_k d_k (Ren et al. 2021); with ``normalize`` RMDS++ (Mueller and Hein 2025)."""

    name = "rmds"
    relative = True


@POSTPROCESSORS.register(
    "mds",
    label="MDS",
    params=MahalanobisParams,
    paper="arXiv:1807.03888, arXiv:2505.18032",
    needs={"pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "The distance to the nearest class mean, in units of the spread inside classes.",
        "-min_k (z - m_k)' S_1^+ (z - m_k); ++: z / |z|",
        "Features of length 1, transformers, unknowns far from everything; needs no classifier.",
        "Raw features of ResNets, whose length differs from row to row.",
    ),
)
class Mds(_Mahalanobis):
    """-min_k d_k (Lee et al. 2018); with ``normalize`` MDS++ (Mueller and Hein 2025)."""

    name = "mds"
    relative = False
