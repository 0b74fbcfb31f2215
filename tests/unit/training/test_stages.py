"""What a stage does with what is already there; Ray is replaced by a call in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import write_split

from oscbench.artifacts import META, Meta
from oscbench.data.samples import write_samples
from oscbench.distributed import features_stage, training_stage
from oscbench.distributed.cluster import Resources
from oscbench.distributed.estimate import forward_flops
from oscbench.distributed.stages import Execution, default_config, ensure_features, ensure_training
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import load_feature_folder
from oscbench.pipeline import Workspace, ensure_samples, read_split_samples
from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.rundir import RunDir
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.extract import extract_rows
from oscbench.training.recipes import Recipe, TrainConfig
from oscbench.training.run import run_training
from oscbench.training.workers import Workers

PIL = Execution(loader="pil")


@dataclasses.dataclass(frozen=True)
class SmallWorkspace(Workspace):
    """A workspace whose images are small."""

    stored_side = 32
    crop = 28


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "images"
    write_split(root, "train", [0, 1, 2, -1] * 10)
    write_split(root, "val", [0, 1, 2, -1, -2] * 3)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    protocol = make_protocol("small", roles, "test")
    write_protocol(tmp_path / "small.yaml", protocol)
    return SmallWorkspace(RunDir(tmp_path / "runs", "images", "small"), protocol, root)


@pytest.fixture(autouse=True)
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Runs stages in this process; the settings of the trainings that were run."""
    ran: list[TrainConfig] = []

    @contextlib.contextmanager
    def connect(address: str | None = None) -> Iterator[Resources]:
        yield Resources(cpus=1, gpus=0, nodes=1)

    def train(job, share, on_epoch):  # noqa: ANN001, ANN202
        ran.append(job.config)
        return list(run_training(job, Workers(), torch.device("cpu"), on_epoch))

    def extract(job, share, progress):  # noqa: ANN001, ANN202
        return extract_rows(job, np.arange(len(job.split)), torch.device("cpu"))

    monkeypatch.setattr("oscbench.distributed.execution.fair_cpus", lambda workers, gpus: 1)
    monkeypatch.setattr(training_stage, "require", lambda **request: None)
    for module in (training_stage, features_stage):
        monkeypatch.setattr(module, "connect", connect)
        monkeypatch.setattr(module, "ensure_beton", lambda workspace, **options: _samples(workspace))
    monkeypatch.setattr(training_stage, "train_on_ray", train)
    monkeypatch.setattr(features_stage, "extract_on_ray", extract)
    return ran


def _samples(workspace: Workspace) -> None:
    from oscbench.pipeline import ensure_samples

    ensure_samples(workspace)


def small(workspace: Workspace, loss: str = "softmax", **recipe: object) -> TrainConfig:
    settings = {"epochs": 2, "batch_size": 8} | recipe
    return dataclasses.replace(default_config(workspace, loss=loss), network="tiny", recipe=Recipe(**settings))


def test_defaults_are_as_published_for_images_and_tiny_for_the_embedded_data(workspace: Workspace) -> None:
    from oscbench.data.demo import DemoConfig

    real = default_config(workspace, loss="eos")
    assert (real.network, real.recipe.epochs, real.embedding_size) == ("resnet50", 120, None)
    demo = default_config(dataclasses.replace(workspace, demo=DemoConfig()), loss="eos")
    assert demo.network == "tiny"
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        default_config(workspace, loss="sotfmax")


def test_a_finished_training_is_not_run_again(workspace: Workspace, trainings: list) -> None:
    first = ensure_training(workspace, loss="softmax", config=small(workspace), execution=PIL)
    second = ensure_training(workspace, loss="softmax", config=small(workspace), execution=PIL)
    whatever = ensure_training(workspace, loss="softmax", execution=PIL)
    assert len(trainings) == 1
    assert first.fingerprint == second.fingerprint == whatever.fingerprint
    assert first.details["last"]["epoch"] == 2
    text = (workspace.run.training("softmax", 0) / META).read_text()
    assert "NaN" not in text  # JSON has none
    assert Meta.read(workspace.run.training("softmax", 0), "train").n_outputs == 3


