"""``oscbench export`` of results in every format, and ``docs/formats.md``, which says what columns and files hold."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from runs_factory import make_runs

from oscbench.artifacts import META
from oscbench.features import SET
from oscbench.metrics import FPRS
from oscbench.origin import Origin
from oscbench.report.measures import COLUMNS, Measures
from oscbench.report.results import read_results
from oscbench.training.epoch_metrics import validation_metrics
from oscbench.training.loop import Validation
from oscbench.tuning.trials import COLUMNS as TRIAL_COLUMNS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with two post-processors, one of which was searched for."""
    folder = tmp_path_factory.mktemp("export") / "runs"
    return make_runs(
        folder, protocols=("p1",), trainings=("garbage",), algorithms=("mss", "evm"), seeds=(0, 1), epochs=1
    )


def documented(heading: str) -> dict[str, str]:
    """Names and types of the table under a heading."""
    (part,) = re.findall(rf"^###? {re.escape(heading)}\n(.*?)(?=^##|\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", part, re.MULTILINE))


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["results.csv", "results.parquet"])
def test_results_round_trip(runs: Path, run: Run, tmp_path: Path, name: str) -> None:
    code, out, err = run("export", "--results", "--runs", runs, "--out", tmp_path / name)
    assert (code, out) == (0, "")
    assert "12 results of 4 cells" in err
    read = pd.read_csv if name.endswith("csv") else pd.read_parquet
    found = read(tmp_path / name)
    expected = Measures.of(read_results(runs)).frame
    pd.testing.assert_frame_equal(found.fillna({"chosen_by": ""}), expected, check_exact=True, check_dtype=False)


@pytest.mark.parametrize(
    "what", [("--results",), ("--trials",), ("--per-sample", "--scores", "demo")], ids=["results", "trials", "samples"]
)
def test_every_table_has_every_format(runs: Path, run: Run, tmp_path: Path, what: tuple[str, ...]) -> None:
    rows = {}
    for form, name in (("csv", "x.txt"), ("parquet", "x.any"), ("latex", "x")):
        code, _, err = run("export", *what, "--runs", runs, "--format", form, "--out", tmp_path / name)
        assert code == 0, err
        rows[form] = int(err.splitlines()[-1].split()[0])
    assert len(set(rows.values())) == 1
    assert len(pd.read_csv(tmp_path / "x.txt")) == len(pd.read_parquet(tmp_path / "x.any")) == rows["csv"]
    body = (tmp_path / "x").read_text().partition(r"\midrule")[2]
    assert body.count(r" \\") == rows["csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "--trials"], "say what to export"),
        (["--results", "--scores", "demo"], "not with --results"),
        (["--results", "--best"], "--best goes with --trials"),
        (["--results", "--format", "parket"], "did you mean 'parquet'"),
        (["--results", "--out", "x.json"], "ends in one of .csv, .parquet, .tex"),
        (["--results", "--runs", "nowhere"], "runs folder nowhere does not exist"),
    ],
)
def test_wrong_use_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("export", "--out", "x.csv", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_cell_is_named_and_the_others_are_exported(run: Run, tmp_path: Path) -> None:
    runs = make_runs(tmp_path / "runs", protocols=("p1",), trainings=("eos",), algorithms=("mss", "mls"), epochs=1)
    lost = read_results(runs).cells[0].folder
    (lost / "val" / "score.npy").write_bytes(b"no array")
    code, _, err = run("export", "--results", "--runs", runs, "--out", tmp_path / "x.csv")
    assert code == 0
    assert f"left out: {lost}: " in err
    assert set(pd.read_csv(tmp_path / "x.csv")["algorithm"]) == {"mls"}


def test_results_and_trials_need_neither_torch_nor_ray_nor_numba(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from oscbench.cli import main\n"
        "for what in ('--results', '--trials'):\n"
        f"    try: main(['export', what, '--runs', {str(runs)!r}, '--out', {str(tmp_path / 'x.tex')!r}])\n"
        "    except SystemExit as done: assert not done.code\n"
        "print(sorted({'torch', 'ray', 'numba', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"


# --- what is documented is what there is ------------------------------------------------------------------------------


def test_every_column_of_the_results_is_documented() -> None:
    assert documented("Results") == COLUMNS


def test_every_column_of_the_trials_is_documented() -> None:
    assert documented("Trials") == TRIAL_COLUMNS


def test_every_column_of_the_samples_is_documented(run: Run, tmp_path: Path) -> None:
    assert run("export", "--per-sample", "--scores", "demo", "--out", tmp_path / "x.parquet")[0] == 0
    found = pd.read_parquet(tmp_path / "x.parquet")
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == documented("Samples")


def test_every_key_of_the_records_is_documented(runs: Path) -> None:
    for path in runs.glob(f"*/*/*-*/{META}"):
        meta = json.loads(path.read_text())
        assert list(meta) == list(documented("meta.json"))
        assert f"`{meta['stage']}`" in DOCUMENT
    (best, *_) = runs.glob("*/*/tune-*/best.yaml")
    assert list(yaml.safe_load(best.read_text())) == list(documented("best.yaml"))


@pytest.mark.parametrize(("stage", "heading"), [("features", "Feature folders"), ("scores", "Score folders")])
def test_every_array_is_documented_with_its_type(runs: Path, stage: str, heading: str) -> None:
    types = documented(heading)
    found = set[str]()
    for path in runs.glob(f"*/*/{stage}-*/*/*"):
        found.add(path.name)
        if path.suffix == ".npy":
            array = np.load(path)
            name, shape = types[path.name].split(" ", 1)
            assert (str(array.dtype), array.ndim) == (name, len(re.findall("[A-Z]", shape)))
    assert found == set(types)


def test_every_key_of_a_set_is_documented(runs: Path) -> None:
    keys = set[str]()
    for path in runs.glob(f"*/*/*/*/{SET}"):
        keys |= set(json.loads(path.read_text()))
    table = documented("set.json")
    assert keys == set(table)
    (origin,) = re.findall(r"^\| `origin` .*", DOCUMENT, re.MULTILINE)
    assert set(re.findall("`([^`]+)`", origin)) - {"origin"} == {field.name for field in dataclasses.fields(Origin)}
    (confidence,) = re.findall(r"^\| `confidence` .*", DOCUMENT, re.MULTILINE)
    (some, *_) = runs.glob(f"*/*/scores-*/test/{SET}")
    recorded = json.loads(some.read_text())["confidence"]
    assert set(re.findall("`([^`]+)`", confidence)) - {"confidence", "null"} == set(recorded)


def test_figures_of_an_epoch_are_documented() -> None:
    one = np.ones(2)
    validation = Validation(
        ids=np.arange(2),
        labels=np.array([0, -1]),
        predicted=np.zeros(2, np.int64),
        confidence=one / 2,
        target_probability=one / 2,
        loss=one,
        weight=one,
    )
    figures = validation_metrics(validation, n_outputs=2, n_known=2)
    assert len(FPRS) == 4
    assert set(figures) < set(documented("epochs.csv"))
