"""The largest inner products of queries with many training rows, and sums over all of them: one product, in tiles.

Tiles lie on a fixed grid over all rows, as EVM's do: a matrix product may round differently for another shape, and this
way a product has the same bits whoever computes it, in any number of parts. No (Q, N) matrix is ever stored.
"""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from oscbench.labels import FloatArray, ProgressFn
from oscbench.numerics.evm.shard import workers
from oscbench.numerics.evm.tails import COLUMN_TILE, tiles
from oscbench.numerics.kernels import collect_smallest

QUERY_TILE: Final = 512

Rows = tuple[int, int]


def largest_products(
    queries: FloatArray,
    gallery: FloatArray,
    k: int,
    *,
    rows: Rows | None = None,
    device: str = "cpu",
    progress: ProgressFn | None = None,
) -> FloatArray:
    """(Q, k) the k largest inner products of each query with gallery rows, falling; minus infinity where too few.

    Computed in the gallery's type: in float32 a product of unit rows is off by at most 1e-6. After the first tiles only
    products above the k-th largest so far are looked at again, so that choosing nearly vanishes behind the product.

    Args:
        queries: (Q, P).
        gallery: (N, P).
        k: How many.
        rows: First row, and the row behind the last, of those that count; default all.
        device: Where the products are computed.
        progress: Called as ``progress(done, total)``.

    >>> largest_products(np.eye(2), np.array([[1.0, 0.0], [0.5, 2.0]]), 3).tolist()
    [[1.0, 0.5, -inf], [2.0, 0.0, -inf]]
    """
    found = np.empty((len(queries), k), gallery.dtype)
    choose = _chosen_on_cpu if device == "cpu" else _chosen_on_device

    def of_block(first: int) -> None:
        left = torch.from_numpy(-np.asarray(queries[first : first + QUERY_TILE], gallery.dtype)).to(device)
        found[first : first + QUERY_TILE] = choose(left, right, k, rows or (0, len(gallery)))

    right = torch.from_numpy(np.ascontiguousarray(gallery)).to(device)
    _for_blocks(of_block, len(queries), device, progress)
    return np.negative(found, out=found)


def merge_largest(parts: Sequence[FloatArray]) -> FloatArray:
    """(Q, k) the largest of several answers of ``largest_products``, for ranges that make up all rows.

    >>> merge_largest([np.array([[3.0, 1.0]]), np.array([[2.0, -np.inf]])]).tolist()
    [[3.0, 2.0]]
    """
    return -np.sort(-np.concatenate(parts, axis=1), axis=1)[:, : parts[0].shape[1]]


@dataclass(frozen=True, eq=False)
class ProductRows:
    """Training rows whose products with queries are asked for, wherever they are computed.

    Attributes:
        rows: (N, P).
        weights: (N, K) by which products are weighted in ``related``; ``None`` where nobody asks for it.
    """

    rows: FloatArray
    weights: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def largest(
        self,
        queries: FloatArray,
        k: int,
        upto: int | None = None,
        *,
        rows: Rows | None = None,
        device: str = "cpu",
    ) -> FloatArray:
        """See ``largest_products``; of the first ``upto`` rows only."""
        first, last = rows or (0, len(self))
        last = last if upto is None else min(last, upto)
        if first >= last:
            return np.full((len(queries), k), -np.inf, self.rows.dtype)
        return largest_products(queries, self.rows, k, rows=(first, last), device=device)

    def related(
        self,
        queries: FloatArray,
        query_weights: FloatArray,
        powers: Sequence[int],
        floor: float,
        *,
        rows: Rows | None = None,
    ) -> NDArray[np.float64]:
        """See ``related_sums``."""
        assert self.weights is not None, "these rows were made without weights"
        return related_sums(queries, self.rows, query_weights, self.weights, powers, floor, rows=rows)

    def close(self) -> None:
        """Frees nothing: the rows are plain arrays."""


