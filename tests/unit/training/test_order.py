"""Order of samples: every worker the same number of steps, every sample at most once, nothing left to chance."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oscbench.training.order import epoch_order, evaluation_shard, steps_per_epoch, worker_shares

sizes = {
    "n": st.integers(1, 300),
    "workers": st.integers(1, 5),
    "batch_size": st.integers(1, 9),
    "accumulate": st.integers(1, 3),
}


@given(**sizes)
def test_workers_take_equal_steps_and_leave_out_few_samples(
    n: int, workers: int, batch_size: int, accumulate: int
) -> None:
    order = epoch_order(np.arange(100, 100 + n), seed=1, epoch=2)
    shares = [worker_shares(order, rank, workers, batch_size, accumulate) for rank in range(workers)]
    assert {len(own) for own in shares} == {steps_per_epoch(n, workers, batch_size * accumulate)}
    seen = [int(i) for own in shares for part in own for i in part]
    assert len(seen) == len(set(seen))
    assert n - len(seen) < 3 * workers  # fewer than two per worker would be a step, or one each a batch
    assert set(seen) <= set(range(100, 100 + n))
    for step in zip(*shares, strict=True):
        lengths = [len(part) for part in step]
        assert max(lengths) <= batch_size * accumulate
        assert max(lengths) - min(lengths) <= 2  # one by sharing out, one left out as a batch of its own
        if batch_size > 1:  # no batch of one sample
            assert all(length % batch_size != 1 for length in lengths)


@given(n=st.integers(1, 300), workers=st.integers(1, 5), batch_size=st.integers(2, 9))
def test_full_steps_hold_the_same_samples_for_any_number_of_workers(n: int, workers: int, batch_size: int) -> None:
    order = epoch_order(np.arange(n), seed=0, epoch=0)
    together = worker_shares(order, 0, 1, workers * batch_size)[: n // (workers * batch_size)]
    apart = zip(*(worker_shares(order, rank, workers, batch_size) for rank in range(workers)), strict=True)
    for one, parts in zip(together, apart, strict=False):
        np.testing.assert_array_equal(one, np.concatenate(parts))


def test_a_last_sample_alone_is_left_out() -> None:
    order = np.arange(9)
    assert [part.tolist() for part in worker_shares(order, 0, 1, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [part.tolist() for part in worker_shares(order, 0, 1, 4, accumulate=3)] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert [part.tolist() for part in worker_shares(order, 1, 2, 2)] == [[2, 3], [6, 7]]


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
