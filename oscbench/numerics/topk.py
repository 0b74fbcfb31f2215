"""The largest inner products of queries with many training rows, and sums over all of them: one product, in tiles.

Tiles lie on a fixed grid over all rows, as EVM's do: a matrix product may round differently for another shape, and this
way a product has the same bits whoever computes it, in any number of parts. No (Q, N) matrix is ever stored.
"""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    if gallery.dtype == np.float32:
        return products_of(ranked_rows(queries, gallery, k, rows=rows, device=device, progress=progress))
    found = np.empty((len(queries), k), gallery.dtype)
    choose = _chosen_on_cpu if device == "cpu" else _chosen_on_device
    _for_blocks(choose, queries, gallery, k, rows or (0, len(gallery)), device, found, progress)
    return np.negative(found, out=found)


def ranked_rows(
    queries: FloatArray,
    gallery: NDArray[np.float32],
    k: int,
    *,
    rows: Rows | None = None,
    device: str = "cpu",
    progress: ProgressFn | None = None,
) -> NDArray[np.uint64]:
    """(Q, k) keys of the k gallery rows with the largest products, the largest first, of equal ones the first row.

    A key is a product in single precision and the number of its row in one whole number, in whose order they are
    sorted, so that answers for parts of the gallery are merged by sorting them (``merge_ranked``). Arguments as for
    ``largest_products``.
    """
    found = np.empty((len(queries), k), np.uint64)
    choose = _ranked_on_cpu if device == "cpu" else _ranked_on_device
    _for_blocks(choose, queries, gallery, k, rows or (0, len(gallery)), device, found, progress)
    return found


NO_ROW: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The key where there are fewer than k rows."""


def _keys(negative: NDArray[np.float32], row: NDArray[np.int64]) -> NDArray[np.uint64]:
    bits = (np.ascontiguousarray(negative, np.float32) + np.float32(0)).view(np.uint32)  # zeros of both signs are equal
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))  # in the order of the numbers
    return ordered.astype(np.uint64) << np.uint64(32) | row.astype(np.uint64)


def products_of(keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The products behind keys; minus infinity for ``NO_ROW``.

    >>> products_of(ranked_rows(np.eye(2), np.array([[-1.5, 2.0]], np.float32), 2)).tolist()
    [[-1.5, -inf], [2.0, -inf]]
    """
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ordered >> np.uint32(31), ordered & np.uint32(0x7FFFFFFF), ~ordered)
    found = -np.ascontiguousarray(bits, np.uint32).view(np.float32)
    return np.where(keys == NO_ROW, np.float32(-np.inf), found)


