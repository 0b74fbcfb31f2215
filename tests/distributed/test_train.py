"""Ray Train: workers equal the plain loop, repeat themselves, and fail with one clear line."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from processes import wait_until
from ray import cloudpickle
from small_images import small_labels, write_split

from oscbench.data.loading import DataSplit
from oscbench.distributed.cluster import connect, fair_cpus, require
from oscbench.distributed.extract import extract_on_ray
from oscbench.distributed.train import WorkerShare, _raise_if_final, train_on_ray
from oscbench.errors import OscbenchError, UsageError
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.epoch_metrics import EPOCHS
from oscbench.training.extract import ExtractionJob, extract_rows
from oscbench.training.job import TrainingJob
from oscbench.training.model import build_network
from oscbench.training.recipes import Recipe, TrainConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    root = tmp_path_factory.mktemp("images")
    return write_split(root, "train", small_labels(4, 12, 11)), write_split(root, "val", small_labels(4, 6, 9))


def job(images: tuple, folder: Path, *, workers: int = 1, loss: str = "eos", **recipe: object) -> TrainingJob:
    settings = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3} | recipe
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(loss=loss, network="tiny", crop=28, stored_side=32, recipe=Recipe(**settings), workers=workers)
    return TrainingJob(
        config=config, folder=folder, train=images[0], val=images[1], n_known=4, what="test", fingerprint="f1"
    )


def test_epochs_come_with_the_reports_whatever_the_driver_sees_on_disk(images: tuple, tmp_path: Path) -> None:
    shown: list[float] = []

    def hide(row: dict) -> None:
        shown.append(row["epoch"])
        (tmp_path / EPOCHS).unlink(missing_ok=True)

    rows = train_on_ray(job(images, tmp_path), WorkerShare(), on_epoch=hide)
    assert shown == [1, 2]
    assert tuple(rows) == Checkpoint.load(tmp_path / LAST).history
    longer = job(images, tmp_path, epochs=3)
    more = train_on_ray(longer, WorkerShare(), on_epoch=hide)
    assert shown == [1, 2, 3]  # those of the earlier run were shown there
    assert more[:2] == rows
    assert train_on_ray(longer, WorkerShare(), on_epoch=hide) == more  # finished before it starts
    assert shown == [1, 2, 3]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stopped_training_leaves_nothing_that_runs(images: tuple, tmp_path: Path, stop: type) -> None:
    def interrupt(row: dict) -> None:
        raise stop

    with pytest.raises(stop):
        train_on_ray(job(images, tmp_path, epochs=500), WorkerShare(), on_epoch=interrupt)
    # A thread that asked Ray while Ray is shut down would end the process with code 1.
    assert not [thread for thread in threading.enumerate() if thread.name == "ray-train"]
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], "all CPUs to be free")
    assert len(Checkpoint.load(tmp_path / LAST).history) < 500


class LoudSplit(DataSplit):
    """Warns whenever it is counted."""

    def __len__(self) -> int:
        logging.getLogger("oscbench.data").warning("these images\nare loud")
        return DataSplit.__len__(self)


@pytest.fixture
def loud(images: tuple) -> Iterator[tuple]:
    """The images as workers can unpickle them, which do not have this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield tuple(LoudSplit(split.root, split.samples) for split in images)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.slow
