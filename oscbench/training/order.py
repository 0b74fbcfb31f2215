"""Which sample comes when: seeded by (seed, epoch), cut so that all workers take the same number of steps."""

from __future__ import annotations

import numpy as np

from oscbench.labels import IntArray


def epoch_order(ids: IntArray, seed: int, epoch: int) -> IntArray:
    """The ids in the order of one epoch; a function of the seed and the epoch alone, so that runs resume."""
    order: IntArray = np.random.default_rng((seed, epoch)).permutation(ids)
    return order


def steps_per_epoch(n_samples: int, workers: int, step_size: int, fewest: int = 2) -> int:
    """Updates of the weights in one epoch; ``step_size`` samples per worker and update.

    The last update may be smaller. It is left out when some worker would have too few samples to take batch statistics
    of (``fewest``): at most ``fewest * workers - 1`` samples of an epoch, others in each epoch.
    """
    full, rest = divmod(n_samples, workers * step_size)
    return full + (rest >= fewest * workers)


def worker_shares(
    order: IntArray, rank: int, workers: int, batch_size: int, accumulate: int = 1, *, fewest: int = 2
) -> list[IntArray]:
    """This worker's samples, one array per update of ``accumulate`` batches.

    The last update is shared out evenly; samples that would be a batch of fewer than ``fewest`` are left out of it.
    """
    width = workers * batch_size * accumulate
    steps = steps_per_epoch(len(order), workers, batch_size * accumulate, fewest)
    chunks = (order[step * width : (step + 1) * width] for step in range(steps))
    shares = [np.array_split(chunk, workers)[rank] for chunk in chunks]
    rests = [len(share) % batch_size for share in shares]
    return [
        share[: len(share) - rest] if rest < min(fewest, batch_size) else share
        for share, rest in zip(shares, rests, strict=True)
    ]


def evaluation_shard(ids: IntArray, rank: int, workers: int) -> IntArray:
    """A contiguous part of ascending ids: over all workers every sample exactly once."""
    part: IntArray = np.array_split(np.sort(ids), workers)[rank]
    return part
