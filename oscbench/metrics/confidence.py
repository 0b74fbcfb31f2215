"""Validation confidence of a network: how sure it is of known samples and how unsure of negative ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from oscbench.labels import NEGATIVE, FloatArray, IntArray
from oscbench.metrics.predictions import Weights, as_float, as_labels, known_weights


class Confidence(NamedTuple):
    """The three confidences, each within 0..1 and NaN without samples of its kind."""

    known: float
    """γ⁺: mean probability of the right class."""
    negative: float
    """γ⁻: one minus the mean of the largest probability of a known class (offset 1/K without an extra output)."""
    mean: float
    """γ: the mean of the two."""


def confidence(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    n_known: int,
    negative_labels: Sequence[int] = (NEGATIVE,),
    weights: Weights = "sample",
) -> Confidence:
    """γ⁺, γ⁻ and their mean on softmax probabilities.

    γ⁻ = mean of 1 - max_{c<K} p_c + 1/K over the negative samples; the offset, which lets a uniform output reach 1,
    falls away with an extra output for negatives, because the known classes can all go to 0 then.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        probabilities: (N, K), or (N, K + 1) of a network with an extra output for negatives, which comes last.
        n_known: K.
        negative_labels: Which labels count as negative.
        weights: ``class`` averages γ⁺ over known classes instead of samples.

    Reference: Palechor, Bhoumik, Günther: Large-Scale Open-Set Classification Protocols for ImageNet, WACV 2023.

    >>> confidence([0, -1], [[1.0, 0.0], [0.5, 0.5]], n_known=2)
    Confidence(known=1.0, negative=1.0, mean=1.0)
    """
    matrix = as_float(probabilities, "probabilities", ndim=2)
    if matrix.shape[1] not in (n_known, n_known + 1):
        raise ValueError(
            f"probabilities have {matrix.shape[1]} columns, {n_known} known classes need {n_known} or one more"
        )
    labels = as_labels(labels, len(matrix), n_known)
    outside = np.flatnonzero(~((matrix >= 0) & (matrix <= 1)).all(axis=1))
    if len(outside):
        raise ValueError(
            f"row {outside[0]} holds a value outside 0..1 ({len(outside)} such rows); probabilities wanted"
        )
    return confidence_of_samples(
        labels,
        matrix[np.arange(len(matrix)), np.maximum(labels, 0)],
        matrix[:, :n_known].max(axis=1),
        n_known=n_known,
        extra_output=matrix.shape[1] > n_known,
        negative_labels=negative_labels,
        weights=weights,
    )


def confidence_of_samples(
    labels: IntArray,
    right: FloatArray,
    highest: FloatArray,
    *,
    n_known: int,
    extra_output: bool,
    negative_labels: Sequence[int] = (NEGATIVE,),
    weights: Weights = "sample",
) -> Confidence:
    """``confidence`` where only two probabilities of each sample are at hand, as after a distributed validation.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        right: (N,) probability of a known sample's own class; those of other samples are not looked at.
        highest: (N,) largest probability of a known class.
        n_known: K.
        extra_output: Whether the network has an output for negatives.
        negative_labels: Which labels count as negative.
        weights: ``class`` averages γ⁺ over known classes instead of samples.
    """
    known = np.flatnonzero(labels >= 0)
    negative = np.flatnonzero(np.isin(labels, list(negative_labels)))
    of_known, of_negative = float("nan"), float("nan")
    if len(known):
        own = right[known].astype(np.float64)
        of_known = float(own.mean() if weights == "sample" else known_weights(labels[known], weights) @ own)
    if len(negative):
        offset = 0.0 if extra_output else 1.0 / n_known
        of_negative = float(np.mean(1.0 - highest[negative].astype(np.float64) + offset))
    return Confidence(of_known, of_negative, (of_known + of_negative) / 2)
