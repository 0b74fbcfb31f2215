"""The pages of the documentation name commands that exist, with options that exist, and leave no command out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from written_commands import commands_below, commands_of

from oscbench.cli import VERBS, app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
WRITTEN = list(dict.fromkeys((page, command) for page, text in PAGES.items() for command in commands_of(text)))
THERE_ARE = [" ".join(words) for words, _ in commands_below(typer.main.get_command(app))]


@pytest.mark.parametrize(("page", "command"), WRITTEN)
def test_commands_of_the_pages_are_understood(
    page: str, command: str, run: Callable[..., tuple[object, str, str]]
) -> None:
    code, out, err = run(*shlex.split(command)[1:], "--help")
    assert code == 0, f"{page}: {err}"
    assert "COMMAND" not in out.splitlines()[0], f"{page}: {command} names no verb"


@pytest.mark.parametrize("words", THERE_ARE)
def test_every_command_is_on_a_page(words: str) -> None:
    own = [command for _, command in WRITTEN if f"{command} ".startswith(f"oscbench {words} ")]
    assert own, f"no page of docs/ names `oscbench {words}`"


def test_every_verb_is_on_the_first_page() -> None:
    named = {command.split()[1] for command in commands_of(PAGES["index.md"])}
    assert named == set(VERBS)
