"""The README stays true: its commands run as they stand, its verbs and options exist, its pictures are there."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_factory import make_features
from written_commands import commands_of

from oscbench.features import FeatureSet
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.testing.postprocessors import check_postprocessor

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

COMMANDS = list(dict.fromkeys(commands_of(README)))
OWN_FEATURES, FROM_PYTHON, OWN_METHOD = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

STAND_INS = {"DIR": "demo"}
"""What a reader puts in the place of a word."""

NOT_RUN = {
    "oscbench benchmark": (
        "half an hour; benchmarks/benchmark.py runs it, tests/cli/test_benchmark_cli.py does at a small size"
    ),
    "oscbench watch": "serves until it is stopped; tests/distributed/test_watch.py opens it",
    "oscbench tune --alg evm --protocol 1 --loss eos --data /path/to/ILSVRC2012": "needs ImageNet",
    "oscbench evaluate --alg all --loss all --protocol 2 --seeds 0,1,2 --yes": (
        "half an hour; docs/ranking.md is its output, tests/cli/test_groups.py runs groups at a small size"
    ),
    "oscbench evaluate --params best.yaml": "names the option alone; tests/cli/test_evaluate_tuned.py uses it",
    **dict.fromkeys(
        [f"oscbench {verb}" for verb in ("train", "protocol show", "protocol export", "protocol build")]
        + [f"oscbench {verb}" for verb in ("protocol verify", "data demo", "data convert", "data verify")],
        "names the verb alone; tests/cli/test_help_examples.py runs the examples of its help page",
    ),
}
"""Commands that only have to be understood, and why."""

LONG = {
    "oscbench report --compare paper",
    "oscbench tune --alg evm --protocol 1",
    "oscbench evaluate --protocol 1 --alg evm",
    "oscbench evaluate --protocol 1 --alg mss --alg evm --plots plots",
    "oscbench threshold --scores runs/demo-6c81a17d/p1/softmax/s0/evm/scores --fpr 0.01",
    "oscbench train --protocol 2 --loss eos",
    "oscbench tune --alg proser --protocol 2 --loss eos",
}
"""Whole jobs of minutes; they run with the long tests."""

AFTER = {
    "oscbench report --compare paper": "oscbench evaluate --protocol 1 --alg mss --alg evm --plots plots",
    "oscbench export --trials --out all.csv": "oscbench tune --alg evm --features mine",
    "oscbench threshold --scores runs/demo-6c81a17d/p1/softmax/s0/evm/scores --fpr 0.01": (
        "oscbench evaluate --protocol 1 --alg mss --alg evm --plots plots"
    ),
}
"""What a reader has done before: there is a search to export, and scores to choose a threshold on."""


class Reader:
    """Somebody with a folder and own features who types the README's commands there, each of them once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[str, subprocess.CompletedProcess[str]] = {}
        self._save_own_features()

    def _save_own_features(self) -> None:
        """As the README says it: by its own lines of Python."""
        splits = {
            "train": make_features(40, negatives=40),
            "val": make_features(20, negatives=60, seed=1),
            "test": make_features(20, negatives=60, unknowns=60, seed=2),
        }
        for name in splits:
            (self.folder / "mine" / name).mkdir(parents=True)
        arrays = {
            field: {name: getattr(split, field) for name, split in splits.items()}
            for field in ("embedding", "labels", "logits")
        }
        with contextlib.chdir(self.folder):
            exec(OWN_FEATURES, {"np": np, **arrays})

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Runs the command, and before it what it builds on."""
        if command in AFTER:
            self.type(AFTER[command])
        if command not in self._done:
            words = [STAND_INS.get(word, word) for word in shlex.split(command)[1:]]
            self._done[command] = subprocess.run(
                [sys.executable, "-m", "oscbench", *words],
                cwd=self.folder,
                env=os.environ | {"COLUMNS": "120"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        return self._done[command]


@pytest.fixture(scope="module")
def reader(user_folder: Path) -> Reader:
    return Reader(user_folder)


def marked(command: str) -> object:
    """The command with the marks of what it starts."""
    starts_ray = command in LONG or AFTER.get(command, command).split()[1] in ("train", "extract", "tune")
    marks = [pytest.mark.slow] * (command in LONG) + [pytest.mark.ray] * starts_ray
    return pytest.param(command, marks=marks, id=command)


def test_commands_are_found_in_blocks_and_in_running_text() -> None:
    block = "```\n$ oscbench train --loss eos\noscbench doctor\n```\n"
    text = block + "run `oscbench data demo \\| verify`, `python a.py`:\noscbench is no command here"
    expected = ["oscbench train --loss eos", "oscbench doctor", "oscbench data demo", "oscbench data verify"]
    assert list(commands_of(text)) == expected


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 15
    exceptions = {*NOT_RUN, *LONG, *AFTER, *AFTER.values()}
    assert exceptions <= set(COMMANDS), "these left the README: forget them here too"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str, run: Callable[..., tuple[object, str, str]]) -> None:
    code, out, err = run(*shlex.split(command)[1:], "--help")
    assert code == 0, err
    assert "COMMAND" not in out.splitlines()[0], f"{command}: names no verb"


@pytest.mark.parametrize("command", [marked(command) for command in COMMANDS if command not in NOT_RUN])
def test_commands_run(command: str, reader: Reader) -> None:
    done = reader.type(command)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for _, path in re.findall(r"--(out|plots) (\S+)", command):
        assert (reader.folder / path).exists(), f"{command} wrote no {path}"


def test_a_broken_command_would_be_noticed(reader: Reader, run: Callable[..., tuple[object, str, str]]) -> None:
    assert reader.type("oscbench threshold --scores demo --fpr much").returncode == 2
    for broken in ("tunes --alg evm", "tune --algorithm evm", "protocol lists"):
        assert run(*broken.split(), "--help")[0] == 2


def test_a_verb_works_as_a_function(reader: Reader) -> None:
    names: dict[str, Any] = {}
    with contextlib.chdir(reader.folder):
        exec(FROM_PYTHON, names)
        assert names["found"].best["algorithm"].tolist() == ["evm"]


def test_the_method_of_ones_own_works_and_keeps_the_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(POSTPROCESSORS, "_entries", dict(POSTPROCESSORS._entries))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "margin_of_the_readme.py").write_text(OWN_METHOD)
    importlib.import_module("margin_of_the_readme")
    check_postprocessor("margin")
    logits = np.array([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]])
    rows = FeatureSet.from_arrays(embedding=logits, logits=logits, labels=np.array([0, 1]), n_known=3)
    found = POSTPROCESSORS.get("margin")().fit(rows).predict(rows.inputs())
    assert found.label.tolist() == [0, 1]
    assert found.score.tolist() == [0.5, 3.0]


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_two_commands_exist() -> None:
    for script in ("demo.sh", "test.sh"):
        assert f"./scripts/{script}" in README
        assert (ROOT / "scripts" / script).stat().st_mode & 0o100
