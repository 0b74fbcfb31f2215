"""Who is taken for whom at a threshold: known classes among themselves, and unknown classes by known ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oscbench.labels import UNKNOWN
from oscbench.metrics.predictions import Predictions, Scores, as_labels
from oscbench.metrics.threshold import decide


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenSetConfusion:
    """Counts of decisions at one threshold.

    Attributes:
        known: (K, K + 1) samples of each known class by the class they are given; the last column is "rejected".
        taken_in: (M, K) samples of each class that is not known by the known class that takes them in.
        rejected: (M,) samples of each such class that are rejected.
        class_index: (M,) which class each row of ``taken_in`` is, ascending.
        label: (M,) its label, ``NEGATIVE`` or ``UNKNOWN``.
        threshold: The threshold.
    """

    known: NDArray[np.int64]
    taken_in: NDArray[np.int64]
    rejected: NDArray[np.int64]
    class_index: NDArray[np.int64]
    label: NDArray[np.int64]
    threshold: float


def open_set_confusion(
    labels: ArrayLike, class_index: ArrayLike, scores: Scores, threshold: float, *, n_known: int | None = None
) -> OpenSetConfusion:
    """The open-set confusion matrix that Palechor et al. (WACV 2023) name as future work.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        class_index: (N,) true class of every sample, those of negative and unknown samples included.
        scores: (N, K), higher means more known, or predictions.
        threshold: Accept a sample when its highest score is at or above it.
        n_known: K, which predictions do not say and a matrix does.
    """
    decisions = decide(scores, threshold)
    if not isinstance(scores, Predictions):
        n_known = int(np.shape(scores)[1])
    elif n_known is None or decisions.max(initial=-1) >= n_known:
        raise ValueError(f"predictions need n_known above every predicted class, got {n_known}")
    labels = as_labels(labels, len(decisions), n_known)
    classes = np.asarray(class_index)
    if classes.shape != labels.shape:
        raise ValueError(f"class_index has shape {classes.shape}, labels {labels.shape}")
    column = np.where(decisions == UNKNOWN, n_known, decisions)
    known = labels >= 0
    outside, first, row = np.unique(classes[~known], return_index=True, return_inverse=True)
    label = labels[~known][first]
    mixed = np.flatnonzero(label[row] != labels[~known])
    if len(mixed):
        place = int(np.flatnonzero(~known)[mixed[0]])
        raise ValueError(f"class {classes[place]} in row {place} is labelled both negative and unknown")
    others = _count(row, column[~known], len(outside), n_known + 1)
    return OpenSetConfusion(
        known=_count(labels[known], column[known], n_known, n_known + 1),
        taken_in=others[:, :n_known],
        rejected=others[:, n_known],
        class_index=outside.astype(np.int64),
        label=label.astype(np.int64),
        threshold=threshold,
    )


def _count(rows: ArrayLike, columns: ArrayLike, n_rows: int, n_columns: int) -> NDArray[np.int64]:
    """(n_rows, n_columns) how often each pair occurs."""
    cells = np.asarray(rows) * n_columns + np.asarray(columns)
    return np.bincount(cells, minlength=n_rows * n_columns).reshape(n_rows, n_columns).astype(np.int64)
