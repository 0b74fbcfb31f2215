from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oscbench import doctor


@pytest.fixture(scope="module")
def findings() -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in doctor.examine("demo", Path("runs"))}


def test_everything_the_suite_needs_is_found(findings: dict[str, doctor.Finding]):
    for what in (
        "Python",
        "torch",
        "torchvision",
        "ffcv",
        "ray",
        "optuna dashboard",
        "WordNet tree",
        "WordNet database",
    ):
        assert findings[what].state == "ok", findings[what]
    assert findings["WordNet tree"].detail == "protocol 1: 116 known, protocol 2: 30 known, protocol 3: 151 known"
    assert findings["data folder"].state == "ok"


def test_what_is_not_well_says_what_to_do(findings: dict[str, doctor.Finding]):
    assert all(finding.remedy for finding in findings.values() if finding.state != "ok")


def test_a_broken_and_an_absent_library_differ():
    absent = doctor._run_probe(doctor._Probe("x", "import no_such_module", "get it"))
    assert (absent.state, absent.remedy) == ("missing", "get it")
    broken = doctor._run_probe(doctor._Probe("x", "raise OSError('libfoo.so not found')", "mend it"))
    assert (broken.state, broken.detail) == ("broken", "OSError: libfoo.so not found")


def test_an_image_folder_is_looked_into(tmp_path: Path):
    assert doctor._data_folder(str(tmp_path)).state == "missing"
    for folder in ("train/n1", "train/n2", "val/n1"):
        (tmp_path / folder).mkdir(parents=True)
    assert doctor._data_folder(str(tmp_path)).detail.endswith("2 train and 1 val classes")


def test_json_on_the_command_line_has_every_finding(findings: dict[str, doctor.Finding]):
    done = subprocess.run([sys.executable, "-m", "oscbench", "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {row["what"] for row in json.loads(done.stdout)} == set(findings)
