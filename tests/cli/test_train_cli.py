"""``oscbench train`` and ``extract`` as commands: interrupted, continued, extracted; bad input in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_images import write_split

from oscbench.cli import app
from oscbench.protocols.base import make_protocol, write_protocol


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_split(folder / "images", "train", [0, 1, 2, -1] * 6)
    write_split(folder / "images", "val", [0, 1, 2, -1, -2] * 2)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    write_protocol(folder / "small.yaml", make_protocol("small", roles, "test"))
    return folder


def command(data: Path, verb: str, *options: str) -> list[str]:
    where = ["--protocol", str(data / "small.yaml"), "--data", str(data / "images"), "--runs", str(data / "runs")]
    return [sys.executable, "-m", "oscbench", verb, *where, "--loss", "eos", *options]


TRAIN = ("--network", "tiny", "--epochs", "12", "--batch-size", "8")


@pytest.mark.ray
@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on_to_features(data: Path) -> None:
    folder = data / "runs" / "images" / "small" / "eos" / "s0"
    running = subprocess.Popen(command(data, "train", *TRAIN), stderr=subprocess.PIPE, text=True, cwd=data)
    deadline = time.monotonic() + 600
    while not (folder / "train" / "epochs.csv").exists():
        assert time.monotonic() < deadline
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 130, errors
    assert "stopped after epoch" in errors
    assert "run the same command again to go on" in errors
    assert "Traceback" not in errors
    assert not (folder / "train" / "meta.json").exists()

    # extract finds the begun training and finishes it with its own settings
    again = subprocess.run(command(data, "extract", "--json"), capture_output=True, text=True, cwd=data, timeout=900)
    assert again.returncode == 0, again.stderr
    assert "going on with" in again.stderr
    assert json.loads(again.stdout)[0]["samples"] == {"train": 19, "val": 5, "test": 10}
    assert len((folder / "train" / "epochs.csv").read_text().splitlines()) == 13
    assert json.loads((folder / "train" / "meta.json").read_text())["result"]["epochs"] == 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--loss", "eoss"], "did you mean 'eos'"),
        (["--recipe", "publishd"], "did you mean 'published'"),
        (["--randaugment", "9"], "--randaugment '9' is not OPERATIONS,MAGNITUDE"),
        (["--loss-param", "negative_weight=2"], "of loss softmax: unknown key 'negative_weight'"),
        (["--loss", "eos", "--loss-param", "negative_weight=-1"], "negative_weight must be > 0"),
        (["--loss", "eos", "--loss-param", "negative_weight"], "is not NAME=NUMBER"),
        (["--label-smoothing", "1"], "label_smoothing must lie in"),
        (["--data", "nowhere"], "data folder nowhere does not exist"),
    ],
)
def test_bad_requests_are_refused_in_one_line(options: list[str], words: str) -> None:
    from oscbench.errors import UsageError

    with pytest.raises(UsageError, match=words):
        app(["train", "--protocol", "1", "--dry-run", *options], standalone_mode=False)


def test_a_dry_run_shows_the_three_published_losses_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app(
        ["train", "-p", "2", "--loss", "all", "--dry-run", "--runs", str(tmp_path / "runs"), "--recipe", "published"]
        + ["--loader", "pil", "--json"],
        standalone_mode=False,
    )
    steps = json.loads(capsys.readouterr().out)
    assert [step["stage"] for step in steps] == ["images", "samples", "train", "train", "train"]
    for loss, step in zip(("softmax", "garbage", "eos"), steps[2:], strict=True):
        assert step["what"].startswith(f"tiny for protocol p2 with loss {loss}, 120 epochs of ")
        assert step["seconds"] > 0
    assert not (tmp_path / "runs").exists()


def test_an_address_without_a_cluster_fails_soon_and_is_named(data: Path) -> None:
    started = time.monotonic()
    result = subprocess.run(
        [*command(data, "train", *TRAIN), "--loader", "pil", "--seed", "1", "--address", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        cwd=data,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == 1
    assert "error: no Ray cluster answers at 127.0.0.1:1" in result.stderr
    assert time.monotonic() - started < 150  # Ray by itself would wait for minutes


def test_checkpoint_and_all_losses_do_not_go_together() -> None:
    from oscbench.errors import UsageError

    with pytest.raises(UsageError, match="--checkpoint is one network"):
        app(["extract", "-p", "1", "--loss", "all", "--checkpoint", "x.pth"], standalone_mode=False)
    with pytest.raises(UsageError, match="--network belongs to --checkpoint"):
        app(["extract", "-p", "1", "--network", "tiny"], standalone_mode=False)
