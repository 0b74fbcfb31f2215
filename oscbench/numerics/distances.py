"""Distances between rows in blocks: what is compared (the gallery), how (one matrix product), and the k smallest.

A full distance matrix is never stored. Blocks have fixed sizes on a fixed grid over all rows: a matrix product may
round differently for another shape, and this way a distance has the same bits whoever computes it, in any number of
parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics.inclusion import InclusionKind, Setting
from oscbench.types import FloatArray, IntArray, ProgressFn

Metric = Literal["cosine", "euclidean"]

ROW_TILE: Final = 256
COLUMN_TILE: Final = 4096


@dataclass(frozen=True)
class FitCounts:
    """What happened in fits: how many there were, how many tails were constant, how many clipped."""

    fits: int = 0
    constant: int = 0
    clipped: int = 0

    def __add__(self, other: FitCounts) -> FitCounts:
        return FitCounts(self.fits + other.fits, self.constant + other.constant, self.clipped + other.clipped)


class NeighborSource(Protocol):
    """Answers EVM's two questions about a fixed training set, wherever that is computed.

    Attributes:
        gallery: That training set.
        counts: What happened in the fits of the last ``best``.
    """

    gallery: Gallery
    counts: FitCounts

    def tails(self, k: int) -> NDArray[np.float32]:
        """(N, k) ascending distances of each gallery row to rows of other classes, infinite where there are fewer."""
        ...

    def best(
        self,
        queries: FloatArray,
        settings: Sequence[Setting],
        *,
        score_kind: InclusionKind = "log",
        progress: ProgressFn | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Predicted class and its score for (Q, D) queries, each (Q, len(settings))."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


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
    _refuse(~np.isfinite(squares), name, "holds NaN or infinity")
    if metric == "cosine":
        _refuse(squares == 0.0, name, "has length zero, so it has no cosine distance")
        out /= np.sqrt(squares)[:, None]
    return out


def check_width(rows: FloatArray, width: int, name: str) -> None:
    """Raises when rows are not as wide as the training rows."""
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"{name} have shape {rows.shape}, the training features are {width} wide")


def _refuse(bad: NDArray[np.bool_], name: str, what: str) -> None:
    if bad.any():
        raise ValueError(f"{name}: row {int(np.argmax(bad))} {what} ({int(bad.sum())} such rows)")


def left_factor(rows: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """Rows extended so that their product with ``right_factor`` is 1 - cos, or the squared Euclidean distance."""
    one = np.ones((len(rows), 1))
    if metric == "cosine":
        return np.hstack([-rows, one])
    return np.hstack([-2.0 * rows, np.einsum("nd,nd->n", rows, rows)[:, None], one])


def right_factor(rows: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """The other side of ``left_factor``."""
    one = np.ones((len(rows), 1))
    if metric == "cosine":
        return np.hstack([rows, one])
    return np.hstack([rows, one, np.einsum("nd,nd->n", rows, rows)[:, None]])


def narrowed(factor: NDArray[np.float64]) -> NDArray[np.float32]:
    """The factor in float32, refused when a value does not fit."""
    with np.errstate(over="ignore"):
        out = factor.astype(np.float32)
    too_large = np.asarray(~np.isfinite(out).all(axis=1))
    _refuse(too_large, "features", "is too large for float32 distances; scale the features down")
    return out


def distance_tile(
    left: torch.Tensor, right: torch.Tensor, metric: Metric, out: torch.Tensor | None = None
) -> torch.Tensor:
    """(A, B) distances from two factors; cosine distances may be below 0 by a rounding error."""
    tile = torch.mm(left, right.T, out=out) if out is not None else left @ right.T
    return tile if metric == "cosine" else tile.clamp_(min=0.0).sqrt_()


def tiles(start: int, stop: int, size: int, n: int) -> Iterator[tuple[int, int]]:
    """The tiles of the grid 0, size, 2 size, ..., n that overlap start..stop, whole.

    >>> list(tiles(5, 9, 4, 10))
    [(4, 8), (8, 10)]
    """
    for first in range(start // size * size, stop, size):
        yield first, min(first + size, n)


def smallest_to_other_classes(
    gallery: Gallery, first: int, last: int, k: int, *, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """(last - first, k) ascending distances of gallery rows to rows of other classes, infinite where there are fewer.

    Runs over column tiles and keeps the k smallest seen so far. ``left`` and ``right`` are the factors of all gallery
    rows, in any float type and on any device.
    """
    labels = torch.as_tensor(extended_labels(gallery), device=left.device)
    best = torch.full((last - first, k), torch.inf, dtype=left.dtype, device=left.device)
    for begin, end in tiles(0, len(gallery.rows), COLUMN_TILE, len(gallery.rows)):
        tile = distance_tile(left[first:last], right[begin:end], gallery.metric)
        tile.masked_fill_(labels[first:last, None] == labels[None, begin:end], torch.inf)
        best = torch.cat([best, tile], dim=1).topk(k, dim=1, largest=False).values
    return best.clamp_(min=0.0).sort(dim=1).values


def extended_labels(gallery: Gallery) -> NDArray[np.int32]:
    """(N + M,) labels of all gallery rows, the others counting as one more class."""
    others = np.full(len(gallery.rows) - len(gallery), gallery.n_classes, np.int32)
    return np.concatenate([gallery.labels, others])
