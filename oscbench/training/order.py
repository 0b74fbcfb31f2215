"""Which sample comes when: seeded by (seed, epoch), cut so that all workers take the same number of steps."""

from __future__ import annotations

import numpy as np

from oscbench.types import IntArray


def epoch_order(ids: IntArray, seed: int, epoch: int) -> IntArray:
    """The ids in the order of one epoch; a function of the seed and the epoch alone, so that runs resume."""
    order: IntArray = np.random.default_rng((seed, epoch)).permutation(ids)
    return order


def steps_per_epoch(n_samples: int, workers: int, step_size: int) -> int:
    """Updates of the weights in one epoch; ``step_size`` samples per worker and update.

    The last update may be smaller. It is left out when some worker would get no sample: at most ``workers - 1``
    samples of an epoch, others in each epoch.
    """
    full, rest = divmod(n_samples, workers * step_size)
    return full + (rest >= workers)


def worker_shares(order: IntArray, rank: int, workers: int, step_size: int) -> list[IntArray]:
    """This worker's samples, one array per update; the shares of all workers differ by one sample at most."""
    width = workers * step_size
    steps = steps_per_epoch(len(order), workers, step_size)
    chunks = (order[step * width : (step + 1) * width] for step in range(steps))
    return [np.array_split(chunk, workers)[rank] for chunk in chunks]


def evaluation_shard(ids: IntArray, rank: int, workers: int) -> IntArray:
    """A contiguous part of ascending ids: over all workers every sample exactly once."""
    part: IntArray = np.array_split(np.sort(ids), workers)[rank]
    return part
