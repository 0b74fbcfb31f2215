"""kill -9 of a worker and of the driver in the middle of training: the final weights are those of a quiet run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import train_driver
from processes import (
    SEED,
    descendants,
    earlier_and_earlier,
    kill_one,
    named_below,
    title,
    wait_for_the_end_of,
    wait_until,
)
from train_driver import make_job

from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.epoch_metrics import EPOCHS, read_epochs, validation_metrics
from oscbench.training.loop import Place, validate
from oscbench.training.run import _Session, run_training
from oscbench.training.workers import Workers

pytestmark = pytest.mark.ray

N_EPOCHS = 6


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    print(f"moments of killing: OSCBENCH_KILL_SEED={SEED}")  # pytest shows it when the test fails
    return random.Random(f"{SEED} {request.node.name}")


def assert_equal_weights(first: Path, second: Path) -> None:
    one, other = (Checkpoint.load(folder / LAST) for folder in (first, second))
    assert one.epoch == other.epoch == N_EPOCHS
    for name, value in one.model.items():
        assert torch.equal(value, other.model[name]), f"{name} differs"


def finished_epochs(folder: Path) -> int:
    return len(read_epochs(folder / EPOCHS))


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbs: its folder, whose weights the others must reach, and how long it took."""

    folder: Path
    seconds: float

    @property
    def images(self) -> Path:
        return self.folder.parent / "images"


# --- a worker ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Undisturbed:
    """An undisturbed run with two workers."""
    from oscbench.distributed.train import WorkerShare, train_on_ray

    folder = tmp_path_factory.mktemp("quiet")
    shown: list[float] = []
    job = make_job(folder / "images", folder / "run", workers=2, epochs=N_EPOCHS)
    started = time.monotonic()
    train_on_ray(job, WorkerShare(), on_epoch=lambda row: shown.append(row["epoch"]))
    seconds = time.monotonic() - started
    assert shown == list(range(1, N_EPOCHS + 1))
    assert sorted(path.name for path in (folder / "run").iterdir()) == ["best.pth", "epochs.csv", "last.pth"]
    return Undisturbed(folder / "run", seconds)


def assert_figures_of_one_process(folder: Path, workers: int) -> None:
    """The last epoch's figures are those of the final weights on all samples, each counted once."""
    job = make_job(folder.parent / "images", folder, workers=workers, epochs=N_EPOCHS)
    session = _Session(job, Workers(), torch.device("cpu"))
    batches = session.val_loader.epoch(0, np.arange(len(job.val)), 8)
    found = validate(session.network, batches, session.criterion, 4, Place(torch.device("cpu")), Workers())
    session.close()
    reported = read_epochs(folder / EPOCHS)[-1]
    for name, value in validation_metrics(found, n_outputs=4, n_known=4).items():
        assert reported[name] == pytest.approx(value, rel=1e-4, nan_ok=True), name


def test_two_workers_count_each_validation_sample_once(quiet: Undisturbed) -> None:
    assert_figures_of_one_process(quiet.folder, workers=2)


TRAIN_WORKER = ("ray::RayTrainWorker", "ray::_RayTrainWorker")


def train_and_kill_a_worker(
    quiet: Undisturbed, folder: Path, delay: float, chance: random.Random, *, after_first_epoch: bool = False
) -> int | None:
    """Trains as the quiet run did and kills one worker so many seconds after the start, or after the first epoch.

    A worker that is not there yet is waited for.

    Returns:
        How many epochs were finished when a worker was struck; ``None`` when training was over before.
    """
    from oscbench.distributed.train import WorkerShare, train_on_ray

    wait_until(lambda: not named_below(os.getpid(), TRAIN_WORKER), "the workers of an earlier training to end")
    over, struck = threading.Event(), list[int]()

    def kill() -> None:
        while after_first_epoch and not finished_epochs(folder) and not over.wait(0.01):
            pass
        over.wait(delay)
        while not over.wait(0.01):
            epochs = finished_epochs(folder)
            if kill_one(os.getpid(), TRAIN_WORKER, chance):
                struck.append(epochs)
                return

    job = make_job(quiet.images, folder, workers=2, epochs=N_EPOCHS)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        train_on_ray(job, WorkerShare())
    finally:
        over.set()
        killer.join()
    return struck[0] if struck else None


