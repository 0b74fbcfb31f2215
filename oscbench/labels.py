"""Labels, array types and the checks every set of labelled rows goes through; loads numpy and nothing heavier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError

NEGATIVE: Final = -1
"""Label of samples from classes seen in training as "none of the known"; known classes are 0..K-1."""
UNKNOWN: Final = -2
"""Label of samples from classes never seen before the test."""

SPLITS: Final = ("train", "val", "test")

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.signedinteger[Any]]
BoolArray = NDArray[np.bool_]

ProgressFn = Callable[[int, int], None]
"""Called as ``progress(done, total)`` from inside long work; whoever shows it decides how."""


def classes_of_labels(labels: IntArray, n_known: int) -> tuple[IntArray, tuple[str, ...]]:
    """Class index (N,) and names for rows of which only the labels are known: all negatives are one class.

    >>> classes_of_labels(np.array([1, -1, -2]), 2)
    (array([1, 2, 3], dtype=int32), ('0', '1', 'negative', 'unknown'))
    """
    index = np.where(labels >= 0, labels, n_known - 1 - labels).astype(np.int32)
    return index, (*map(str, range(n_known)), "negative", "unknown")


def check_finite(array: FloatArray, where: str) -> None:
    """Raises when a row holds NaN or infinity, naming the first such row and how many there are."""
    step = max(1, (1 << 24) // max(1, array.shape[-1]))
    bad: list[int] = []
    for start in range(0, len(array), step):
        block = array[start : start + step]
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        bad.extend((start + np.flatnonzero(~finite)).tolist())
    if bad:
        raise UsageError(f"{where}: row {bad[0]} holds NaN or infinity ({len(bad)} such rows); remove or repair them")


def check_rows(labels: IntArray, ids: IntArray, class_index: IntArray, classes: tuple[str, ...], n_known: int) -> None:
    """Raises when columns disagree in length, or a label, id or class index is impossible, naming the row."""
    n = len(labels)
    if len(ids) != n or len(class_index) != n:
        raise UsageError(f"labels have {n} rows, ids {len(ids)}, class_index {len(class_index)}: they must agree")
    if n == 0:
        raise UsageError("the set has no rows")
    bad = np.flatnonzero((labels < UNKNOWN) | (labels >= n_known))
    if len(bad):
        raise UsageError(f"label {labels[bad[0]]} in row {bad[0]} is outside -2..{n_known - 1} ({len(bad)} such rows)")
    disorder = np.flatnonzero(np.diff(ids) <= 0)
    if len(disorder):
        raise UsageError(f"ids must ascend, row {disorder[0] + 1} has {ids[disorder[0] + 1]} after {ids[disorder[0]]}")
    bad = np.flatnonzero((class_index < 0) | (class_index >= len(classes)))
    if len(bad):
        raise UsageError(f"class_index {class_index[bad[0]]} in row {bad[0]} is outside 0..{len(classes) - 1}")