def rows_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The numbers of the gallery rows behind keys that have one."""
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def merge_ranked(parts: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """(Q, k) the first keys of several answers of ``ranked_rows``, for ranges that make up all rows."""
    return np.sort(np.concatenate(parts, axis=1), axis=1)[:, : parts[0].shape[1]]


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
        counting = self._counting(rows, upto)
        if counting is None:
            return np.full((len(queries), k), -np.inf, self.rows.dtype)
        return largest_products(queries, self.rows, k, rows=counting, device=device)

    def ranked(
        self,
        queries: FloatArray,
        k: int,
        upto: int | None = None,
        *,
        rows: Rows | None = None,
        device: str = "cpu",
    ) -> NDArray[np.uint64]:
        """See ``ranked_rows``; of the first ``upto`` rows only. For rows in single precision."""
        counting = self._counting(rows, upto)
        if counting is None:
            return np.full((len(queries), k), NO_ROW)
        return ranked_rows(queries, self.rows, k, rows=counting, device=device)

    def _counting(self, rows: Rows | None, upto: int | None) -> Rows | None:
        """The range of rows that count; ``None`` where there are none."""
        first, last = rows or (0, len(self))
        last = last if upto is None else min(last, upto)
        return (first, last) if first < last else None

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

    def ranked(self, queries: FloatArray, k: int, upto: int | None = None) -> NDArray[np.uint64]:
        """See ``ranked_rows``; of the first ``upto`` rows only."""
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


def _for_blocks(
    choose: Callable[[torch.Tensor, torch.Tensor, int, Rows], NDArray[Any]],
    queries: FloatArray,
    gallery: FloatArray,
    k: int,
    rows: Rows,
    device: str,
    found: NDArray[Any],
    progress: ProgressFn | None,
) -> None:
    """Fills ``found`` with what is chosen for each block of queries, whose sign is turned: the smallest are chosen."""
    right = torch.from_numpy(np.ascontiguousarray(gallery)).to(device)

    def of_block(first: int) -> None:
        left = torch.from_numpy(-np.asarray(queries[first : first + QUERY_TILE], gallery.dtype)).to(device)
        found[first : first + QUERY_TILE] = choose(left, right, k, rows)

    _on_threads(of_block, len(queries), device, progress)


def _on_threads(work: Callable[[int], None], n_queries: int, device: str, progress: ProgressFn | None) -> None:
    blocks = range(0, n_queries, QUERY_TILE)
    with workers(torch.get_num_threads() if device == "cpu" and len(blocks) > 1 else 1) as run:
        for done, _ in enumerate(run(work, blocks), start=1):
            if progress is not None:
                progress(done, len(blocks))


def _product_tiles(left: torch.Tensor, right: torch.Tensor, rows: Rows) -> Iterator[tuple[int, NDArray[Any]]]:
    """Number of the first row of each tile and its products (B, W), of the rows that count."""
    buffer = torch.empty((len(left), COLUMN_TILE), dtype=right.dtype)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        tile = torch.mm(left, right[begin:end].T, out=buffer[:, : end - begin]).numpy()
        first = max(rows[0], begin)
        yield first, tile[:, first - begin : min(rows[1], end) - begin]


def _chosen_on_cpu(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[Any]:
    """(B, k) the smallest products, rising."""
    n = len(left)
    capacity = 2 * k + COLUMN_TILE // 4
    kept = np.empty((n, capacity), right.numpy().dtype)
    count, limit = np.zeros(n, np.int64), np.full(n, np.inf, kept.dtype)
    for _, own in _product_tiles(left, right, rows):
        all_of_it = np.full(n, own.shape[1])
        collect_smallest(own, all_of_it, all_of_it, kept, count, limit, k)
    for row in range(n):
        kept[row, count[row] :] = np.inf
    return _first(kept, k)


def _ranked_on_cpu(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[np.uint64]:
    """(B, k) the first keys."""
    n = len(left)
    kept = np.empty((n, 2 * k + COLUMN_TILE // 4), np.uint64)
    count, limit = np.zeros(n, np.int64), np.full(n, np.inf, np.float32)
    for first, own in _product_tiles(left, right, rows):
        _collect_keys(own, own.view(np.uint32), first, kept, count, limit, k)
    for row in range(n):
        kept[row, count[row] :] = NO_ROW
    return _first(kept, k)


def _first(kept: NDArray[Any], k: int) -> NDArray[Any]:
    if kept.shape[1] > 4 * k:
        kept = np.partition(kept, k - 1, axis=1)[:, :k]
    return np.sort(kept, axis=1)[:, :k]


@njit(nogil=True, error_model="numpy", cache=True)
def _collect_keys(products: Any, bits: Any, first: int, kept: Any, count: Any, limit: Any, k: int) -> None:
    """Adds one tile of products (B, W) to the running k first keys of each row; see ``collect_smallest``."""
    scratch = np.empty(1, np.uint32)
    number = scratch.view(np.float32)
    for r in range(products.shape[0]):
        n, bound = count[r], limit[r]
        for j in range(products.shape[1]):
            if products[r, j] < bound:
                b = bits[r, j] if products[r, j] else np.uint32(0)  # zeros of both signs are equal
                ordered = np.uint32(~b) if b >> np.uint32(31) else b | np.uint32(0x80000000)
                kept[r, n] = np.uint64(ordered) << np.uint64(32) | np.uint64(first + j)
                n += 1
                if n == kept.shape[1]:
                    kept[r] = np.partition(kept[r], k - 1)
                    ordered = np.uint32(kept[r, :k].max() >> np.uint64(32))
                    scratch[0] = ordered & np.uint32(0x7FFFFFFF) if ordered >> np.uint32(31) else np.uint32(~ordered)
                    n, bound = k, number[0]
        count[r], limit[r] = n, bound


def _chosen_on_device(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[Any]:
    best = torch.full((len(left), k), torch.inf, dtype=left.dtype, device=left.device)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        tile = left @ right[begin:end].T
        own = tile[:, max(rows[0] - begin, 0) : min(rows[1], end) - begin]
        best = torch.cat([best, own], dim=1).topk(k, dim=1, largest=False).values
    return np.asarray(best.sort(dim=1).values.cpu().numpy())


def _ranked_on_device(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[np.uint64]:
    best = torch.full((len(left), k), torch.inf, dtype=left.dtype, device=left.device)
    where = torch.full((len(left), k), -1, device=left.device)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        first = max(rows[0], begin)
        own = (left @ right[begin:end].T)[:, first - begin : min(rows[1], end) - begin]
        numbers = torch.arange(first, first + own.shape[1], device=left.device).expand(len(left), -1)
        best, chosen = torch.cat([best, own], dim=1).topk(k, dim=1, largest=False)
        where = torch.cat([where, numbers], dim=1).gather(1, chosen)
    keys = np.where((row := where.cpu().numpy()) < 0, NO_ROW, _keys(best.cpu().numpy(), row))
    return np.sort(keys, axis=1)


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

    _on_threads(of_block, len(queries), "cpu", progress)
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
