"""A benchmark killed again and again, its driver, its workers or their actors, ends as one that nobody disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmark_runs import BenchmarkRuns, cells_of
from processes import SEED, descendants, kill_one, named_below, title, wait_for_the_end_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROCESSES = {"worker": ("ray::_make",), "actor": ("ray::RayTrainWorker", "ray::_RayTrainWorker")}
"""How Ray names the processes: those that make stages, and those that train one together."""

CASES = {
    "one process a stage": (
        ("--losses", "softmax,eos", "--algorithms", "mss,evm,proser"),
        ("driver", "worker", "driver"),
    ),
    "trainings of two workers": (
        ("--losses", "softmax", "--algorithms", "mss,openmax", "--num-workers", "2", "--cpus-per-worker", "1"),
        ("actor", "driver"),
    ),
}
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray-dashboard", "ray::IDLE")


@dataclass(frozen=True)
class Undisturbed:
    """What a run gives that nobody disturbs, and how long it takes."""

    cells: list[dict[str, Any]]
    trials: pd.DataFrame
    seconds: float


def undisturbed(folder: Path, options: tuple[str, ...]) -> Undisturbed:
    runs = BenchmarkRuns(folder, *options)
    began = time.monotonic()
    cells = runs.finish()
    seconds = time.monotonic() - began
    assert set(runs.made().values()) == {1}
    assert set(runs.epochs().values()) == {1}
    assert {cell["state"] for cell in cells} == {"done"}
    return Undisturbed(cells, runs.trials(), seconds)


def strike(process: subprocess.Popen[str], target: str) -> bool:
    """kill -9 of the target, which is waited for as long as the run lasts; whether it was struck."""
    if target == "driver":
        struck = process.poll() is None
        below = [pid for pid in descendants(process.pid) if not title(pid).startswith(AGENTS)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=900)
        if struck:
            wait_for_the_end_of([pid for pid in below if named(pid)], "the killed driver's workers")
        return struck
    while process.poll() is None:
        if named_below(process.pid, PROCESSES[target]) and kill_one(process.pid, PROCESSES[target]):
            return True
        time.sleep(0.02)
    return False


def named(pid: int) -> bool:
    """Whether it makes stages, alone or with others."""
    return title(pid).startswith((*PROCESSES["worker"], *PROCESSES["actor"]))


@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_moment(case: str, tmp_path: Path) -> None:
    options, targets = CASES[case]
    quiet = undisturbed(tmp_path / "quiet", options)
    chance = random.Random(f"{SEED} {case}")
    runs = BenchmarkRuns(tmp_path / "killed", *options)
    struck, out = list[str](), ""
    for target in targets:
        moment = chance.random() * quiet.seconds
        print(f"OSCBENCH_KILL_SEED={SEED}: the {target} to be killed at {moment:.2f} of {quiet.seconds:.2f} s")
        finished, made = runs.finished(), runs.made()
        process = runs.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, _ = process.communicate(timeout=moment)
        if process.returncode is None:
            # What is finished at this moment is not made again, neither by this run nor by the next one.
            finished |= runs.finished()
            made = runs.made()
            if strike(process, target):
                struck.append(target)
            if process.returncode is None:
                out, _ = process.communicate(timeout=1200)
        again = {name for name in finished if runs.made()[name] != made[name]}
        assert not again, f"finished stages that were made again: {again}"
        if process.returncode == 0:
            break  # it has healed, or was over before
        assert process.returncode in (1, -signal.SIGKILL)
    before = runs.finished(), runs.made()
    cells = runs.finish()
    assert not {name for name in before[0] if runs.made()[name] != before[1][name]}
    assert without_folders(cells) == without_folders(quiet.cells)
    pd.testing.assert_frame_equal(runs.trials(), quiet.trials)
    assert cells == cells_of(runs_out(runs))
    print(f"struck: {struck}; made more than once: {[name for name, n in runs.made().items() if n > 1]}")


def runs_out(runs: BenchmarkRuns) -> str:
    """What the command prints when there is nothing left to do."""
    process = runs.start()
    out, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return out


def without_folders(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in cell.items() if name != "folder"} for cell in cells]
