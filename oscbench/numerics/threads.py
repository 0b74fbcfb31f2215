"""How many threads this process may use: all that the machine gives it, or its share where it works beside others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_share: int | None = None


def usable_cpus() -> int:
    """CPUs that this process is allowed to run on, or fewer inside ``at_most``."""
    allowed = len(os.sched_getaffinity(0))
    return allowed if _share is None else min(allowed, _share)


@contextlib.contextmanager
def at_most(cpus: int) -> Iterator[None]:
    """Keeps everything in this process that computes on several threads to so many, for the length of a block."""
    global _share
    import numba
    import torch
    from threadpoolctl import threadpool_limits

    before, torch_before, numba_before = _share, torch.get_num_threads(), numba.get_num_threads()
    _share = cpus
    torch.set_num_threads(cpus)
    numba.set_num_threads(min(cpus, numba.config.NUMBA_NUM_THREADS))
    try:
        with threadpool_limits(cpus):
            yield
    finally:
        _share = before
        torch.set_num_threads(torch_before)
        numba.set_num_threads(numba_before)
