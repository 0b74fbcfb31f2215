"""Notes: words and numbers kept apart, so that notes of one form are one, and read again as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from oscbench.errors import UsageError
from oscbench.notes import Note, merge_notes, read_notes, write_notes

TAILS = "{} of {} tails were clipped"


def test_the_form_is_filled_with_whole_numbers_as_they_were_counted() -> None:
    assert str(Note(TAILS, (1_000_000, 2e6))) == "1000000 of 2000000 tails were clipped"
    assert str(Note("share {}", (0.25,))) == "share 0.25"
    assert str(Note("{} classes: a{}b", (3,))) == "3 classes: a{}b"  # a class may be called anything


@pytest.mark.parametrize(
    ("notes", "more", "merged"),
    [
        ((), (), ()),
        ((Note(TAILS, (9, 80)), Note("b")), (Note("b"), Note(TAILS, (10, 20))), (Note(TAILS, (10, 20)), Note("b"))),
        ((Note(TAILS, (10, 20)),), (Note(TAILS, (10, 3)), Note(TAILS, (9, 99))), (Note(TAILS, (10, 20)),)),
        (
            (Note("{} lost: 3, 5", (2,)),),
            (Note("{} lost: 3", (1,)),),
            (Note("{} lost: 3, 5", (2,)), Note("{} lost: 3", (1,))),
        ),
    ],
)
def test_of_one_form_the_largest_numbers_stay(
    notes: tuple[Note, ...], more: tuple[Note, ...], merged: tuple[Note, ...]
) -> None:
    assert merge_notes(notes, more) == merged


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "notes.json") == ()
    notes = (Note(TAILS, (9, 80)), Note("γ {}", (0.5,)), Note("plain"))
    write_notes(tmp_path / "notes.json", notes)
    again = read_notes(tmp_path / "notes.json")
    assert again == notes
    assert [str(note) for note in again] == ["9 of 80 tails were clipped", "γ 0.5", "plain"]
    (tmp_path / "notes.json").write_text('[{"from": "x"}]')
    with pytest.raises(UsageError, match="unknown key 'from', did you mean 'form'"):
        read_notes(tmp_path / "notes.json")