def test_a_killed_worker_does_not_change_the_final_weights(
    quiet: Undisturbed, tmp_path: Path, chance: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    between = sum(row["seconds"] for row in read_epochs(quiet.folder / EPOCHS)[1:-1])
    for moment in earlier_and_earlier("a worker, after the first epoch,", chance.random(), between):
        folder = tmp_path / str(moment)
        epochs = train_and_kill_a_worker(quiet, folder, moment, chance, after_first_epoch=True)
        assert_equal_weights(quiet.folder, folder)
        if epochs is not None and epochs < N_EPOCHS:
            break
    assert "a worker was lost" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(3))
def test_a_worker_killed_at_any_moment(quiet: Undisturbed, tmp_path: Path, chance: random.Random, repeat: int) -> None:
    """Every other one is killed among the epochs: most of so short a run is its start."""
    among_epochs = repeat % 2 == 1
    seconds = sum(row["seconds"] for row in read_epochs(quiet.folder / EPOCHS)) if among_epochs else quiet.seconds
    for moment in earlier_and_earlier("a worker", chance.random(), seconds):
        folder = tmp_path / str(moment)
        epochs = train_and_kill_a_worker(quiet, folder, moment, chance, after_first_epoch=among_epochs)
        assert_equal_weights(quiet.folder, folder)
        if epochs is not None:
            print(f"struck after {epochs} of {N_EPOCHS} epochs")
            break


# --- a node ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_node_does_not_change_the_final_weights(quiet: Undisturbed, tmp_path: Path) -> None:
    """Two workers on three nodes of one CPU each; the third node takes over."""
    script = Path(train_driver.__file__).with_name("node_loss_driver.py")
    command = [sys.executable, str(script), str(quiet.images), str(tmp_path / "run"), str(N_EPOCHS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "lost a node" in done.stdout
    assert "a worker was lost" in done.stderr
    assert_equal_weights(quiet.folder, tmp_path / "run")


# --- the driver --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    started = time.monotonic()
    finish(folder.parent / "images", folder)
    return Undisturbed(folder, time.monotonic() - started)


def start_driver(images: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, train_driver.__file__, str(images), str(folder), "1", str(N_EPOCHS)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def finish(images: Path, folder: Path) -> None:
    driver = start_driver(images, folder)
    _, errors = driver.communicate(timeout=900)
    assert driver.returncode == 0, errors.decode()


RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "runtime_env/agent/main.py")
"""Titles of Ray's agents, before and after they give themselves one: they outlive their Ray by a minute or more."""


def kill_driver(driver: subprocess.Popen[bytes], delay: float) -> bool:
    """kill -9 of the driver alone; the Ray it started must end by itself.

    Most of it is gone within seconds; a worker that was just being started looks for its Ray for half a minute.

    Returns:
        Whether the driver was still there to be struck.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.wait(delay)
    below = [pid for pid in descendants(driver.pid) if not any(name in title(pid) for name in RAY_AGENTS)]
    driver.kill()
    driver.wait()
    wait_for_the_end_of(below, "the killed driver's Ray")
    return driver.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_driver_on_ray_trains_as_the_loop_without_ray_does(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run_training(make_job(undisturbed.images, tmp_path, workers=1, epochs=N_EPOCHS), Workers(), torch.device("cpu"))
    assert_equal_weights(undisturbed.folder, tmp_path)


@pytest.mark.slow
def test_a_killed_driver_goes_on_to_the_same_final_weights(
    undisturbed: Undisturbed, tmp_path: Path, chance: random.Random
) -> None:
    """Killed after the first epoch; at the latest, on a machine that got faster meanwhile, while its Ray ends."""
    between = sum(row["seconds"] for row in read_epochs(undisturbed.folder / EPOCHS)[1:-1])
    for moment in earlier_and_earlier("the driver, after its first epoch,", chance.random(), between):
        folder = tmp_path / str(moment)
        driver = start_driver(undisturbed.images, folder)
        wait_until(lambda folder=folder: finished_epochs(folder) > 0, "the first epoch")
        struck = kill_driver(driver, moment)
        finish(undisturbed.images, folder)
        assert_equal_weights(undisturbed.folder, folder)
        assert [row["epoch"] for row in read_epochs(folder / EPOCHS)] == list(range(1, N_EPOCHS + 1))
        if struck:
            break


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(3))
def test_a_driver_killed_at_any_moment(
    undisturbed: Undisturbed, tmp_path: Path, chance: random.Random, repeat: int
) -> None:
    for moment in earlier_and_earlier("the driver", chance.random(), undisturbed.seconds):
        folder = tmp_path / str(moment)
        struck = kill_driver(start_driver(undisturbed.images, folder), moment)
        finish(undisturbed.images, folder)
        assert_equal_weights(undisturbed.folder, folder)
        if struck:
            break
