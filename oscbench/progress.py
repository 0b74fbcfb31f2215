"""One progress display for all long work: a moving bar on a terminal, plain dated lines in a log file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from oscbench.labels import ProgressFn

LOG_EVERY_SECONDS = 10.0


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    >>> duration(75), duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def show_progress(label: str) -> Iterator[ProgressFn]:
    """Yields a ``progress(done, total)`` that shows ``label``, the share done and the time left on stderr."""
    if sys.stderr.isatty():
        yield from _bar(label)
    else:
        yield _log_lines(label)


def _bar(label: str) -> Iterator[ProgressFn]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _log_lines(label: str) -> ProgressFn:
    started = time.monotonic()
    last = started

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LOG_EVERY_SECONDS and not (done == total and last > started):
            return
        last = now
        left = (now - started) / max(done, 1) * (total - done)
        print(
            f"{label}: {done}/{total}, {duration(now - started)} passed, about {duration(left)} left",
            file=sys.stderr,
            flush=True,
        )

    return progress
