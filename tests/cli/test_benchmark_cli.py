"""``oscbench benchmark`` as a user runs it, here without Ray: plan, cells, what fails, what is there already."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_runs import BenchmarkRuns

import oscbench.api.benchmark as api
from oscbench.api.benchmark import benchmark
from oscbench.metrics import FPRS, ccr_fpr_sum, oscr_curve
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.scores import ScoreSet

Run = Callable[..., tuple[object, str, str]]
LOCAL = ("--local", "--loader", "pil")
CELLS = 2 * (3 + 1)  # mss at the best epoch too
STAGES = 2 + 2 * (3 * 2 + 2 * 2)
"""No FFCV file; of each training: network, features and scores at two epochs, and two searches with scores."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BenchmarkRuns:
    """A folder in which nothing has been run yet."""
    return BenchmarkRuns(tmp_path_factory.mktemp("small"))


@pytest.fixture
def there(small: BenchmarkRuns, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works."""
    monkeypatch.chdir(small.folder)
    return small.folder


def options(*more: str) -> list[str]:
    grid = ["--losses", "softmax,eos", "--algorithms", "mss,openmax,evm"]
    return ["benchmark", "--protocols", "small.yaml", *grid, *LOCAL, *more]


def test_a_plan_writes_nothing_and_says_what_everything_takes(run: Run, there: Path) -> None:
    code, out, err = run(*options("--dry-run", "--json"))
    assert code == 0, err
    steps = json.loads(out)
    assert len(steps) == STAGES
    assert {step["state"] for step in steps} == {"missing"}
    assert all(step["seconds"] > 0 for step in steps)
    assert err.startswith("about 0:")
    assert not (there / "runs").exists()


def test_every_cell_is_made_and_its_figures_are_those_of_its_scores(run: Run, there: Path) -> None:
    code, out, err = run(*options("--json"))
    assert code == 0, err
    document = json.loads(out)
    cells: list[dict[str, Any]] = document["cells"]
    assert len(cells) == CELLS
    assert {cell["state"] for cell in cells} == {"done"}
    assert document["left_out"] == []
    assert f"{STAGES} of {STAGES} stages done, 0 running, 0 waiting, 0 failed" in err
    for cell in cells:
        scores = ScoreSet.load(Path(cell["folder"]) / "test")
        curve = oscr_curve(scores.labels, scores.predictions, unknown_label=-2)
        assert cell["unknown"] == pytest.approx(ccr_fpr_sum(curve, fprs=FPRS))
        known = scores.labels >= 0
        assert cell["accuracy"] == pytest.approx((scores.prediction[known] == scores.labels[known]).mean())


def test_what_is_there_is_used_and_quickly(run: Run, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (there / "runs").rglob("meta.json")}
    code, out, err = run(*options())
    assert code == 0
    assert before == {path: path.stat().st_mtime_ns for path in (there / "runs").rglob("meta.json")}
    assert "DEMO DATA, not a result about real images" in out
    assert "small softmax" in out
    assert f"{CELLS} of {CELLS} cells are done, 0:0" in err
    code, out, _ = run(*options("--dry-run", "--json"))
    assert {step["state"] for step in json.loads(out)} == {"done", "given"}  # a finished search is taken as it is


def test_a_cell_that_fails_is_named_while_the_others_are_made(
    run: Run, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("out of luck")

        broken.setattr(POSTPROCESSORS.get("mls"), "fit", fail)
        code, out, err = run(*options("--algorithms", "mls,mss", "--json"))
    assert code == 1
    states = {(cell["training"], cell["algorithm"], cell["epoch"]): cell for cell in json.loads(out)["cells"]}
    assert {key: cell["state"] for key, cell in states.items()} == {
        ("softmax", "mls", "last"): "failed",
        ("eos", "mls", "last"): "failed",
        ("softmax", "mss", "last"): "done",
        ("eos", "mss", "last"): "done",
        ("softmax", "mss", "best"): "done",
        ("eos", "mss", "best"): "done",
    }
    assert states["eos", "mls", "last"]["reason"] == "RuntimeError: out of luck"
    assert math.isnan(states["eos", "mls", "last"]["unknown"])
    assert "failed: small eos/s0/mls/scores: RuntimeError: out of luck" in err
    assert "4 of 6 cells are done" in err
    assert "2 failed, run the same command again to try them again" in err
    assert run(*options("--algorithms", "mls,mss"))[0] == 0


def test_a_damaged_cell_is_made_again(run: Run, there: Path) -> None:
    cells = benchmark(
        ["small.yaml"], losses=["eos"], algorithms="mss", local=True, loader="pil", spectator=api.LogBoard(print)
    ).cells
    (Path(cells["folder"][0]) / "meta.json").unlink()
    code, out, err = run(*options("--losses", "eos", "--algorithms", "mss", "--json"))
    assert code == 0, err
    assert json.loads(out)["cells"][0]["unknown"] == cells["unknown"][0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--protocols", "9"], "unknown protocol '9'"),
        (["--losses", "eoss"], "unknown loss 'eoss', did you mean 'eos'?"),
        (["--algorithms", "openmx"], "unknown algorithm 'openmx', did you mean 'openmax'?"),
        (["--algorithms", "mss,,evm"], "the list of algorithms has an empty name"),
        (["--seeds", "a"], "--seeds 'a' is no list of whole numbers"),
        (["--data", "nowhere"], "data folder nowhere does not exist"),
        (["--num-workers", "2"], "--local trains with one worker"),
        (["--address", "auto"], "--local runs without Ray"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("benchmark", "--protocols", "2", "--local", *wrong)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_published_means_the_five_of_the_paper() -> None:
    plan = benchmark([2], losses="softmax", runs="nowhere", dry_run=True).plan
    searched = [step.stage.config.algorithm for step in plan if step.stage.name == "scores"]
    assert searched == ["mss", "mss", "mls", "openmax", "evm", "proser"]  # mss at two epochs


def test_a_line_at_most_every_ten_seconds_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Board:
        def __init__(self) -> None:
            self.failed: dict[str, str] = {}
            self.running, self.waiting = {"a": 0.0}, {"b"}

        def failure(self, path: str) -> str:
            return f"failed: {path}"

        def summary(self) -> str:
            return "summary"

        def running_now(self) -> list[str]:
            return ["a"]

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    said: list[str] = []
    board, log = Board(), api.LogBoard(said.append)
    for second in range(25):
        now[0] = float(second)
        log.show(board)  # type: ignore[arg-type]
    assert said == ["summary", "  running: a"] * 3
    board.failed["c"] = "why"
    log.show(board)  # type: ignore[arg-type]
    board.running, board.waiting = {}, set()
    log.show(board)  # type: ignore[arg-type]
    assert said[6:] == ["failed: c", "summary"]
