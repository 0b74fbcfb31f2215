"""Every verb's help page ends with two examples, and they run as they stand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from written_commands import commands_below

from oscbench.cli import app

LONG_VERBS = ("train", "extract", "tune", "benchmark", "report")
"""Their examples are whole jobs of minutes each, or show what those have made, so they run with the long tests."""

SERVERS = ("watch",)
"""Run until they are stopped; tests/distributed/test_watch.py opens them in a browser."""

SHORT_OF_IMAGENET = 1
"""Exit code of ``protocol verify`` on the demo images: they are fewer than ImageNet's, which it is there to notice."""


def examples_of(epilog: str) -> list[str]:
    return [line.strip() for line in epilog.splitlines() if line.strip().startswith("oscbench ")]


def oscbench(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120"}
    command = [sys.executable, "-m", "oscbench", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


ALL = dict(commands_below(typer.main.get_command(app)))
EXAMPLES = [example for words, epilog in ALL.items() if words[0] not in SERVERS for example in examples_of(epilog)]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_ends_with_two_examples(words: tuple[str, ...]):
    done = oscbench(*words, "--help")
    assert done.returncode == 0
    last_lines = [line.strip() for line in done.stdout.strip().splitlines() if line.strip()][-2:]
    assert last_lines == examples_of(ALL[words])
    assert all(line.startswith("oscbench " + " ".join(words)) for line in last_lines)


@pytest.fixture(scope="module")
def demo_folder(user_folder: Path) -> Path:
    """Where a user works who has drawn the demo images, few of them."""
    few = ("--per-class", "5", "--test-per-class", "1")
    drawn = oscbench("data", "demo", "--out", "demo-data", *few, cwd=user_folder)
    assert drawn.returncode == 0, drawn.stderr
    return user_folder


@pytest.mark.parametrize(
    "example", [pytest.param(e, marks=pytest.mark.slow) if e.split()[1] in LONG_VERBS else e for e in EXAMPLES]
)
def test_examples_run(example: str, demo_folder: Path, tmp_path: Path):
    drawing = example.startswith("oscbench data demo")  # into a folder that is not there yet
    done = oscbench(*shlex.split(example)[1:], cwd=tmp_path if drawing else demo_folder)
    assert done.returncode == (SHORT_OF_IMAGENET if "protocol verify" in example else 0), done.stderr
