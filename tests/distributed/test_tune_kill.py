"""kill -9 of the driver, a trial, the service or a node at any moment: the search ends as if nothing had happened.

That no finished trial runs again is seen in the log of a post-processor that writes down each fit, not in the table.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from processes import SEED, earlier_and_earlier, kill_one, named_below, wait_until
from ray_host import RayHost
from tune_runs import PLUGIN, TuneRuns

from oscbench.tuning.trials import read_trials

pytestmark = [pytest.mark.ray]

SETTINGS = 24
MOMENTS = 9
TARGETS = ("driver", "trial", "service", "node")
PROCESSES = {
    "service": ("ray::EvaluationService",),
    "trial": ("ray::ServiceTrial", "ray::ResourceTrainable"),
    "idle trial": ("ray::ServiceTrial",),
}
"""How Ray names the processes: that of a trial while it works by the class into which Tune wraps ours."""


# --- processes ---------------------------------------------------------------------------------------------------


def kill_driver(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=900)


# --- what must hold ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_finished_trial_again(runs: TuneRuns) -> Iterator[None]:
    """What is finished at the beginning of the block is not fitted again inside it."""
    finished, fits = runs.finished(), runs.fits()
    yield
    again = {setting for setting in finished if runs.fits()[setting] != fits[setting]}
    assert not again, f"finished trials that ran again: {again}"


def finish_and_check(runs: TuneRuns, undisturbed: pd.DataFrame, *arguments: str) -> None:
    """Resumes; finished trials stay untouched, the rest is done, the table equals the undisturbed one."""
    with no_finished_trial_again(runs):
        result = runs.result("--resume", *arguments)
    assert result["searches"][0]["trials"] == SETTINGS
    check(runs, undisturbed)


def check(runs: TuneRuns, undisturbed: pd.DataFrame) -> None:
    """Every setting was fitted and is there once, with the row of the undisturbed run."""
    assert set(runs.fits()) >= runs.finished()
    assert len(runs.finished()) == SETTINGS
    pd.testing.assert_frame_equal(runs.table(), undisturbed)


@pytest.fixture(scope="module")
def host() -> Iterator[RayHost]:
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"counted-{os.getpid()}.log"
    environment = {"PYTHONPATH": str(PLUGIN), "COUNTED_LOG": str(log)}
    with RayHost(**environment) as started:
        yield started
    log.unlink(missing_ok=True)
    Path(f"{log}.seconds").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def undisturbed(host: RayHost, tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, float, Path]:
    """The table of a run that nobody disturbs, how long it takes, and its features."""
    runs = on(host, tmp_path_factory.mktemp("undisturbed"), None)
    started = time.monotonic()
    runs.result(*there(host))
    seconds = time.monotonic() - started
    assert all(count == 1 for count in runs.fits().values())
    assert len(runs.fits()) == SETTINGS
    return runs.table(), seconds, runs.features


def there(host: RayHost) -> tuple[str, ...]:
    """On the test cluster, with two trials at once: starting their processes is what a run waits for."""
    return "--address", host.address, "--max-concurrent", "2"


def on(host: RayHost, folder: Path, features: Path | None, seconds: float = 0.12) -> TuneRuns:
    """Runs on the test cluster."""
    log = Path(host.environment["COUNTED_LOG"])
    return TuneRuns(folder, features, log=log, seconds=seconds, **host.environment)


# --- the tests ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_driver_with_a_ray_of_its_own(tmp_path: Path, undisturbed: tuple[pd.DataFrame, float, Path]) -> None:
    runs = TuneRuns(tmp_path, undisturbed[2], seconds=0.1)
    process = runs.start()
    wait_until(lambda: len(runs.finished()) >= 5, "finished trials")
    kill_driver(process)
    assert 5 <= len(runs.finished()) < SETTINGS
    refused = runs.run()  # the same command asks one question; without a terminal it says how to answer
    assert refused.returncode == 2
    assert "add --resume" in refused.stderr
    finish_and_check(runs, undisturbed[0])


@pytest.mark.slow
def test_killed_service_and_trial_heal_without_help(
    host: RayHost, tmp_path: Path, undisturbed: tuple[pd.DataFrame, float, Path]
) -> None:
    runs = on(host, tmp_path, undisturbed[2])
    process = runs.start(*there(host))
    wait_until(lambda: len(runs.finished()) >= 2, "finished trials")
    assert kill_one(host.pid, PROCESSES["service"])
    before = len(runs.finished())
    wait_until(lambda: len(runs.finished()) > before, "a new service's first trial")
    idle = PROCESSES["idle trial"]
    wait_until(lambda: kill_one(host.pid, idle), "an idle trial")  # which Tune alone would give up
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    pd.testing.assert_frame_equal(runs.table(), undisturbed[0])


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(
    host: RayHost, tmp_path: Path, undisturbed: tuple[pd.DataFrame, float, Path]
) -> None:
    runs = on(host, tmp_path, undisturbed[2], seconds=0.3)
    process = runs.start(*there(host))
    wait_until(lambda: len(runs.finished()) >= 2, "finished trials")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 130, errors
    assert out == ""
    kept = len(runs.finished())
    assert 2 <= kept < SETTINGS
    begin, *between, last = errors.splitlines()
    assert last == f"interrupted, {kept} of {SETTINGS} trials are kept; run the same command again to go on"
    assert not [line for line in (begin, *between) if "Traceback" in line or "raylet" in line], errors
    finish_and_check(runs, undisturbed[0], *there(host))


@pytest.mark.slow
def test_two_searches_at_once_do_not_mix(
    host: RayHost, tmp_path: Path, undisturbed: tuple[pd.DataFrame, float, Path]
) -> None:
    runs = on(host, tmp_path, undisturbed[2], seconds=0.6)
    first = runs.start(*there(host))
    wait_until(lambda: len(runs.finished()) >= 1, "finished trials")
    same = runs.run(*there(host), "--resume")
    assert first.poll() is None, "the first search was over too soon for this test"
    assert same.returncode == 1
    assert "is in use by process" in same.stderr.splitlines()[-1]
    other = runs.result(*there(host), "--set", "tail_size=4", "--set", "shift=0.3")
    _, errors = first.communicate(timeout=900)
    assert first.returncode == 0, errors
    assert other["searches"][0]["trials"] == 1
    tables = {path.parent.name: read_trials(path) for path in runs.runs.rglob("trials.csv")}
    assert sorted(map(len, tables.values())) == [1, SETTINGS]


def moments() -> list[tuple[str, float]]:
    """A moment each, uniform over the run time, with the target's turn."""
    rng = random.Random(SEED)
    return [(TARGETS[i % len(TARGETS)], rng.random()) for i in range(MOMENTS)]