def test_what_workers_warn_of_is_said_once_here(
    images: tuple, loud: tuple, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_on_ray(job((images[0], loud[1]), tmp_path, workers=2), WorkerShare())
    extraction = extraction_of(loud[1], tmp_path)
    assert [record.getMessage() for record in caplog.records].count("these images are loud") == 1
    caplog.clear()
    extract_on_ray(extraction, WorkerShare())
    assert [record.getMessage() for record in caplog.records].count("these images are loud") == 1


@pytest.mark.slow
def test_an_error_of_the_data_ends_the_training_at_once(images: tuple, tmp_path: Path) -> None:
    broken = dataclasses.replace(images[0], root=tmp_path / "nowhere")
    with pytest.raises(OscbenchError, match="nowhere"):
        train_on_ray(job((broken, images[1]), tmp_path / "run"), WorkerShare())


def test_errors_of_ours_are_final_and_lost_workers_are_not() -> None:
    from ray.train import WorkerGroupError
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    ours = UserExceptionWithTraceback(OscbenchError("the disk is full"), "Traceback ...")
    theirs = UserExceptionWithTraceback(RuntimeError("Connection closed by peer"), "Traceback ...")
    _raise_if_final(WorkerGroupError("x", {0: theirs}))
    with pytest.raises(OscbenchError, match="the disk is full"):
        _raise_if_final(WorkerGroupError("x", {0: theirs, 1: ours}))
    with pytest.raises(OscbenchError, match="Ray Train failed: no such thing"):
        _raise_if_final(ValueError("no such thing"))


def extraction_of(split: DataSplit, folder: Path) -> ExtractionJob:
    torch.manual_seed(0)
    Checkpoint(epoch=1, model=build_network("tiny", 4).state_dict()).save(folder / "w.pth")
    return ExtractionJob(
        checkpoint=folder / "w.pth",
        network="tiny",
        n_outputs=4,
        n_known=4,
        what="test",
        split=split,
        crop=28,
        stored_side=32,
    )


def test_extraction_over_tasks_equals_extraction_in_one_go(images: tuple, tmp_path: Path) -> None:
    extraction = extraction_of(images[1], tmp_path)
    done: list[int] = []
    on_ray = extract_on_ray(extraction, WorkerShare(), lambda n, total: done.append(n))
    alone = extract_rows(extraction, np.arange(len(images[1])), torch.device("cpu"))
    assert done[-1] == len(images[1])
    np.testing.assert_array_equal(on_ray.ids, alone.ids)
    np.testing.assert_array_equal(on_ray.labels, alone.labels)
    np.testing.assert_allclose(on_ray.pooled, alone.pooled, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="w.pth has 4 outputs"):
        extract_on_ray(dataclasses.replace(extraction, n_outputs=5), WorkerShare())


def test_more_workers_than_there_is_room_for_are_refused_at_once(images: tuple, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"3 workers with 1 CPU each do not fit into 2 CPUs and 0 GPUs .*--num-workers 2"
    ):
        train_on_ray(job(images, tmp_path, workers=3), WorkerShare())
    with pytest.raises(UsageError, match=r"1 CPU and 1 GPU each .* 0 GPUs .*ask for less"):
        require(workers=1, cpus_per_worker=1, gpus_per_worker=1)


def test_an_inner_connection_leaves_the_outer_one_open() -> None:
    import ray

    with connect() as have:
        assert have.cpus == 2
    assert ray.is_initialized()


def test_cpus_are_shared_out_fairly() -> None:
    assert [fair_cpus(workers, 0) for workers in (1, 2, 3)] == [2, 1, 1]


WITHOUT_FFCV = """
import dataclasses, os, sys
from pathlib import Path
import ray, torch
from small_images import write_split
from oscbench.data.convert import ConvertConfig, convert_split
from oscbench.data.loading import decide_loader
from oscbench.distributed.extract import extract_on_ray
from oscbench.distributed.train import WorkerShare, train_on_ray
from oscbench.errors import OscbenchError
from test_train import extraction_of, job

folder = Path(sys.argv[1])
split = write_split(folder, "train", [0, 1, 2, 3] * 6)
convert_split(split.root, split.samples, folder / "train.beton", ConvertConfig(side=32))
split = dataclasses.replace(split, beton=folder / "train.beton")
(folder / "broken" / "ffcv").mkdir(parents=True)
(folder / "broken" / "ffcv" / "__init__.py").write_text("raise ImportError('no OpenCV on this node')")
path = os.pathsep.join([str(folder / "broken"), os.environ["PYTHONPATH"]])
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": {"PYTHONPATH": path}})
loader = decide_loader("auto", converted=True)
print("decided:", loader)
extraction = dataclasses.replace(extraction_of(split, folder), loader=loader)
training = dataclasses.replace(job((split, split), folder / "run"), loader=loader)
for work in (lambda: extract_on_ray(extraction, WorkerShare()), lambda: train_on_ray(training, WorkerShare())):
    try:
        work()
        print("computed with other pixels")
    except OscbenchError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.ffcv
def test_a_worker_without_ffcv_says_so_instead_of_taking_other_pixels(tmp_path: Path) -> None:
    """Here FFCV is installed; on the workers a package that cannot be imported stands before it."""
    tests = Path(__file__).parent
    places = [str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FFCV, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    decided, *errors = done.stdout.splitlines()
    assert decided == "decided: ffcv"
    expected = (
        f"ffcv cannot be imported (no OpenCV on this node) on {socket.gethostname()}, so {tmp_path / 'train.beton'} "
        "cannot be read there; install FFCV on it (`oscbench doctor` says how), or use --loader pil"
    )
    assert errors == [expected, expected]
