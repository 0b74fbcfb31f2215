"""The hashed crop and flip: against plain integer arithmetic, in distribution, and independent of order and batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscbench.data.augment import FLIP, LEFT, RANDAUGMENT, TOP, centre_windows, hashed_bits, train_windows
from oscbench.torchvision_import import torchvision

WORD = 2**64


def splitmix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def plain_bits(seed: int, epoch: int, sample_id: int, stream: int) -> int:
    state = seed
    for part in (epoch, sample_id, stream):
        state = splitmix(state ^ splitmix(part))
    return state >> 32


def plain_window(seed: int, epoch: int, sample_id: int, height: int, width: int, crop: int) -> list[int]:
    return [
        plain_bits(seed, epoch, sample_id, TOP) * (height - crop + 1) // 2**32,
        plain_bits(seed, epoch, sample_id, LEFT) * (width - crop + 1) // 2**32,
        int(plain_bits(seed, epoch, sample_id, FLIP) >= 2**31),
    ]


def test_first_numbers_of_splitmix64():
    """The generator's published first outputs for seed 0 (Vigna's splitmix64.c)."""
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix(k * gamma % WORD) for k in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 10**6),
    ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    height=st.integers(56, 400),
    width=st.integers(56, 400),
)
def test_windows_equal_plain_arithmetic(seed: int, epoch: int, ids: list[int], height: int, width: int):
    n = len(ids)
    sizes = np.full(n, height), np.full(n, width)
    windows = train_windows(np.array(ids), *sizes, crop=56, flip=True, seed=seed, epoch=epoch)
    assert windows.tolist() == [plain_window(seed, epoch, i, height, width, 56) for i in ids]
    assert np.all(windows >= 0)
    assert np.all(windows <= [height - 56, width - 56, 1])


def test_golden_bits():
    """Stored once: another hash would silently change every training."""
    assert hashed_bits(0, 0, np.arange(4), TOP).tolist() == [plain_bits(0, 0, i, TOP) for i in range(4)]
    assert hashed_bits(7, 3, np.arange(3), FLIP).tolist() == [1968860141, 1960510253, 258018297]


def test_order_and_batch_do_not_matter():
    ids = np.random.default_rng(0).permutation(1000)
    whole = hashed_bits(5, 2, ids, LEFT)
    parts = np.concatenate([hashed_bits(5, 2, ids[k : k + 7], LEFT) for k in range(0, 1000, 7)])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(1, 0, TOP), (0, 1, TOP), (0, 0, LEFT), (0, 0, RANDAUGMENT)])
def test_each_argument_changes_the_draw(seed: int, epoch: int, stream: int):
    ids = np.arange(1000)
    assert np.sum(hashed_bits(0, 0, ids, TOP) == hashed_bits(seed, epoch, ids, stream)) == 0


def test_crops_and_flips_are_uniform_and_independent():
    n = 200_000
    sizes = np.full(n, 64), np.full(n, 64)
    top, left, flip = train_windows(np.arange(n), *sizes, crop=56, flip=True, seed=3, epoch=9).T
    counts = np.histogramdd(np.stack([top, left, flip], 1), (np.arange(10), np.arange(10), np.arange(3)))[0]
    expected = n / counts.size  # 9 x 9 x 2 cells
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert counts.size == 162
    assert chi_square < 161 + 5 * np.sqrt(2 * 161)  # five deviations above the mean of chi-square with 161 degrees


def test_without_flip_nothing_is_mirrored():
    ids, sizes = np.arange(100), np.full(100, 60)
    assert not train_windows(ids, sizes, sizes, crop=56, flip=False, seed=0, epoch=0)[:, 2].any()


@given(height=st.integers(8, 90), width=st.integers(8, 90))
def test_centre_is_torchvisions(height: int, width: int):
    place = np.arange(height * width, dtype=np.int64).reshape(1, height, width)
    import torch

    cropped = torchvision.transforms.CenterCrop(8)(torch.from_numpy(place))
    ((top, left, flip),) = centre_windows(np.array([height]), np.array([width]), crop=8).tolist()
    assert (top * width + left, flip) == (int(cropped[0, 0, 0]), 0)
