"""``--dry-run`` of every verb that runs stages prints the graph that is then worked off; ``--local`` needs no Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_images import write_split

from oscbench.cli import main
from oscbench.cli.tune import parse_bytes
from oscbench.errors import UsageError
from oscbench.protocols.base import make_protocol, write_protocol

SMALL_NETWORK = ("--network", "tiny", "--epochs", "1", "--batch-size", "8")
SMALL_GRID = ("--set", "tail_size=3,5", "--set", "distance_multiplier=2.0", "--set", "alpha=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_split(tmp_path / "images", "train", [0, 1, 2, -1] * 8)
    write_split(tmp_path / "images", "val", [0, 1, 2, -1, -2] * 3)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    write_protocol(tmp_path / "small.yaml", make_protocol("small", roles, "test"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], folder: Path, verb: str, *options: str) -> tuple[int, str, str]:
    where = ["--protocol", str(folder / "small.yaml"), "--data", str(folder / "images"), "--runs", str(folder / "runs")]
    with pytest.raises(SystemExit) as caught:
        main([verb, *where, *options])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def states(capsys: pytest.CaptureFixture[str], folder: Path, verb: str, *options: str) -> dict[str, Any]:
    code, out, err = run(capsys, folder, verb, *options, "--dry-run", "--json")
    assert code == 0, err
    return {step["stage"]: step for step in json.loads(out)}


def test_the_printed_graph_is_what_is_then_done(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = ("--local", "--loader", "pil")
    verbs = [("train", SMALL_NETWORK), ("extract", ()), ("tune", ("--alg", "openmax", *SMALL_GRID))]
    expected = [("samples", "train"), ("features",), ("tune",)]
    done: list[str] = []
    for (verb, options), new in zip(verbs, expected, strict=True):
        before = states(capsys, folder, verb, *options, *local)
        assert [name for name, step in before.items() if step["state"] == "missing"] == list(new)
        assert [name for name, step in before.items() if step["state"] == "done"] == done
        assert not any(Path(before[name]["folder"]).exists() for name in new)
        code, _, err = run(capsys, folder, verb, *options, *local)
        assert code == 0, err
        after = states(capsys, folder, verb, *options, *local)
        assert [step["state"] for step in after.values()] == ["done"] * len(after)
        assert {name: step["folder"] for name, step in after.items()} == {
            name: step["folder"] for name, step in before.items()
        }
        assert all((Path(step["folder"]) / "meta.json").exists() for step in after.values())
        done = list(after)
    before = states(capsys, folder, "evaluate", "--alg", "openmax", *local)
    assert {name: step["state"] for name, step in before.items()} == {
        "samples": "done",
        "train": "done",
        "features": "done",
        "tune": "given",
        "scores": "missing",
    }
    code, out, _ = run(capsys, folder, "evaluate", "--alg", "openmax", *local, "--json")
    assert code == 0
    (result,) = json.loads(out)["runs"]
    train = states(capsys, folder, "train", *SMALL_NETWORK, *local)["train"]
    assert (result["network"], result["recipe"]) == ("tiny", "published, epochs=1, batch_size=8")
    assert result["train"] == train["fingerprint"]
    assert Path(before["scores"]["folder"]).is_dir()


def test_the_plan_for_people_names_stage_state_and_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, folder, "tune", "--alg", "evm", "--loader", "pil", "--num-workers", "2", "--dry-run")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split() == ["stage", "state", "about", "folder", "what"]
    assert [line.split()[:2] for line in lines] == [
        ["samples", "missing"],
        ["train", "missing"],
        ["features", "missing"],
        ["tune", "missing"],
    ]
    assert "resnet50 for protocol small with loss softmax, 120 epochs of 19 images on 2 workers" in lines[1]
    assert "80 trials by grid" in lines[3]
    assert not (folder / "runs").exists()


@pytest.mark.ffcv
def test_conversion_has_a_plan_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            ["data", "convert", "--protocol", str(folder / "small.yaml"), "--data", str(folder / "images")]
            + ["--runs", str(folder / "runs"), "--side", "32", "--dry-run", "--json"]
        )
    steps = json.loads(capsys.readouterr().out)
    assert [(step["stage"], step["state"]) for step in steps] == [("samples", "missing"), ("beton", "missing")]
    assert steps[1]["seconds"] > 0


def test_local_loads_no_ray(folder: Path) -> None:
    """Nothing of a ``--local`` command imports Ray, so it also works where Ray is broken."""
    where = ["--protocol", str(folder / "small.yaml"), "--data", str(folder / "images"), "--runs", str(folder / "runs")]
    commands = [
        ["train", *where, *SMALL_NETWORK, "--local", "--loader", "pil"],
        ["evaluate", *where, "--alg", "mss", "--local", "--loader", "pil"],
        ["tune", *where, "--alg", "openmax", *SMALL_GRID, "--local", "--loader", "pil"],
    ]
    program = (
        "import sys; from oscbench.cli import main\n"
        f"for command in {commands!r}:\n"
        "    try: main(command)\n"
        "    except SystemExit as ended: assert not ended.code, ended.code\n"
        "assert 'ray' not in sys.modules, 'ray was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "openmax, softmax, seed 0: best of 2 trials" in done.stdout


def test_local_and_an_address_do_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, folder, "train", "--local", "--address", "127.0.0.1:1")
    assert code == 2
    assert "--local runs without Ray, --address 127.0.0.1:1 names a Ray cluster" in err


@pytest.mark.parametrize(
    "command",
    [
        ["tune", "--alg", "mss", "-p", "1"],
        ["train", "-p", "1"],
        ["extract", "-p", "1"],
        ["evaluate", "-p", "1", "--alg", "mss"],
        ["data", "convert"],
        ["data", "verify"],
        ["export", "--trials", "--out", "x.csv"],
        ["watch"],
        ["doctor"],
    ],
)
def test_an_address_as_runs_folder_is_refused_by_every_verb(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main([*command, "--runs", "s3://bucket/runs"])
    _, err = capsys.readouterr()
    assert caught.value.code == 2
    assert "is an address, not a folder" in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("800MB", 800_000_000), ("1.5g", 1_500_000_000), ("7", 7)]
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "0", "-4GiB", "4XB"])
def test_no_amounts_of_memory(text: str) -> None:
    with pytest.raises(UsageError, match="is no amount of memory"):
        parse_bytes(text)
