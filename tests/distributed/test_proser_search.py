"""PROSER through Tune and Train: killed anywhere it goes on to the same weights, with one worker and with two."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch
from processes import SEED, earlier_and_earlier, kill_one, named_below, wait_for_the_end_of
from small_images import write_split

from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.tuning.trials import read_trials

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EPOCHS, DUMMIES = 4, (1, 3)
VOLATILE = ["seconds", "finished_at"]
TRIAL = ("ray::ImplicitFunc", "ray::training_trial")
TRAIN_WORKER = ("ray::RayTrainWorker", "ray::_RayTrainWorker")


@dataclass(frozen=True)
class User:
    """A folder with images and a protocol, and what a command has left in its runs."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def room(self) -> Path:
        return self.runs / "images" / "small"

    def command(self, verb: str, *options: str) -> list[str]:
        where = ["--protocol", "small.yaml", "--data", "images", "--runs", "runs", "--loader", "pil"]
        return [sys.executable, "-m", "oscbench", verb, *where, "--loss", "eos", *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        settings = ["--set", f"dummies={','.join(map(str, DUMMIES))}", "--set", f"epochs={EPOCHS}"]
        counting = Path(__file__).parents[1] / "data" / "counted_epochs"
        path = os.pathsep.join([str(counting), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return subprocess.Popen(
            self.command("tune", "--alg", "proser", *settings, "--resume", *options),
            env=os.environ | {"PYTHONPATH": path, "COUNTED_EPOCHS": str(self.folder / "epochs.log")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def finish(self, *options: str) -> None:
        process = self.start(*options)
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors

    def table(self) -> pd.DataFrame:
        (path,) = self.room.glob("tune-*/trials.csv")
        return read_trials(path).sort_values("dummies", ignore_index=True).drop(columns=VOLATILE)

    def weights(self) -> dict[str, Checkpoint]:
        return {path.parent.name: Checkpoint.load(path) for path in sorted(self.room.glob(f"finetune-*/{LAST}"))}

    def epochs(self) -> dict[str, list[int]]:
        """The epochs that each network was trained for, in every process that did."""
        found: dict[str, list[int]] = collections.defaultdict(list)
        for line in (self.folder / "epochs.log").read_text().splitlines():
            name, epoch = line.split()
            found[name].append(int(epoch))
        return dict(found)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> User:
    """A user whose base network is there."""
    user = User(tmp_path_factory.mktemp("user"))
    write_split(user.folder / "images", "train", [0, 1, 2, -1] * 16)
    write_split(user.folder / "images", "val", [0, 1, 2, -1, -2] * 8)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    write_protocol(user.folder / "small.yaml", make_protocol("small", roles, "test"))
    small = ["--network", "tiny", "--epochs", "2", "--batch-size", "8"]
    subprocess.run(user.command("train", *small, "--local"), cwd=user.folder, check=True, timeout=600)
    return user


def copy_of(user: User, folder: Path) -> User:
    shutil.copytree(user.folder, folder, symlinks=True)
    (folder / "epochs.log").write_text("")
    return User(folder)


@dataclass(frozen=True)
class Undisturbed:
    """A search that nobody disturbs, and how long it took."""

    user: User
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(trained: User, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    user = copy_of(trained, tmp_path_factory.mktemp("undisturbed") / "copy")
    started = time.monotonic()
    user.finish()
    assert user.epochs() == dict.fromkeys(user.weights(), list(range(1, EPOCHS + 1)))
    return Undisturbed(user, time.monotonic() - started)


def assert_as_undisturbed(user: User, undisturbed: Undisturbed) -> None:
    pd.testing.assert_frame_equal(user.table(), undisturbed.user.table())
    expected, found = undisturbed.user.weights(), user.weights()
    assert set(found) == set(expected)
    for name, checkpoint in expected.items():
        assert checkpoint.epoch == found[name].epoch == EPOCHS
        for part, value in checkpoint.model.items():
            assert torch.equal(value, found[name].model[part]), f"{part} of {name} differs"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    print(f"moments of killing: OSCBENCH_KILL_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


def test_the_table_joins_those_of_other_algorithms(undisturbed: Undisturbed) -> None:
    table = undisturbed.user.table()
    assert table["dummies"].tolist() == list(DUMMIES)
    assert table["status"].tolist() == ["done"] * len(DUMMIES)
    assert set(table["algorithm"]) == {"proser"}
    assert table["sum"].between(0, 4).all()


@pytest.mark.parametrize("repeat", range(2))
def test_a_driver_killed_at_any_moment_goes_on_to_the_same_weights(
    trained: User, undisturbed: Undisturbed, tmp_path: Path, chance: random.Random, repeat: int
) -> None:
    for moment in earlier_and_earlier("the driver", chance.random(), undisturbed.seconds):
        user = copy_of(trained, tmp_path / f"{moment:.3f}")
        driver = user.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(moment)
        below = named_below(driver.pid, TRIAL)
        driver.kill()
        driver.communicate()
        wait_for_the_end_of(below, "the killed driver's trials")
        finished = {path.parent.name for path in user.room.glob("finetune-*/meta.json")}
        before = user.epochs()
        user.finish()
        assert_as_undisturbed(user, undisturbed)
        again = {name: epochs[len(before.get(name, [])) :] for name, epochs in user.epochs().items()}
        assert all(not again[name] for name in finished)  # a finished setting is never trained again
        if driver.returncode == -signal.SIGKILL:
            break


def test_a_trial_killed_at_any_moment_goes_on_to_the_same_weights(
    trained: User, undisturbed: Undisturbed, tmp_path: Path, chance: random.Random
) -> None:
    for moment in earlier_and_earlier("a trial", chance.random(), undisturbed.seconds):
        user = copy_of(trained, tmp_path / f"{moment:.3f}")
        driver = user.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(moment)
        struck = False
        while driver.poll() is None and not struck:  # one that is not there yet is waited for
            struck = kill_one(driver.pid, TRIAL, chance)
            time.sleep(0.01)
        _, errors = driver.communicate(timeout=1200)
        assert driver.returncode == 0, errors
        assert_as_undisturbed(user, undisturbed)
        if struck:
            break


def test_two_workers_of_a_trial_go_on_to_the_same_weights_after_one_is_lost(
    trained: User, tmp_path: Path, chance: random.Random
) -> None:
    quiet = copy_of(trained, tmp_path / "quiet")
    started = time.monotonic()
    quiet.finish("--num-workers", "2", "--cpus-per-worker", "1")
    seconds = time.monotonic() - started
    assert quiet.table()["status"].tolist() == ["done"] * len(DUMMIES)
    for moment in earlier_and_earlier("a worker", chance.random(), seconds):
        user = copy_of(trained, tmp_path / f"{moment:.3f}")
        driver = user.start("--num-workers", "2", "--cpus-per-worker", "1")
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(moment)
        struck = False
        while driver.poll() is None and not struck:
            struck = kill_one(driver.pid, TRAIN_WORKER, chance)
            time.sleep(0.01)
        _, errors = driver.communicate(timeout=1200)
        assert driver.returncode == 0, errors
        assert_as_undisturbed(user, Undisturbed(quiet, seconds))
        if struck:
            break
