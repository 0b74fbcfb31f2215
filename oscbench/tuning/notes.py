"""What a method had to bend, taken from its log lines wherever it runs, and kept with the search for its user."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator

FILE = "notes.txt"


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Yields a list that receives what the package logs inside the block, information and warnings alike."""
    lines: list[str] = []
    collector, logger = _Collector(lines), logging.getLogger("oscbench")
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)  # a worker process is not set up to log anything below a warning
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)


def merge_notes(notes: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """All notes, each once, in the order in which they were first heard.

    Every pass over some settings counts for itself, so lines that differ in their numbers alone are one note: the one
    with the largest numbers, whatever settings happened to share a pass.

    >>> merge_notes(["EVM: 3 of 80 tails were clipped"], ["EVM: 12 of 40 tails were clipped", "EVM: no logits"])
    ('EVM: 12 of 40 tails were clipped', 'EVM: no logits')
    """
    merged: dict[str, str] = {}
    for note in (*notes, *more):
        form = re.sub(_NUMBER, "#", note)
        merged[form] = max(merged.get(form, note), note, key=_numbers)
    return tuple(merged.values())


_NUMBER = r"\d+(?:\.\d+)?"


def _numbers(note: str) -> list[float]:
    return [float(number) for number in re.findall(_NUMBER, note)]
