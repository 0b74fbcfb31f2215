"""The largest inner products of queries with many training rows, and sums over all of them: one product, in tiles.

Tiles lie on a fixed grid over all rows, as EVM's do: a matrix product may round differently for another shape, and this
way a product has the same bits whoever computes it, in any number of parts. No (Q, N) matrix is ever stored.
"""

# mypy: disable-error-code=untyped-decorator
from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from oscbench.labels import FloatArray
from oscbench.numerics.evm.shard import workers
from oscbench.numerics.evm.tails import COLUMN_TILE, tiles
from oscbench.numerics.kernels import collect_smallest

QUERY_TILE: Final = 512

MATRIX_VALUES: Final = 1 << 22
"""Numbers of a matrix of products that is formed nevertheless, to find the largest of each row alone."""

Rows = tuple[int, int]


def largest_products(queries: FloatArray, gallery: FloatArray, k: int, *, rows: Rows | None = None) -> FloatArray:
    """(Q, k) the k largest inner products of each query with gallery rows, falling; minus infinity where too few.

    Computed in the gallery's type: in float32 a product of unit rows is off by at most 1e-6. After the first tiles only
    products above the k-th largest so far are looked at again, so that choosing nearly vanishes behind the product.

    Args:
        queries: (Q, P).
        gallery: (N, P).
        k: How many.
        rows: First row, and the row behind the last, of those that count; default all.

    >>> largest_products(np.eye(2), np.array([[1.0, 0.0], [0.5, 2.0]]), 3).tolist()
    [[1.0, 0.5, -inf], [2.0, 0.0, -inf]]
    """
    if gallery.dtype == np.float32:
        return products_of(ranked_rows(queries, gallery, k, rows=rows))
    found = np.empty((len(queries), k), gallery.dtype)
    _for_blocks(_chosen_on_cpu, queries, _tensor(gallery), k, rows or (0, len(gallery)), found)
    return np.negative(found, out=found)


def ranked_rows(
    queries: FloatArray,
    gallery: NDArray[np.float32] | torch.Tensor,
    k: int,
    *,
    rows: Rows | None = None,
    device: str = "cpu",
) -> NDArray[np.uint64]:
    """(Q, k) keys of the k gallery rows with the largest products, the largest first, of equal ones the first row.

    A key is a product in single precision and the number of its row in one whole number, in whose order they are
    sorted, so that answers for parts of the gallery are merged by sorting them (``merge_ranked``).

    Args:
        queries: (Q, P).
        gallery: (N, P), perhaps on the device already.
        k: How many.
        rows: First row, and the row behind the last, of those that count; default all.
        device: Where the products are computed.
    """
    found = np.empty((len(queries), k), np.uint64)
    choose = _ranked_on_cpu if device == "cpu" else _ranked_on_device
    _for_blocks(choose, queries, _tensor(gallery, device), k, rows or (0, len(gallery)), found, device)
    return found