def test_another_training_is_kept_beside_the_new_one(workspace: Workspace, trainings: list) -> None:
    first = ensure_training(workspace, loss="softmax", config=small(workspace), execution=PIL)
    ensure_training(workspace, loss="softmax", config=small(workspace, epochs=1), execution=PIL)
    assert len(trainings) == 2
    (kept,) = workspace.run.training("softmax", 0).parent.glob("train-*")
    assert Meta.read(kept, "train").fingerprint == first.fingerprint


def interrupted(workspace: Workspace) -> Path:
    def stop(row: dict) -> None:
        raise KeyboardInterrupt

    execution = dataclasses.replace(PIL, on_epoch=stop)
    with pytest.raises(KeyboardInterrupt):
        ensure_training(workspace, loss="eos", config=small(workspace, "eos"), execution=execution)
    folder = workspace.run.training("eos", 0)
    assert not (folder / META).exists()
    assert Checkpoint.load(folder / LAST).epoch == 1
    return folder


def test_an_interrupted_training_goes_on_with_its_own_settings(workspace: Workspace) -> None:
    folder = interrupted(workspace)
    seen: list[float] = []
    execution = dataclasses.replace(PIL, on_epoch=lambda row: seen.append(row["epoch"]))
    meta = ensure_training(workspace, loss="eos", execution=execution)  # whoever needs it need not know the settings
    assert seen == [2]
    assert (meta.config["network"], meta.details["epochs"]) == ("tiny", 2)
    assert (folder / META).exists()


def test_restart_begins_anew(workspace: Workspace) -> None:
    interrupted(workspace)
    seen: list[float] = []
    execution = dataclasses.replace(PIL, resume=False, on_epoch=lambda row: seen.append(row["epoch"]))
    ensure_training(workspace, loss="eos", config=small(workspace, "eos"), execution=execution)
    assert seen == [1, 2]


def test_a_finished_training_is_run_again_only_when_told_to(workspace: Workspace, trainings: list) -> None:
    for resume in (True, False):
        execution = dataclasses.replace(PIL, resume=resume)
        ensure_training(workspace, loss="softmax", config=small(workspace, epochs=1), execution=execution)
    assert len(trainings) == 2


def test_a_damaged_checkpoint_is_named_and_restart_puts_it_aside(workspace: Workspace) -> None:
    folder = interrupted(workspace)
    (folder / LAST).write_bytes(b"damaged")
    with pytest.raises(OscbenchError, match=r"last.pth cannot be read"):
        ensure_training(workspace, loss="eos", config=small(workspace, "eos"), execution=PIL)
    execution = dataclasses.replace(PIL, resume=False)
    ensure_training(workspace, loss="eos", config=small(workspace, "eos", epochs=1), execution=execution)
    assert Checkpoint.load(folder / LAST).epoch == 1


