"""Ray Train: workers equal the plain loop, repeat themselves, and fail with one clear line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import small_labels, write_split

from oscbench.distributed.cluster import connect, require, resources
from oscbench.distributed.train import WorkerShare, train_on_ray
from oscbench.errors import OscbenchError, UsageError
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.recipes import Recipe, TrainConfig
from oscbench.training.run import TrainingJob, run_training
from oscbench.training.workers import Workers

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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(Checkpoint.load(folder / LAST).model)


def test_one_ray_worker_equals_the_loop_without_ray(images: tuple, tmp_path: Path) -> None:
    run_training(job(images, tmp_path / "plain"), Workers(), torch.device("cpu"))
    shown: list[float] = []
    rows = train_on_ray(job(images, tmp_path / "ray"), WorkerShare(), on_epoch=lambda row: shown.append(row["epoch"]))
    plain, on_ray = weights(tmp_path / "plain"), weights(tmp_path / "ray")
    assert all(torch.equal(plain[name], on_ray[name]) for name in plain)
    assert shown == [row["epoch"] for row in rows] == [1, 2]
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == ["best.pth", "epochs.csv", "last.pth"]


def test_two_workers_repeat_themselves_and_count_each_validation_sample_once(images: tuple, tmp_path: Path) -> None:
    rows = [train_on_ray(job(images, tmp_path / name, workers=2), WorkerShare()) for name in "ab"]
    first, second = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(first[name], second[name]) for name in first)
    # accuracy over 24 known samples is a multiple of 1/24 whatever the sharding
    assert rows[0][-1]["val_accuracy"] * 24 == pytest.approx(round(rows[0][-1]["val_accuracy"] * 24), abs=1e-3)
    # the same weights judged by one process give the same figures
    alone = dataclasses.replace(job(images, tmp_path / "a", workers=2), fingerprint="f1")
    from oscbench.training.epoch_metrics import validation_metrics
    from oscbench.training.loop import Place, validate
    from oscbench.training.run import _Session

    session = _Session(alone, Workers(), torch.device("cpu"))
    batches = session.val_loader.epoch(0, np.arange(len(alone.val)), 8)
    found = validate(session.network, batches, session.criterion, 4, Place(torch.device("cpu")), Workers())
    session.close()
    figures = validation_metrics(found, n_outputs=4, n_known=4)
    for name, value in figures.items():
        assert rows[0][-1][name] == pytest.approx(value, rel=1e-4, nan_ok=True), name


def test_an_error_of_the_data_ends_the_training_at_once(images: tuple, tmp_path: Path) -> None:
    broken = dataclasses.replace(images[0], root=tmp_path / "nowhere")
    with pytest.raises(OscbenchError, match="nowhere"):
        train_on_ray(job((broken, images[1]), tmp_path / "run"), WorkerShare())


def test_more_workers_than_there_is_room_for_are_refused_at_once(images: tuple, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"3 workers with 1 CPU each do not fit into 2 CPUs and 0 GPUs .*--num-workers 2"
    ):
        train_on_ray(job(images, tmp_path, workers=3), WorkerShare())
    with pytest.raises(UsageError, match=r"1 CPU and 1 GPU each .* 0 GPUs .*ask for less"):
        require(resources(), workers=1, cpus_per_worker=1, gpus_per_worker=1)


def test_an_inner_connection_leaves_the_outer_one_open() -> None:
    import ray

    with connect() as have:
        assert have.cpus == 2
    assert ray.is_initialized()