class ProductSource(Protocol):
    """Who computes products: ``ProductRows`` itself, or actors that share its rows."""

    def largest(self, queries: FloatArray, k: int, upto: int | None = None) -> FloatArray:
        """See ``largest_products``; of the first ``upto`` rows only."""
        ...

    def related(
        self, queries: FloatArray, query_weights: FloatArray, powers: Sequence[int], floor: float
    ) -> NDArray[np.float64]:
        """See ``related_sums``."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


def nearest_rows(queries: FloatArray, gallery: FloatArray) -> NDArray[np.intp]:
    """(Q,) the gallery row with the largest product, the first among equals."""
    blocks = (np.asarray(queries[q : q + QUERY_TILE], gallery.dtype) for q in range(0, len(queries), QUERY_TILE))
    return np.concatenate([(block @ gallery.T).argmax(axis=1) for block in blocks])


def _for_blocks(work: Callable[[int], None], n_queries: int, device: str, progress: ProgressFn | None) -> None:
    blocks = range(0, n_queries, QUERY_TILE)
    with workers(torch.get_num_threads() if device == "cpu" and len(blocks) > 1 else 1) as run:
        for done, _ in enumerate(run(work, blocks), start=1):
            if progress is not None:
                progress(done, len(blocks))


def _chosen_on_cpu(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[Any]:
    """(B, k) the smallest products, rising."""
    n = len(left)
    capacity = 2 * k + COLUMN_TILE // 4
    kept = np.empty((n, capacity), right.numpy().dtype)
    count, limit = np.zeros(n, np.int64), np.full(n, np.inf, kept.dtype)
    buffer = torch.empty((n, COLUMN_TILE), dtype=right.dtype)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        tile = torch.mm(left, right[begin:end].T, out=buffer[:, : end - begin]).numpy()
        own = tile[:, max(rows[0] - begin, 0) : min(rows[1], end) - begin]
        all_of_it = np.full(n, own.shape[1])
        collect_smallest(own, all_of_it, all_of_it, kept, count, limit, k)
    for row in range(n):
        kept[row, count[row] :] = np.inf
    if capacity > 4 * k:
        kept = np.partition(kept, k - 1, axis=1)[:, :k]
    return np.sort(kept, axis=1)[:, :k]


def _chosen_on_device(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[Any]:
    best = torch.full((len(left), k), torch.inf, dtype=left.dtype, device=left.device)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        tile = left @ right[begin:end].T
        own = tile[:, max(rows[0] - begin, 0) : min(rows[1], end) - begin]
        best = torch.cat([best, own], dim=1).topk(k, dim=1, largest=False).values
    return np.asarray(best.sort(dim=1).values.cpu().numpy())


def related_sums(
    queries: FloatArray,
    gallery: FloatArray,
    query_weights: FloatArray,
    gallery_weights: FloatArray,
    powers: Sequence[int],
    floor: float,
    *,
    rows: Rows | None = None,
    progress: ProgressFn | None = None,
) -> NDArray[np.float64]:
    """(Q, len(powers)) sums over gallery rows of r^power where r > ``floor``, r = max(q . g, 0) (v_q . v_g).

    Args:
        queries: (Q, P), like the gallery of unit length.
        gallery: (N, P).
        query_weights: (Q, K) v_q.
        gallery_weights: (N, K) v_g.
        powers: Whole numbers above 0.
        floor: Smaller relations do not count.
        rows: First row, and the row behind the last, of those that count; default all.
        progress: Called as ``progress(done, total)``.
    """
    first_row, last_row = rows or (0, len(gallery))
    right, right_weights = (
        torch.from_numpy(np.ascontiguousarray(gallery)),
        torch.from_numpy(np.ascontiguousarray(gallery_weights, gallery.dtype)),
    )
    sums = np.zeros((len(queries), len(powers)))
    exponents = np.asarray(powers, np.int64)

    def of_block(first: int) -> None:
        part = slice(first, first + QUERY_TILE)
        left = torch.from_numpy(np.ascontiguousarray(queries[part], gallery.dtype))
        left_weights = torch.from_numpy(np.ascontiguousarray(query_weights[part], gallery.dtype))
        for begin, end in tiles(first_row, last_row, COLUMN_TILE, len(gallery)):
            own = slice(max(first_row - begin, 0), min(last_row, end) - begin)
            cosines = (left @ right[begin:end].T).numpy()[:, own]
            shares = (left_weights @ right_weights[begin:end].T).numpy()[:, own]
            _add_powers(cosines, shares, exponents, floor, sums[part])

    _for_blocks(of_block, len(queries), "cpu", progress)
    return sums


@njit(nogil=True, error_model="numpy", cache=True)
def _add_powers(cosines: Any, shares: Any, powers: Any, floor: float, sums: Any) -> None:
    for q in range(cosines.shape[0]):
        for i in range(cosines.shape[1]):
            r = cosines[q, i] * shares[q, i]
            if cosines[q, i] > 0 and r > floor:
                wide = np.float64(r)
                for p in range(len(powers)):
                    sums[q, p] += wide ** powers[p]
