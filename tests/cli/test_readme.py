"""The README stays true: its commands name verbs and options that exist, its pictures are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from oscbench.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"^oscbench [^|\n]*$|(?<=`)oscbench [a-z][^`|]*(?=`)", README, flags=re.MULTILINE)))


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str):
    words = shlex.split(command)[1:]
    parser: object = typer.main.get_command(app)
    while words and hasattr(parser, "commands") and words[0] in parser.commands:
        parser = parser.commands[words.pop(0)]
    assert not hasattr(parser, "commands"), f"{command}: no such verb"
    known = {name for option in parser.params for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    assert unknown == []


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(path: str):
    assert (ROOT / path).exists()


def test_the_two_commands_exist():
    for script in ("demo.sh", "test.sh"):
        assert f"./scripts/{script}" in README
        assert (ROOT / "scripts" / script).stat().st_mode & 0o100
