"""``oscbench tune`` at the command line: wrong use is one line, the plan, the report, and one run from end to end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from feature_factory import feature_info, make_features, write_feature_folder
from tune_runs import TuneRuns

from oscbench.cli import main
from oscbench.cli.tune import parse_duration
from oscbench.errors import UsageError


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_feature_folder(tmp_path_factory.mktemp("own") / "features")


def tune(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["tune", *arguments])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alg", "openmx"], "'openmx', did you mean 'openmax'?"),
        (["--alg", "openmax", "--loss", "eoss"], "'eoss', did you mean 'eos'?"),
        (["--alg", "openmax", "--set", "tailsize=3"], "unknown hyperparameter, did you mean 'tail_size'?"),
        (["--alg", "openmax", "--set", "tail_size="], "is not of the form name=value,value"),
        (["--alg", "openmax", "--time-budget", "soon"], "'soon' is no duration"),
        (["--alg", "openmax", "--seeds", "a"], "is no list of whole numbers"),
        (["--alg", "openmax", "--seeds", "-1"], "a seed is 0 or above"),
        (["--alg", "openmax", "--seeds", "0,1"], "comes from one training"),
        (["--alg", "openmax", "--loss", "all"], "comes from one training"),
        (["--alg", "openmax", "--space", "none.yaml"], "cannot read search space none.yaml"),
        (["--alg", "openmax", "--protocol", "1"], "has 6 known classes, protocol p1 has 116"),
        (["--alg", "openmax", "--protocol", "9"], "9"),
        (["--alg", "openmax", "--search", "gird"], "gird"),
        (["--alg", "mls", "--score-kind", "probability", "--rule", "strict"], "strict"),
        (["--alg", "mss", "--score-kind", "logit"], "no score kind 'logit'"),
        (
            ["--alg", "mss", "--recipe", "authors"],
            "--recipe authors is for algorithms that fine-tune, and mss does",
        ),
        (["--alg", "mss", "--share-trunk"], "--share-trunk is for algorithms that fine-tune, and mss does not"),
        (["--alg", "proser"], "proser fine-tunes a network, and --features"),
        (["--alg", "proser", "--recipe", "author"], "unknown recipe 'author', did you mean 'authors'?"),
        (["--alg", "proser", "--share-trunk", "--search", "optuna"], "leave out --search optuna"),
        (["--alg", "proser", "--share-trunk", "--set", "trunk=trained"], "leave out --set trunk"),
        (["--alg", "proser", "--set", "dummies=0"], "'dummies=0': dummies must be at least 1, got 0"),
        (["--alg", "proser", "--set", "mix_alpha=0"], "'mix_alpha=0': mix_alpha must be finite and > 0, got 0.0"),
        (["--alg", "mss", "--memory", "1GiB"], "--memory"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], features: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    runs = tmp_path / "runs"
    code, out, err = tune(capsys, *arguments, "--features", str(features), "--runs", str(runs))
    assert code == 2, err
    assert message in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert out == ""
    assert not runs.exists()


def test_an_empty_grid_names_file_and_key(capsys: pytest.CaptureFixture[str], features: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("algorithm: openmax\ngrid: {tail_size: []}\n")
    code, _, err = tune(capsys, "--alg", "openmax", "--features", str(features), "--space", str(path))
    assert code == 2
    assert f"{path}: grid.tail_size: is empty" in err


def test_a_space_without_ranges_cannot_be_drawn_from(
    capsys: pytest.CaptureFixture[str], features: Path, tmp_path: Path
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("algorithm: openmax\ngrid: {tail_size: [3]}\n")
    arguments = ["--alg", "openmax", "--features", str(features), "--space", str(path), "--search", "optuna"]
    code, _, err = tune(capsys, *arguments)
    assert code == 2
    assert "no ranges: section" in err


def test_without_protocol_and_features(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = tune(capsys, "--alg", "mss", "--runs", str(tmp_path))
    assert code == 2
    assert "give --protocol 1, 2, 3 or a file, or --features" in err


def test_validation_without_negatives(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_feature_folder(tmp_path / "f", negatives=0)
    code, _, err = tune(capsys, "--alg", "mss", "--features", str(folder), "--runs", str(tmp_path / "runs"))
    assert code == 2
    assert "val has no negatives" in err
    assert "CCR at 1e-3, 1e-2 and 1e-1 cannot be computed" in err


def extracted(folder: Path, protocol: str, schema: int = 2) -> Path:
    """Features as an extraction for ``protocol`` would have left them."""
    import dataclasses

    for number, split in enumerate(("train", "val", "test")):
        made = make_features(10, negatives=20, unknowns=20 if split == "test" else 0, seed=number)
        info = feature_info(protocol, made.n_known, split)
        dataclasses.replace(made, info=info, classes=info.classes).save(folder / split)
        path = folder / split / "set.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": schema}))
    return folder


def test_features_of_another_protocol(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = extracted(tmp_path / "f", "p3")
    code, _, err = tune(capsys, "--alg", "mss", "--features", str(folder), "--protocol", "1")
    assert code == 2
    assert "is of protocol p3, not p1" in err


def test_an_older_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = extracted(tmp_path / "f", "p3", schema=0)
    code, _, err = tune(capsys, "--alg", "mss", "--features", str(folder))
    assert code == 2
    assert "has schema 0, this version reads 2" in err


def test_a_dead_address_is_named_soon(features: Path, tmp_path: Path) -> None:
    """In a process of its own: where Ray is connected already, an address is not looked at."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    arguments = ["--alg", "mss", "--features", str(features), "--runs", str(tmp_path / "r"), "--address", address]
    command = [sys.executable, "-m", "oscbench", "tune", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    doing, error = done.stderr.splitlines()
    assert doing.startswith("tune: making ")
    assert error.startswith(f"error: no Ray cluster answers at {address} (")
    assert list((tmp_path / "r").rglob("trials.csv")) == []


def test_ctrl_c_before_the_first_trial_is_one_line_too(
    capsys: pytest.CaptureFixture[str], features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oscbench.stages import features as stages_of_features

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages_of_features, "requested_features", interrupted)
    assert tune(capsys, "--alg", "mss", "--features", str(features)) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h", 3600), ("2.5s", 2.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "m", "10x", "0m"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration(text)


def test_the_plan_counts_trials_of_every_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = ["--protocol", "1", "--runs", str(tmp_path / "runs"), "--loader", "pil", "--dry-run", "--json"]
    code, out, _ = tune(capsys, "--alg", "openmax", "--loss", "all", *base)
    assert code == 0
    searches = [step["what"] for step in json.loads(out) if step["stage"] == "tune"]
    assert [text.split(", ")[1] for text in searches] == ["softmax", "garbage", "eos"]
    assert all(text.endswith("96 trials by grid") for text in searches)
    code, out, _ = tune(capsys, "--alg", "openmax", "--search", "optuna", *base)
    assert json.loads(out)[-1]["what"].endswith("60 trials by optuna")
    code, out, _ = tune(capsys, "--alg", "mss", *base)
    assert json.loads(out)[-1]["what"].endswith("1 trials by grid")
    assert not (tmp_path / "runs").exists()


# --- from end to end ---------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_a_search_from_end_to_end(tmp_path: Path, features: Path) -> None:
    runs = TuneRuns(tmp_path, features)
    arguments = ["--set", "tail_size=1,2", "--set", "shift=0.1,0.3"]
    first = runs.run(*arguments)
    assert first.returncode == 0, first.stderr
    assert "counted, softmax, seed 0: best of 4 trials" in first.stdout
    for name in ("setting", "CCR@FPR", "files"):
        assert name in first.stdout
    assert "Ray dashboard: http://127.0.0.1:" in first.stderr
    assert "ray get-auth-token" in first.stderr or "no login needed" in first.stderr
    assert "4/4 trials" in first.stderr
    assert "Traceback" not in first.stderr
    folder = runs.folder()
    assert {path.name for path in folder.iterdir()} >= {
        "trials.csv",
        "trials.parquet",
        "best.yaml",
        "study.log",
        "meta.json",
    }
    table = pd.read_csv(folder / "trials.csv")
    assert len(table) == 4

    again = runs.run(*arguments, "--json")  # complete: shown again, nothing run again
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["searches"][0]["sum"] == pytest.approx(table["sum"].max(), abs=1e-12)
    assert "nothing was run again" in again.stderr
    assert set(runs.fits().values()) == {1}