NO_ROW: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The key where there are fewer than k rows."""


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
    _moved: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def queries_at_once(self) -> int:
        """See ``ProductSource``."""
        return QUERY_TILE * torch.get_num_threads()

    def largest(self, queries: FloatArray, k: int, upto: int | None = None) -> FloatArray:
        """See ``largest_products``; of the first ``upto`` rows only."""
        return largest_products(queries, self.rows, k, rows=(0, len(self) if upto is None else upto))

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
        first, last = counting(rows or (0, len(self)), upto)
        if first == last:
            return np.full((len(queries), k), NO_ROW)
        return ranked_rows(queries, self._on(device, "rows"), k, rows=(first, last), device=device)

    def related(
        self,
        queries: FloatArray,
        query_weights: FloatArray,
        powers: Sequence[int],
        floor: float,
        *,
        rows: Rows | None = None,
        device: str = "cpu",
    ) -> NDArray[np.float64]:
        """See ``related_sums``."""
        assert self.weights is not None, "these rows were made without weights"
        right, right_weights = self._on(device, "rows"), self._on(device, "weights")
        return related_sums(queries, right, query_weights, right_weights, powers, floor, rows=rows, device=device)

    def close(self) -> None:
        """Frees nothing: the rows are plain arrays."""

    def _on(self, device: str, name: Literal["rows", "weights"]) -> NDArray[Any] | torch.Tensor:
        """One of the arrays where it is needed; it travels to another device once."""
        array = getattr(self, name)
        if device == "cpu":
            return cast(NDArray[Any], array)
        if (device, name) not in self._moved:
            self._moved[device, name] = _tensor(array, device)
        return self._moved[device, name]


def counting(rows: Rows, upto: int | None) -> Rows:
    """The rows of a range that are among the first ``upto`` of all.

    >>> counting((10, 20), 15), counting((10, 20), 5), counting((10, 20), None)
    ((10, 15), (10, 10), (10, 20))
    """
    return rows if upto is None else (rows[0], max(rows[0], min(rows[1], upto)))


class ProductSource(Protocol):
    """Who computes products: ``ProductRows`` itself, or actors that share its rows."""

    @property
    def queries_at_once(self) -> int:
        """How many queries a question needs at least, so that all threads have something to do."""
        ...

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
    step = max(1, MATRIX_VALUES // len(gallery))
    blocks = (np.asarray(queries[q : q + step], gallery.dtype) for q in range(0, len(queries), step))
    return np.concatenate([(block @ gallery.T).argmax(axis=1) for block in blocks])


def _tensor(array: NDArray[Any] | torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """The array as a tensor on a device; nobody writes into it, so one that may not be written to serves as well."""
    if isinstance(array, torch.Tensor):
        return array.to(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _for_blocks(
    choose: Callable[[torch.Tensor, torch.Tensor, int, Rows], NDArray[Any]],
    queries: FloatArray,
    right: torch.Tensor,
    k: int,
    rows: Rows,
    found: NDArray[Any],
    device: str = "cpu",
) -> None:
    """Fills ``found`` with what is chosen for each block of queries, whose sign is turned: the smallest are chosen."""

    def of_block(first: int) -> None:
        left = torch.from_numpy(-np.asarray(queries[first : first + QUERY_TILE])).to(device, right.dtype)
        found[first : first + QUERY_TILE] = choose(left, right, k, rows)

    _on_threads(of_block, len(queries), device)


def _on_threads(work: Callable[[int], None], n_queries: int, device: str) -> None:
    blocks = range(0, n_queries, QUERY_TILE)
    with workers(torch.get_num_threads() if device == "cpu" and len(blocks) > 1 else 1) as run:
        deque(run(work, blocks), maxlen=0)


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
    """(B, k) the first keys. Numpy's partition, which is vector code, takes a tenth of the time of numba's."""
    n = len(left)
    spare = COLUMN_TILE // 4
    kept = np.empty((n, k + spare + COLUMN_TILE), np.uint64)
    count, limit = np.zeros(n, np.int64), np.full(n, np.inf, np.float32)
    for first, own in _product_tiles(left, right, rows):
        _collect_keys(own, own.view(np.uint32), first, kept, count, limit)
        filled = count.max()
        if filled > k + spare:
            _close(kept, count, filled)
            kept[:, :filled].partition(k - 1, axis=1)
            count[:], limit = k, -products_of(kept[:, k - 1])
    filled = max(count.max(), k)
    _close(kept, count, filled)
    return _first(kept[:, :filled], k)


def _close(kept: NDArray[np.uint64], count: NDArray[np.int64], filled: int) -> None:
    """Says of what stands behind each row's candidates that it is none."""
    for row in range(len(kept)):
        kept[row, count[row] : filled] = NO_ROW


def _first(kept: NDArray[Any], k: int) -> NDArray[Any]:
    return np.sort(np.partition(kept, k - 1, axis=1)[:, :k], axis=1)


@njit(nogil=True, error_model="numpy", cache=True)
def _collect_keys(products: Any, bits: Any, first: int, kept: Any, count: Any, limit: Any) -> None:
    """Adds the keys of those products (B, W) of one tile that are below each row's limit."""
    below = np.empty(products.shape[1], np.int64)
    for r in range(products.shape[0]):
        n, bound = 0, limit[r]
        for j in range(products.shape[1]):
            below[n] = j  # without a branch, which would be guessed wrongly at every candidate
            n += products[r, j] < bound
        for i in range(n):
            j = below[i]
            b = bits[r, j] if products[r, j] else np.uint32(0)  # zeros of both signs are equal
            ordered = np.uint32(~b) if b >> np.uint32(31) else b | np.uint32(0x80000000)
            kept[r, count[r] + i] = np.uint64(ordered) << np.uint64(32) | np.uint64(first + j)
        count[r] += n