def strike(host: RayHost, process: subprocess.Popen[str], target: str) -> bool:
    """kill -9 of the target, which is waited for as long as the search runs; whether it struck before the end."""
    if target == "driver":
        kill_driver(process)
        return process.returncode == -signal.SIGKILL
    if target == "node":
        host.tell("drop")
        return process.poll() is None
    while process.poll() is None:
        if kill_one(host.pid, PROCESSES[target]):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("target", "share"), moments())
def test_killed_at_any_moment(
    target: str, share: float, host: RayHost, tmp_path: Path, undisturbed: tuple[pd.DataFrame, float, Path]
) -> None:
    table, seconds, features = undisturbed
    ours = PROCESSES["service"] + PROCESSES["trial"]
    for moment in earlier_and_earlier(f"the {target}", share, seconds):
        wait_until(lambda: not named_below(host.pid, ours), "an earlier search, which is no target, to end")
        runs = on(host, tmp_path / str(moment), features)
        process = runs.start(*there(host))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        with no_finished_trial_again(runs):
            struck = strike(host, process, target)
            process.communicate(timeout=900)
        if target == "node":
            host.tell("add")
        if process.returncode == 0 and len(runs.finished()) == SETTINGS:  # healed without help, or over before
            check(runs, table)
        else:
            finish_and_check(runs, table, *there(host))
        if struck:
            break