def test_a_refused_request_leaves_the_earlier_training_in_place(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_training(workspace, loss="softmax", config=small(workspace), execution=PIL)

    def refuse(**request: object) -> None:
        raise UsageError("too many workers")

    monkeypatch.setattr(training_stage, "require", refuse)
    with pytest.raises(UsageError, match="too many"):
        ensure_training(workspace, loss="softmax", config=small(workspace, epochs=1), execution=PIL)
    assert Meta.read(workspace.run.training("softmax", 0), "train").details["epochs"] == 2


def test_a_long_training_that_nobody_asked_for_needs_yes(
    workspace: Workspace, trainings: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_stage, "ASK_ABOVE_SECONDS", 0.1)
    with pytest.raises(UsageError, match=r"resnet50 for protocol small with loss softmax, 120 epochs .*--yes"):
        ensure_features(workspace, loss="softmax", execution=PIL)
    assert trainings == []


def test_features_are_extracted_once_and_again_after_another_training(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ensure_training(workspace, loss="garbage", config=small(workspace, "garbage"), execution=PIL)
    folder = ensure_features(workspace, loss="garbage", execution=PIL)
    splits = load_feature_folder(folder)
    assert splits.train.logits is not None
    assert (splits.train.logits.shape[1], splits.train.n_known) == (4, 3)
    test = splits.split("test")
    assert [test.classes[place] for place in test.class_index] == ["c0"] * 3 + ["c1"] * 3 + ["c2"] * 3 + ["c-1"] * 3 + [
        "c-2"
    ] * 3
    assert set(np.unique(splits.train.labels)) == {-1, 0, 1, 2}
    before = splits.train.fingerprint
    ensure_features(workspace, loss="garbage", execution=PIL)
    assert f"features: re-using {folder}" in caplog.text
    ensure_training(workspace, loss="garbage", config=small(workspace, "garbage", epochs=1), execution=PIL)
    ensure_features(workspace, loss="garbage", execution=PIL)
    assert load_feature_folder(folder).train.fingerprint != before


def test_a_given_checkpoint_serves_with_a_warning_about_its_split(
    workspace: Workspace, tmp_path: Path, caplog: pytest.LogCaptureFixture, trainings: list
) -> None:
    from oscbench.training.model import build_network

    Checkpoint(epoch=120, model=build_network("tiny", 3).state_dict()).save(tmp_path / "published.pth")
    file = tmp_path / "published.pth"
    folder = ensure_features(workspace, loss="eos", checkpoint=file, network="tiny", execution=PIL)
    assert "published.pth was trained on the published split" in caplog.text
    assert load_feature_folder(folder).train.meta.config["checkpoint"] == "published.pth"
    ensure_features(workspace, loss="eos", execution=PIL)  # later stages take them as they are
    assert trainings == []
    with pytest.raises(UsageError, match=r"has 3 outputs .* loss garbage needs 4"):
        ensure_features(workspace, loss="garbage", checkpoint=file, network="tiny", execution=PIL)


def test_a_published_checkpoint_needs_the_published_numbers_of_each_split_and_the_order_of_classes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = ensure_samples(workspace)
    files = samples.details["files"]
    counts = {(role, split): files[split][role] for split in files for role in ("known", "negative")}
    monkeypatch.setattr(features_stage, "published_split_counts", lambda protocol: counts)
    assert features_stage._as_published(workspace, samples)
    moved = counts | {("known", "train"): counts["known", "train"] - 1, ("known", "val"): counts["known", "val"] + 1}
    monkeypatch.setattr(features_stage, "published_split_counts", lambda protocol: moved)
    assert not features_stage._as_published(workspace, samples)
    monkeypatch.setattr(features_stage, "published_split_counts", lambda protocol: counts)
    test = read_split_samples(workspace, "test")
    swapped = dataclasses.replace(test, labels=np.array([1, 0, 2, -2, -1])[test.labels])
    write_samples(workspace.run.samples / "test.csv", swapped)
    assert not features_stage._as_published(workspace, samples)
    monkeypatch.setattr(features_stage, "published_split_counts", lambda protocol: {})
    assert not features_stage._as_published(workspace, samples)


def test_an_own_checkpoint_on_its_own_samples_needs_no_warning(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_training(workspace, loss="softmax", config=small(workspace), execution=PIL)
    file = workspace.run.training("softmax", 0) / LAST
    ensure_features(workspace, loss="softmax", checkpoint=file, execution=PIL)
    assert "warning" not in caplog.text


def test_operations_of_resnet50_are_those_of_the_literature() -> None:
    # 4.09 thousand million multiply-adds (torchvision's table), two operations each
    assert forward_flops("resnet50", 224) == pytest.approx(2 * 4.09e9, rel=0.02)
