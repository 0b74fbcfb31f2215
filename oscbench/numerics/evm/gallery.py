"""What EVM compares queries with: training rows, checked, sorted by class and prepared for one distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from oscbench.labels import FloatArray, IntArray

Metric = Literal["cosine", "euclidean"]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Training rows ready to be compared: checked, sorted by class, of unit length for the cosine.

    Attributes:
        rows: (N + M, D) float64: N rows of known classes in class order, then M others which belong to no class and
            only serve as samples of "another class".
        labels: (N,) int32, ascending.
        order: (N,) position of each row in the arrays it was made from.
        n_classes: Number of known classes, with or without rows.
        metric: Which distance.
    """

    rows: NDArray[np.float64]
    labels: NDArray[np.int32]
    order: NDArray[np.int64]
    n_classes: int
    metric: Metric

    def __post_init__(self) -> None:
        # As they come out of Ray's object store: compiled code for arrays that may change and for arrays that may not
        # is compiled apart and can differ in the last bit, and shards must equal the local source.
        for array in (self.rows, self.labels, self.order):
            array.flags.writeable = False

    @classmethod
    def build(
        cls,
        rows: FloatArray,
        labels: IntArray,
        n_classes: int,
        *,
        metric: Metric = "cosine",
        others: FloatArray | None = None,
    ) -> Gallery:
        """Sorts and checks (N, D) rows with labels 0..n_classes-1; ``others`` are (M, D) rows of no known class.

        Raises:
            ValueError: No rows, rows of one class only and no others, or a row that has no distance, which is named.
        """
        labels = np.asarray(labels)
        if len(rows) != len(labels) or len(rows) == 0:
            raise ValueError(f"{len(rows)} rows with {len(labels)} labels; at least one row is needed")
        if labels.min() < 0 or labels.max() >= n_classes:
            raise ValueError(f"labels must be 0..{n_classes - 1}, got {labels.min()}..{labels.max()}")
        order = np.argsort(labels, kind="stable")
        prepared = prepare_rows(rows, metric, "training features")[order]
        if others is not None and len(others):
            check_width(others, rows.shape[1], "other-class features")
            prepared = np.concatenate([prepared, prepare_rows(others, metric, "other-class features")])
        gallery = cls(prepared, labels[order].astype(np.int32), order, n_classes, metric)
        if gallery.available.min() < 1:
            raise ValueError(
                f"all {len(rows)} rows are of class {labels[0]}: distances to other classes need a second class"
            )
        return gallery

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_starts(self) -> NDArray[np.int64]:
        """(n_classes + 1,) first row of each class, and N."""
        return np.searchsorted(self.labels, np.arange(self.n_classes + 1)).astype(np.int64)

    @property
    def available(self) -> NDArray[np.int64]:
        """(N,) how many rows of other classes each row can be compared with."""
        return (len(self.rows) - np.diff(self.class_starts)[self.labels]).astype(np.int64)

    @property
    def empty_classes(self) -> tuple[int, ...]:
        """Classes without a row; they can never be predicted."""
        return tuple(np.flatnonzero(np.diff(self.class_starts) == 0).tolist())


def prepare_rows(rows: FloatArray, metric: Metric, name: str) -> NDArray[np.float64]:
    """Float64 copy of (N, D) rows, divided by their length for the cosine; bad rows are named in the error."""
    if metric not in get_args(Metric):
        raise ValueError(f"metric must be one of {', '.join(get_args(Metric))}, got {metric!r}")
    if rows.ndim != 2:
        raise ValueError(f"{name} must be (rows, width), got shape {rows.shape}")
    out = np.array(rows, np.float64)
    # A sum is finite exactly when all terms are, but for overflow, which needs values above 1e150.
    squares = np.einsum("nd,nd->n", out, out)
    refuse_rows(~np.isfinite(squares), name, "holds NaN or infinity")
    if metric == "cosine":
        refuse_rows(squares == 0.0, name, "has length zero, so it has no cosine distance")
        out /= np.sqrt(squares)[:, None]
    return out


def check_width(rows: FloatArray, width: int, name: str) -> None:
    """Raises when rows are not as wide as the training rows."""
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"{name} have shape {rows.shape}, the training features are {width} wide")


def refuse_rows(bad: NDArray[np.bool_], name: str, what: str) -> None:
    """Raises when any row is bad, naming the first one and how many there are."""
    if bad.any():
        raise ValueError(f"{name}: row {int(np.argmax(bad))} {what} ({int(bad.sum())} such rows)")


def extended_labels(gallery: Gallery) -> NDArray[np.int32]:
    """(N + M,) labels of all gallery rows, the others counting as one more class."""
    others = np.full(len(gallery.rows) - len(gallery), gallery.n_classes, np.int32)
    return np.concatenate([gallery.labels, others])
