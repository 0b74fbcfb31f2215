"""Every verb's help page ends with two examples, and they run as they stand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from oscbench.cli import app

LONG_VERBS = ("train", "extract", "tune", "watch", "benchmark")
"""Their examples are whole jobs: minutes each, so they run with the long tests."""


def commands(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each command's words and the epilog of its help page."""
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command.epilog or ""


def examples_of(epilog: str) -> list[str]:
    return [line.strip() for line in epilog.splitlines() if line.strip().startswith("oscbench ")]


ALL = dict(commands(typer.main.get_command(app)))
EXAMPLES = [example for epilog in ALL.values() for example in examples_of(epilog)]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_ends_with_two_examples(words: tuple[str, ...]):
    done = subprocess.run([sys.executable, "-m", "oscbench", *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    last_lines = [line.strip() for line in done.stdout.strip().splitlines() if line.strip()][-2:]
    assert last_lines == examples_of(ALL[words])
    assert all(line.startswith("oscbench " + " ".join(words)) for line in last_lines)


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.mark.parametrize(
    "example", [pytest.param(e, marks=pytest.mark.slow) if e.split()[1] in LONG_VERBS else e for e in EXAMPLES]
)
def test_examples_run(example: str, user_folder: Path):
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(example)],
        cwd=user_folder,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
