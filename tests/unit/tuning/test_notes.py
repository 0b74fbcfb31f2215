"""Notes: what is logged inside a block is collected, and lines that differ in numbers alone are one."""

from __future__ import annotations

import logging

import pytest

from oscbench.tuning.notes import collected_notes, merge_notes


def test_information_and_warnings_are_collected_and_nothing_after() -> None:
    package, method = logging.getLogger("oscbench"), logging.getLogger("oscbench.postprocessors.any")
    before = (package.level, list(package.handlers))
    with pytest.raises(RuntimeError), collected_notes() as notes:
        method.info("%d of\n %d", 3, 4)
        method.warning("bent")
        method.debug("too much")
        logging.getLogger("elsewhere").warning("not ours")
        raise RuntimeError
    method.warning("later")
    assert notes == ["3 of 4", "bent"]
    assert (package.level, list(package.handlers)) == before


@pytest.mark.parametrize(
    ("notes", "more", "merged"),
    [
        ((), (), ()),
        (("a 9 of 80", "b"), ("b", "a 10 of 20"), ("a 10 of 20", "b")),
        (("a 10 of 20",), ("a 10 of 3", "a 9 of 99"), ("a 10 of 20",)),
        (("a 1.5",), ("a 1.25", "a one"), ("a 1.5", "a one")),
        (("never predicted: 3, 5",), ("never predicted: 3",), ("never predicted: 3, 5", "never predicted: 3")),
    ],
)
def test_lines_that_differ_in_numbers_alone_are_one(
    notes: tuple[str, ...], more: tuple[str, ...], merged: tuple[str, ...]
) -> None:
    assert merge_notes(notes, more) == merged
