"""What a method had to bend, as data: a form of words and the numbers in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oscbench.artifacts import write_text
from oscbench.records import from_mapping

FILE = "notes.json"
"""Where a search keeps them."""


@dataclass(frozen=True)
class Note:
    """One line for the user. Two notes of one form say the same of different settings or rows.

    Attributes:
        form: The line with ``{}`` for each number; names of classes stand in it as they are, behind all numbers.
        numbers: In the order of the line.

    >>> print(Note("EVM: {} of {} tails were clipped", (3, 80)))
    EVM: 3 of 80 tails were clipped
    """

    form: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        """The line itself; whole numbers without a decimal point, as they were counted."""
        line = self.form
        for number in self.numbers:
            line = line.replace("{}", str(int(number) if float(number).is_integer() else number), 1)
        return line


def merge_notes(notes: Iterable[Note], more: Iterable[Note]) -> tuple[Note, ...]:
    """All notes, one of each form, in the order in which they were first heard.

    Every pass over some settings counts for itself, so of one form the note with the largest numbers stays, whatever
    settings happened to share a pass.

    >>> clipped, few = Note("{} tails were clipped", (3,)), Note("{} rows", (7,))
    >>> [str(note) for note in merge_notes([clipped, few], [Note("{} tails were clipped", (12,))])]
    ['12 tails were clipped', '7 rows']
    """
    merged: dict[str, Note] = {}
    for note in (*notes, *more):
        merged[note.form] = max(merged.get(note.form, note), note, key=lambda heard: heard.numbers)
    return tuple(merged.values())


def write_notes(path: Path, notes: Iterable[Note]) -> None:
    """Writes notes as JSON, whole or not at all."""
    write_text(path, json.dumps([dataclasses.asdict(note) for note in notes], indent=1, ensure_ascii=False) + "\n")


def read_notes(path: Path) -> tuple[Note, ...]:
    """The notes in a file; none where there is no file."""
    if not path.exists():
        return ()
    return tuple(from_mapping(Note, note, str(path)) for note in json.loads(path.read_text(encoding="utf-8")))
