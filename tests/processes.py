"""Processes below another one, found through /proc, and kill -9 of them at chosen moments."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SEED = int(os.environ.get("OSCBENCH_KILL_SEED", str(random.SystemRandom().randrange(10**6))))
"""Decides all moments of killing; every test prints it, and the variable repeats it."""
LONGEST_WAIT = 300.0
"""Seconds after which a wait has failed: none of them is expected to take long, but a machine may be busy."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Waits for something that happens soon, or fails naming it."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        assert time.monotonic() < deadline, f"waited {LONGEST_WAIT:.0f} s for {what}"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    below = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in below} - below
        if not more:
            return sorted(below - {pid})
        below |= more


def title(pid: int) -> str:
    """Command line of a process, or ``""`` when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_the_end_of(pids: list[int], what: str) -> None:
    """Waits until none of the processes runs, or fails naming the first that does."""
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), f"{what} to end: process {pid}, {title(pid)}")


def named_below(root: int, names: tuple[str, ...]) -> list[int]:
    """Processes below ``root`` whose title begins with one of the names."""
    return [pid for pid in descendants(root) if title(pid).startswith(names)]


def kill_one(root: int, names: tuple[str, ...], chance: random.Random | None = None) -> bool:
    """kill -9 of one such process, the first or any; whether there was one to strike."""
    found = named_below(root, names)
    if chance is not None:
        chance.shuffle(found)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return True
    return False


def earlier_and_earlier(what: str, share: float, seconds: float) -> Iterator[float]:
    """Moments to kill at until one strikes: the chosen share of the run time, then half of the last one each time.

    A run that is faster than the measured one is over before a late moment comes. The last moment is the beginning of
    the run, which no machine misses.
    """
    for moment in (share * seconds, share * seconds / 2, share * seconds / 4, 0.0):
        print(f"OSCBENCH_KILL_SEED={SEED}: {what} to be killed at {moment:.2f} of {seconds:.2f} s")
        yield moment
    raise AssertionError(f"{what}: nothing was struck, not even at the beginning of the run")
