"""Order of samples: every worker the same number of steps, every sample at most once, nothing left to chance."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oscbench.training.order import epoch_order, evaluation_shard, steps_per_epoch, worker_shares

sizes = {"n": st.integers(1, 200), "workers": st.integers(1, 7), "step_size": st.integers(1, 20)}


@given(**sizes)
def test_workers_share_each_step_fairly_and_lose_fewer_samples_than_workers(
    n: int, workers: int, step_size: int
) -> None:
    order = epoch_order(np.arange(100, 100 + n), seed=1, epoch=2)
    shares = [worker_shares(order, rank, workers, step_size) for rank in range(workers)]
    assert {len(own) for own in shares} == {steps_per_epoch(n, workers, step_size)}
    seen = [int(i) for own in shares for part in own for i in part]
    assert len(seen) == len(set(seen)) > n - workers
    assert set(seen) <= set(range(100, 100 + n))
    for step in zip(*shares, strict=True):
        lengths = [len(part) for part in step]
        assert min(lengths) >= 1
        assert max(lengths) <= step_size
        assert max(lengths) - min(lengths) <= 1


@given(**sizes)
def test_the_union_of_a_step_does_not_depend_on_the_number_of_workers(n: int, workers: int, step_size: int) -> None:
    order = epoch_order(np.arange(n), seed=0, epoch=0)
    together = worker_shares(order, 0, 1, workers * step_size)
    apart = [
        np.concatenate(step)
        for step in zip(*(worker_shares(order, r, workers, step_size) for r in range(workers)), strict=True)
    ]
    for one, other in zip(together, apart, strict=False):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))


@given(n=st.integers(1, 100), workers=st.integers(1, 9))
def test_evaluation_counts_every_sample_once_in_ascending_shards(n: int, workers: int) -> None:
    ids = np.random.default_rng(n).permutation(n)
    shards = [evaluation_shard(ids, rank, workers) for rank in range(workers)]
    np.testing.assert_array_equal(np.concatenate(shards), np.arange(n))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    ids = np.arange(50)
    np.testing.assert_array_equal(epoch_order(ids, 3, 4), epoch_order(ids, 3, 4))
    assert not np.array_equal(epoch_order(ids, 3, 4), epoch_order(ids, 3, 5))
    assert not np.array_equal(epoch_order(ids, 3, 4), epoch_order(ids, 4, 4))