def _ranked_on_device(left: torch.Tensor, right: torch.Tensor, k: int, rows: Rows) -> NDArray[np.uint64]:
    best = torch.full((len(left), k), torch.iinfo(torch.int64).max, dtype=torch.int64, device=left.device)
    for begin, end in tiles(*rows, COLUMN_TILE, len(right)):
        first = max(rows[0], begin)
        own = (left @ right[begin:end].T)[:, first - begin : min(rows[1], end) - begin]
        keys = _signed_keys(own, torch.arange(first, first + own.shape[1], device=left.device))
        best = torch.cat([best, keys], dim=1).topk(k, dim=1, largest=False).values
    found = best.sort(dim=1).values.cpu().numpy()
    return found.view(np.uint64) ^ np.uint64(1 << 63)


def _signed_keys(negative: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Keys as whole numbers with a sign, since tensors know no others: less by 2^63."""
    bits = (negative + 0.0).contiguous().view(torch.int32)  # zeros of both signs are equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(torch.int64) << 32) + row


def related_sums(
    queries: FloatArray,
    gallery: FloatArray | torch.Tensor,
    query_weights: FloatArray,
    gallery_weights: FloatArray | torch.Tensor,
    powers: Sequence[int],
    floor: float,
    *,
    rows: Rows | None = None,
    device: str = "cpu",
) -> NDArray[np.float64]:
    """(Q, len(powers)) sums over gallery rows of r^power where r > ``floor``, r = max(q . g, 0) (v_q . v_g).

    Args:
        queries: (Q, P), like the gallery of unit length.
        gallery: (N, P), perhaps on the device already.
        query_weights: (Q, K) v_q.
        gallery_weights: (N, K) v_g, likewise.
        powers: Whole numbers above 0.
        floor: Smaller relations do not count.
        rows: First row, and the row behind the last, of those that count; default all.
        device: Where the products are computed.
    """
    first_row, last_row = rows or (0, len(gallery))
    right = _tensor(gallery, device)
    right_weights = _tensor(gallery_weights, device).to(right.dtype)
    sums = np.zeros((len(queries), len(powers)))
    exponents = np.asarray(powers, np.int64)
    add = _add_on_cpu if device == "cpu" else _add_on_device

    def of_block(first: int) -> None:
        part = slice(first, first + QUERY_TILE)
        left, left_weights = (
            torch.from_numpy(np.ascontiguousarray(side[part])).to(device, right.dtype)
            for side in (queries, query_weights)
        )
        for begin, end in tiles(first_row, last_row, COLUMN_TILE, len(right)):
            own = slice(max(first_row - begin, 0), min(last_row, end) - begin)
            cosines = (left @ right[begin:end].T)[:, own]
            add(cosines, (left_weights @ right_weights[begin:end].T)[:, own], exponents, floor, sums[part])

    _on_threads(of_block, len(queries), device)
    return sums


def _add_on_cpu(cosines: torch.Tensor, shares: torch.Tensor, powers: Any, floor: float, sums: Any) -> None:
    _add_powers(cosines.numpy(), shares.numpy(), powers, floor, sums)


def _add_on_device(cosines: torch.Tensor, shares: torch.Tensor, powers: Any, floor: float, sums: Any) -> None:
    relation = cosines * shares
    relation = torch.where((cosines > 0) & (relation > floor), relation, 0.0).double()
    sums += torch.stack([(relation ** int(power)).sum(dim=1) for power in powers], dim=1).cpu().numpy()


@njit(nogil=True, error_model="numpy", cache=True)
def _add_powers(cosines: Any, shares: Any, powers: Any, floor: float, sums: Any) -> None:
    for q in range(cosines.shape[0]):
        for i in range(cosines.shape[1]):
            r = cosines[q, i] * shares[q, i]
            if cosines[q, i] > 0 and r > floor:
                wide = np.float64(r)
                for p in range(len(powers)):
                    sums[q, p] += wide ** powers[p]
