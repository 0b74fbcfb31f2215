"""From a score matrix to the two numbers per sample that every metric needs, in one pass over the columns."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray, IntArray

Weights = Literal["sample", "class"]
"""``sample``: each known sample counts the same; ``class``: each known class does, whatever its size."""

_BLOCK_BYTES: Final = 1 << 20  # a block stays in cache between the search for the maximum and the check


class Predictions(NamedTuple):
    """Predicted class (N,) and its score (N,), higher means more known: all that any metric looks at."""

    label: IntArray
    score: FloatArray


Scores = ArrayLike | Predictions
"""What every metric takes: (N, K) scores, of which each row's highest counts, or the predictions themselves."""


def predict(scores: Scores) -> Predictions:
    """Class with the highest score (the lowest class among equals) and that score, per row.

    Args:
        scores: (N, K), higher means more known, or predictions, which are checked and returned as they are; NaN and
            infinity are refused with the number of their row.

    >>> predict([[0.2, 0.8], [0.5, 0.5]]).label.tolist()
    [1, 0]
    """
    if isinstance(scores, Predictions):
        return _checked(scores)
    matrix = as_float(scores, "scores", ndim=2)
    if matrix.shape[1] == 0:
        raise ValueError(f"scores have no columns: shape {matrix.shape}")
    label = np.empty(len(matrix), dtype=np.intp)
    score = np.empty(len(matrix), dtype=matrix.dtype)
    step = max(1, _BLOCK_BYTES // (matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), step):
        block = matrix[start : start + step]
        best = block.argmax(axis=1)
        label[start : start + step] = best
        score[start : start + step] = block[np.arange(len(block)), best]
        if not np.isfinite(block.min()):  # NaN and minus infinity; plus infinity is a maximum and seen below
            _refuse_not_finite(block, start)
    require_finite(score, "scores")
    return Predictions(label, score)


def _checked(found: Predictions) -> Predictions:
    score = as_float(found.score, "score", ndim=1)
    label = np.asarray(found.label)
    if label.shape != score.shape:
        raise ValueError(f"predicted labels have shape {label.shape}, scores {score.shape}")
    if label.size and not np.issubdtype(label.dtype, np.integer):
        raise ValueError(f"predicted labels must be integers, got {label.dtype}")
    outside = np.flatnonzero(label < 0)
    if len(outside):
        raise ValueError(f"predicted label {label[outside[0]]} in row {outside[0]} is no known class")
    require_finite(score, "scores")
    return Predictions(label, score)


def check_samples(labels: ArrayLike, scores: Scores) -> tuple[IntArray, Predictions]:
    """Checked labels and predictions; only a matrix says how many classes there are, and bounds the labels by it."""
    found = predict(scores)
    n_known = None if isinstance(scores, Predictions) else np.shape(scores)[1]
    return as_labels(labels, len(found.label), n_known), found


def as_float(values: ArrayLike, name: str, *, ndim: int) -> NDArray[Any]:
    """``values`` as an array of their own float type (float64 for integers), checked for dimensions."""
    array = np.asarray(values)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def require_finite(values: FloatArray, name: str) -> None:
    """Refuses NaN and infinity in a vector, naming the first row."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name} in row {bad[0]}: {values[bad[0]]} ({len(bad)} such rows); scores must be finite")


def _refuse_not_finite(block: FloatArray, start: int) -> None:
    row, column = np.argwhere(~np.isfinite(block))[0]
    raise ValueError(f"scores in row {start + row}, column {column}: {block[row, column]}; scores must be finite")


def as_labels(labels: ArrayLike, n_rows: int, n_known: int | None = None) -> IntArray:
    """``labels`` as an integer vector of ``n_rows`` within -2..K-1.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        n_rows: N, as the scores have it.
        n_known: K; ``None`` where only the predicted class is known, which leaves the upper bound unchecked.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) != n_rows:
        raise ValueError(f"labels have shape {array.shape}, the scores have {n_rows} rows")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"labels must be integers, got {array.dtype}")
    outside = array < UNKNOWN if n_known is None else (array < UNKNOWN) | (array >= n_known)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        top = "K-1" if n_known is None else n_known - 1
        raise ValueError(f"label {array[row]} in row {row} is outside {UNKNOWN}..{top}")
    return array


def check_unknown_label(unknown_label: int) -> None:
    """Refuses anything but the two labels that are no class."""
    if unknown_label not in (NEGATIVE, UNKNOWN):
        raise ValueError(f"unknown_label is {NEGATIVE} (negatives) or {UNKNOWN} (unknowns), got {unknown_label}")


def known_weights(labels: IntArray, weights: Weights) -> NDArray[np.float64]:
    """Weights of the known samples, which add up to 1 (up to rounding).

    Args:
        labels: (N,) labels of known samples only.
        weights: ``class`` gives each class that occurs the same total.
    """
    if weights == "sample":
        return np.full(len(labels), 1.0 / max(1, len(labels)))
    if weights != "class":
        raise ValueError(f"weights is 'sample' or 'class', got {weights!r}")
    counts = np.bincount(labels) if len(labels) else np.zeros(1, dtype=np.intp)
    per_class: NDArray[np.float64] = 1.0 / (np.count_nonzero(counts) * counts[labels])
    return per_class
