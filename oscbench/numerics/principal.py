"""Principal directions of rows that come in blocks, and the length of what the first of them leave over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def principal_directions(blocks: Iterable[Array]) -> tuple[Array, Array]:
    """Falling eigenvalues (P,) of the sum of outer products of all rows, and their vectors as columns (P, P)."""
    gram = None
    for block in blocks:
        product = block.T @ block
        gram = product if gram is None else gram + product
    assert gram is not None, "there is at least one block"
    values, vectors = np.linalg.eigh(gram)
    return values[::-1], np.ascontiguousarray(vectors[:, ::-1])


def residual_squares(coordinates: Array) -> Array:
    """(N, P + 1) squared length of what the first 0, 1, … P directions leave of each row.

    Added up from the last coordinate on, so that small remainders are not differences of large sums.

    >>> residual_squares(np.array([[2.0, 1.0]])).tolist()
    [[5.0, 1.0, 0.0]]
    """
    squares = np.zeros((len(coordinates), coordinates.shape[1] + 1))
    np.cumsum(coordinates[:, ::-1] ** 2, axis=1, out=squares[:, -2::-1])
    return squares
