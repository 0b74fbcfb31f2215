"""How the C library treats the memory that tensors free, on CPUs."""

from __future__ import annotations

import ctypes
from typing import Final

# From glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_ARENA_MAX: Final = -8
_MOST: Final = 2**31 - 1


def reuse_freed_memory() -> None:
    """Keeps freed memory for the next step, for the rest of the process, where the C library is glibc.

    Every step of a training allocates and frees the same gigabytes. Large pieces would go back to the system each time
    and be fetched anew, page by page: an eighth of the time of a step (``resnet50``, 224 px, batch 16, two cores).
    One arena for all threads lets the backward pass, a thread of its own, use what the forward pass has freed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST)):
            mallopt(option, value)
