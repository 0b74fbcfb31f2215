"""Crop and flip from a hash of (seed, epoch, sample id): the same for every loader, worker count and resume."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oscbench.labels import IntArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(1 << 31)

TOP, LEFT, FLIP, RANDAUGMENT, RAW_SHARE = range(5)
"""Independent streams of random numbers; each decision of a sample draws from its own."""


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step (Steele, Lea, Flood 2014): every input bit reaches every output bit, none is lost."""
    state = state + _GOLDEN  # arrays of uint64 wrap silently, as wanted
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def hashed_bits(seed: int, epoch: int, ids: IntArray, stream: int) -> NDArray[np.uint64]:
    """(N,) 32 random bits per sample, a pure function of the four arguments.

    >>> bits = hashed_bits(0, 3, np.array([5, 6]), TOP)
    >>> (bits[::-1] == hashed_bits(0, 3, np.array([6, 5]), TOP)).all()
    np.True_
    """
    state = np.full(len(ids), seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
    for part in (
        np.full(len(ids), epoch, np.uint64),
        np.asarray(ids).astype(np.uint64),
        np.full(len(ids), stream, np.uint64),
    ):
        state = _mix(state ^ _mix(part))
    return state >> np.uint64(32)


def hashed_offset(bits: NDArray[np.uint64], n_choices: IntArray) -> IntArray:
    """(N,) int64 in ``0 .. n_choices - 1``, uniform up to 2^-32."""
    offset: IntArray = ((bits * n_choices.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return offset


def train_windows(
    ids: IntArray, heights: IntArray, widths: IntArray, *, crop: int, flip: bool, seed: int, epoch: int
) -> IntArray:
    """(N, 3) int64 columns top, left, flip (0 or 1): a crop anywhere in the image, mirrored half of the time.

    Args:
        ids: (N,) sample ids, which decide the draw together with ``seed`` and ``epoch``.
        heights: (N,) image heights, none below ``crop``.
        widths: (N,) image widths, none below ``crop``.
        crop: Side of the square cut out; scale and aspect stay as they are.
        flip: Whether to mirror at all.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
    """
    windows = np.zeros((len(ids), 3), np.int64)
    windows[:, 0] = hashed_offset(hashed_bits(seed, epoch, ids, TOP), heights - crop + 1)
    windows[:, 1] = hashed_offset(hashed_bits(seed, epoch, ids, LEFT), widths - crop + 1)
    if flip:
        windows[:, 2] = hashed_bits(seed, epoch, ids, FLIP) >= _HALF
    return windows


def centre_windows(heights: IntArray, widths: IntArray, *, crop: int) -> IntArray:
    """(N, 3) int64 columns top, left, 0: the centre, halves rounded to even as by torchvision's ``CenterCrop``."""
    windows = np.zeros((len(heights), 3), np.int64)
    windows[:, 0] = np.rint((heights - crop) / 2)
    windows[:, 1] = np.rint((widths - crop) / 2)
    return windows
