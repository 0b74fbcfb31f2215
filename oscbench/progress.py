"""What a user hears of long work: a moving bar on a terminal or lines in a log file, and what workers elsewhere log."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from oscbench.labels import ProgressFn

logger = logging.getLogger(__name__)

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


class _Collector(logging.Handler):
    def __init__(self, level: int, lines: list[str]) -> None:
        super().__init__(level)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def collected_log(level: int) -> Iterator[list[str]]:
    """Yields a list that receives each line the package logs inside the block, from ``level`` on.

    Nobody reads the log of a process on another machine, so its lines travel with its results.
    """
    lines: list[str] = []
    collector, package = _Collector(level, lines), logging.getLogger("oscbench")
    before = package.level
    package.addHandler(collector)
    if package.getEffectiveLevel() > level:  # a worker process is not set up to log anything below a warning
        package.setLevel(level)
    try:
        yield lines
    finally:
        package.setLevel(before)
        package.removeHandler(collector)


def log_once(lines: Iterable[str], known: set[str]) -> None:
    """Logs warnings that came from elsewhere, except those in ``known``, which then holds them too."""
    for line in lines:
        if line not in known:
            known.add(line)
            logger.warning("%s", line)


# --- passes over several settings --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassProgress:
    """How far a pass over several settings of a search is.

    Attributes:
        number: Of the pass, from 1.
        settings: How many are evaluated in it.
        done: Of ``total``, in whatever unit the method counts.
        total: All of it.
        seconds: Since it began.
    """

    number: int
    settings: int
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        """The share done and, once there is one, an estimate of the time left.

        >>> str(PassProgress(1, 80, 430, 1000, 19.0))
        'pass over 80 settings: 43 %, about 0:25 left'
        """
        what = f"pass over {self.settings} setting{'s' if self.settings != 1 else ''}"
        left = f", about {duration(self.seconds / self.done * (self.total - self.done))} left" if self.done else ""
        return f"{what}: {100 * self.done // self.total} %{left}"


class PassMeter:
    """The ``progress(done, total)`` of one pass: keeps how far it is, and never goes back.

    Args:
        number: Of the pass.
        settings: How many are evaluated in it.
        tell: Called whenever it has gone on.
    """

    def __init__(self, number: int, settings: int, tell: Callable[[PassProgress], None] = lambda current: None) -> None:
        self._number, self._settings, self._tell = number, settings, tell
        self._done, self._total = 0, 1
        self._started = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """So much is done."""
        if done * self._total > self._done * total:
            self._done, self._total = done, total
            self._tell(self.now())

    def now(self) -> PassProgress:
        """How far it is."""
        seconds = time.monotonic() - self._started
        return PassProgress(self._number, self._settings, self._done, self._total, seconds)
