"""The ``oscbench`` commands that a Markdown text names, and those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator


def commands_of(text: str) -> Iterator[str]:
    """Every command in a text: lines of code blocks, with or without a prompt, and code between backticks."""
    for number, part in enumerate(re.split(r"^```.*$", text, flags=re.MULTILINE)):
        in_block = number % 2 == 1
        pattern = r"^(?:\$ )?(oscbench [^\n]*)$" if in_block else r"`(oscbench [a-z][^`\n]*)`"
        for line in re.findall(pattern, part, flags=re.MULTILINE):
            first, *others = re.split(r"\s*\\\|\s*", line)
            yield first
            yield from (f"{first.rpartition(' ')[0]} {verb}" for verb in others)


def commands_below(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Words of each command of a command line, and the epilog of its help page."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(command, (*path, name))
        else:
            yield (*path, name), command.epilog or ""
