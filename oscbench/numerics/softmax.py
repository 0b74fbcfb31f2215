"""Softmax and its logarithm, without overflow: in float64, and in float32 as published tables were made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oscbench.labels import FloatArray


def softmax(logits: FloatArray) -> NDArray[np.float64]:
    """(N, C) exp(l_k) / sum_j exp(l_j) of each row.

    >>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    powers = np.exp(_below_maximum(logits))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def single_softmax(logits: FloatArray) -> NDArray[np.float32]:
    """(N, C) the softmax in single precision by torch, whose order of summation decides the last bit.

    >>> single_softmax(np.array([[20.0, 0.0]])).tolist()
    [[1.0, 2.06115369216775e-09]]
    """
    import torch

    single = torch.from_numpy(np.array(logits, np.float32))
    return np.asarray(torch.softmax(single, dim=1).numpy())


def log_softmax(logits: FloatArray) -> NDArray[np.float64]:
    """(N, C) ln softmax of each row, exact to rounding also where the softmax itself rounds to 0 or 1.

    The largest logit's own term is kept out of the sum and enters through ``log1p``, so that two rows whose
    largest probabilities both round to 1 still differ (up to a margin of about 745 between the two largest logits).

    >>> log_softmax(np.array([[40.0, 0.0], [50.0, 0.0]]))[:, 0]
    array([-4.24835426e-18, -1.92874985e-22])
    """
    below = _below_maximum(logits)
    powers = np.exp(below)
    np.put_along_axis(powers, np.argmax(below, axis=1, keepdims=True), 0.0, axis=1)
    return np.asarray(below - np.log1p(powers.sum(axis=1, keepdims=True)))


def _below_maximum(logits: FloatArray) -> NDArray[np.float64]:
    wide = np.asarray(logits, np.float64)
    return np.asarray(wide - wide.max(axis=1, keepdims=True))
