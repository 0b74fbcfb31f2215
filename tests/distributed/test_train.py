"""Ray Train: workers equal the plain loop, repeat themselves, and fail with one clear line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import small_labels, write_split

from oscbench.distributed.cluster import connect, fair_cpus, require
from oscbench.distributed.extract import extract_on_ray
from oscbench.distributed.train import WorkerShare, _raise_if_final, train_on_ray
from oscbench.errors import OscbenchError, UsageError
from oscbench.training.checkpoint import Checkpoint
from oscbench.training.extract import ExtractionJob, extract_rows
from oscbench.training.model import build_network
from oscbench.training.recipes import Recipe, TrainConfig
from oscbench.training.run import TrainingJob

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


def test_extraction_over_tasks_equals_extraction_in_one_go(images: tuple, tmp_path: Path) -> None:
    torch.manual_seed(0)
    Checkpoint(epoch=1, model=build_network("tiny", 4).state_dict()).save(tmp_path / "w.pth")
    extraction = ExtractionJob(
        checkpoint=tmp_path / "w.pth",
        network="tiny",
        n_outputs=4,
        what="test",
        split=images[1],
        crop=28,
        stored_side=32,
    )
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
