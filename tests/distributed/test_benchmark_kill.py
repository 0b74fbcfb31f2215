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
from processes import SEED, descendants, kill_one, named_below, title, wait_for_the_end_of, wait_until

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
LONGEST_RUN = 1200.0
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


class Disturbed:
    """A run that is killed and taken up again; what is finished must never be made again.

    Args:
        runs: Its folder.
    """

    def __init__(self, runs: BenchmarkRuns) -> None:
        self.runs = runs
        self.out = ""
        self._finished, self._made = set[str](), runs.made()
        self._process: subprocess.Popen[str] | None = None

    def work_for(self, seconds: float) -> bool:
        """Lets it work for so long, begun anew where its driver was killed; whether it is still at it."""
        if self._process is None:
            begun = sum(self.runs.made().values())
            process = self._process = self.runs.start()
            wait_until(lambda: sum(self.runs.made().values()) > begun or process.poll() is not None, "a stage to begin")
        try:
            self.out, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return True
        assert self._process.returncode == 0, errors
        self._check()
        return False

    def kill(self, target: str) -> bool:
        """Strikes; whether the target was there."""
        assert self._process is not None
        self._check()
        struck = strike(self._process, target)
        if self._process.returncode == -signal.SIGKILL:
            self._process = None
        return struck

    def _check(self) -> None:
        """What was finished the last time has not been made again since."""
        again = {name for name in self._finished if self.runs.made()[name] != self._made[name]}
        assert not again, f"finished stages that were made again: {again}"
        self._finished, self._made = self.runs.finished(), self.runs.made()


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_at_any_moment(case: str, tmp_path: Path) -> None:
    options, targets = CASES[case]
    quiet = undisturbed(tmp_path / "quiet", options)
    chance, waiting = random.Random(f"{SEED} {case}"), [*targets]
    for attempt in range(len(targets) + 3):  # a run that is over before all have struck is followed by another
        moments = sorted(chance.random() * quiet.seconds / 2**attempt for _ in waiting)
        run = Disturbed(BenchmarkRuns(tmp_path / f"killed{attempt}", *options))
        for moment, before in zip(moments, [0.0, *moments], strict=False):
            print(f"OSCBENCH_KILL_SEED={SEED}: the {waiting[0]} to be killed at {moment:.2f} of {quiet.seconds:.2f} s")
            if not run.work_for(moment - before):
                break
            if run.kill(waiting[0]):
                waiting.pop(0)
        assert not run.work_for(LONGEST_RUN)
        cells = cells_of(run.out)
        assert without_folders(cells) == without_folders(quiet.cells)
        pd.testing.assert_frame_equal(run.runs.trials(), quiet.trials)
        assert cells == cells_of(runs_out(run.runs))
        if not waiting:
            break
    assert not waiting, f"never struck: {waiting}"


def runs_out(runs: BenchmarkRuns) -> str:
    """What the command prints when there is nothing left to do."""
    process = runs.start()
    out, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return out


def without_folders(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in cell.items() if name != "folder"} for cell in cells]
