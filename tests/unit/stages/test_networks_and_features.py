"""Trainings, given checkpoints and features, executed in this process: what is re-used, what lies side by side."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_images import write_split

from oscbench.artifacts import META
from oscbench.data.demo import DemoConfig
from oscbench.data.samples import write_samples
from oscbench.errors import OscbenchError, UsageError
from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.resources import WorkerAsk
from oscbench.stages import given_network as given_stage
from oscbench.stages.best_epoch import BestEpoch, at_best_epoch
from oscbench.stages.features import FeatureRequest, Features, OwnFeatures, requested_features
from oscbench.stages.given_network import GivenNetwork, given_network, is_published_split
from oscbench.stages.runner import LocalRunner, Session
from oscbench.stages.samples import Samples
from oscbench.stages.scores import scores_with
from oscbench.stages.stage import Room, ensure, plan
from oscbench.stages.training import Training, TrainingOptions, default_config, network_in_use, training_of
from oscbench.stages.workspace import Workspace, open_workspace
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.estimate import COUNTED, _count_flops, forward_flops
from oscbench.training.model import build_network
from oscbench.training.recipes import Recipe, TrainConfig

PIL = TrainingOptions(loader="pil", ask=WorkerAsk(cpus=1))


class CountingRunner(LocalRunner):
    """Executes in this process and writes down which networks it trained."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[TrainConfig] = []
        self.extracted: list[str] = []

    def train(self, job: Any, share: Any, on_epoch: Any) -> Any:
        self.trained.append(job.config)
        return super().train(job, share, on_epoch)

    def extract(self, job: Any, ask: Any, progress: Any) -> Any:
        self.extracted.append(job.checkpoint.parent.name)
        return super().extract(job, ask, progress)


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


@pytest.fixture
def session(runner: CountingRunner) -> Session:
    import contextlib

    return Session(lambda: contextlib.nullcontext(runner))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "images"
    write_split(root, "train", [0, 1, 2, -1] * 10)
    write_split(root, "val", [0, 1, 2, -1, -2] * 3)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    protocol = make_protocol("small", roles, "test")
    write_protocol(tmp_path / "small.yaml", protocol)
    room = Room(tmp_path / "runs", "images", "small")
    return Workspace(room, protocol, images=root, stored_side=32, crop=28)


def small(workspace: Workspace, loss: str = "softmax", **recipe: Any) -> TrainConfig:
    settings = {"epochs": 2, "batch_size": 8} | recipe
    return dataclasses.replace(default_config(workspace, loss=loss), network="tiny", recipe=Recipe(**settings))


def training(workspace: Workspace, loss: str = "softmax", on_epoch: Any = lambda row: None, **recipe: Any) -> Training:
    config = small(workspace, loss, **recipe)
    return training_of(workspace, Samples.of(workspace), config, PIL, on_epoch=on_epoch)


def in_use(workspace: Workspace, loss: str = "softmax") -> Any:
    return network_in_use(workspace, Samples.of(workspace), loss=loss, seed=0, options=PIL)


def features(workspace: Workspace, loss: str = "softmax") -> Features:
    return Features.of(workspace, in_use(workspace, loss), PIL)


def test_defaults_are_as_published_for_images_and_tiny_for_the_embedded_data(workspace: Workspace) -> None:
    real = default_config(workspace, loss="eos")
    assert (real.network, real.recipe.epochs, real.embedding_size) == ("resnet50", 120, None)
    demo = default_config(dataclasses.replace(workspace, demo=DemoConfig()), loss="eos")
    assert demo.network == "tiny"
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        default_config(workspace, loss="sotfmax")


def test_a_finished_training_is_not_run_again(workspace: Workspace, runner: CountingRunner, session: Session) -> None:
    first = training(workspace)
    ensure([first], session)
    ensure([training(workspace)], session)
    assert in_use(workspace).folder == first.folder
    ensure([in_use(workspace)], session)
    assert len(runner.trained) == 1
    assert first.result.epochs == 2
    assert first.result.last["epoch"] == 2
    text = (first.folder / META).read_text()
    assert "NaN" not in text  # JSON has none
    assert first.n_outputs == 3


def test_two_networks_and_two_recipes_of_one_loss_and_seed_live_side_by_side(
    workspace: Workspace, runner: CountingRunner, session: Session
) -> None:
    first, second = training(workspace), training(workspace, epochs=1)
    wider = dataclasses.replace(small(workspace, epochs=1), embedding_size=7)
    third = training_of(workspace, Samples.of(workspace), wider, PIL)
    ensure([first], session)
    ensure([second], session)
    ensure([third], session)
    assert len({stage.folder for stage in (first, second, third)}) == 3
    assert [stage.state() for stage in (first, second, third)] == ["done"] * 3
    assert first.origin.recipe == "published, epochs=2, batch_size=8"
    assert second.origin.recipe == "published, epochs=1, batch_size=8"
    sets = {}
    for stage in (third, first, second):
        ensure([stage], session)  # asked for by name, so it is the one in use
        made = features(workspace)
        ensure([made], session)
        train = made.load().train
        assert train.info.origin == stage.origin
        assert train.info.origin.train == stage.fingerprint
        sets[stage.folder.name] = train.embedding.shape[1], train.fingerprint
    assert len(runner.trained) == 3
    assert sets[third.folder.name][0] == 7
    assert len({fingerprint for _, fingerprint in sets.values()}) == 3
    assert runner.extracted == [stage.folder.name for stage in (third, first, second) for _ in range(3)]


def interrupted(workspace: Workspace, session: Session) -> Training:
    def stop(row: dict) -> None:
        raise KeyboardInterrupt

    stage = training(workspace, "eos", on_epoch=stop)
    with pytest.raises(KeyboardInterrupt):
        ensure([stage], session)
    assert stage.state() == "resumable"
    assert Checkpoint.load(stage.folder / LAST).epoch == 1
    return stage


def test_an_interrupted_training_goes_on_with_its_own_settings(workspace: Workspace, session: Session) -> None:
    stage = interrupted(workspace, session)
    found = in_use(workspace, "eos")  # whoever needs it need not know the settings
    assert found.folder == stage.folder
    seen: list[float] = []
    ensure([dataclasses.replace(found, on_epoch=lambda row: seen.append(row["epoch"]))], session)
    assert seen == [2]
    assert (found.config.network, found.result.epochs) == ("tiny", 2)


def test_restart_begins_anew_and_keeps_what_was_there(workspace: Workspace, session: Session) -> None:
    interrupted(workspace, session)
    seen: list[float] = []
    again = training(workspace, "eos", on_epoch=lambda row: seen.append(row["epoch"]))
    ensure([again], session, anew=True)
    assert seen == [1, 2]
    ensure([again], session, anew=True)
    assert seen == [1, 2, 1, 2]
    assert len(list((workspace.room.root / "aside").glob(f"{again.folder.name}-*"))) == 2


def test_a_damaged_checkpoint_is_named_and_restart_puts_it_aside(workspace: Workspace, session: Session) -> None:
    stage = interrupted(workspace, session)
    (stage.folder / LAST).write_bytes(b"damaged")
    with pytest.raises(OscbenchError, match=r"last.pth cannot be read"):
        ensure([training(workspace, "eos")], session)
    again = training(workspace, "eos")
    ensure([again], session, anew=True)
    assert Checkpoint.load(again.folder / LAST).epoch == 2


def test_a_refused_request_changes_nothing(workspace: Workspace, session: Session) -> None:
    first = training(workspace)
    ensure([first], session)
    many = training_of(workspace, Samples.of(workspace), dataclasses.replace(small(workspace), workers=3), PIL)
    with pytest.raises(UsageError, match="3 workers need Ray; leave --local out, or use --num-workers 1"):
        ensure([many], session)
    mistyped = training_of(
        workspace, Samples.of(workspace), dataclasses.replace(small(workspace), network="resnet5O"), PIL
    )
    with pytest.raises(UsageError, match="unknown network 'resnet5O', did you mean 'resnet50'"):
        ensure([mistyped], session)
    with pytest.raises(UsageError, match="3 workers need Ray"):
        ensure([many], session, anew=True)
    assert first.state() == "done"
    assert in_use(workspace).folder == first.folder
    assert not many.folder.exists()


def test_a_training_that_starts_from_a_checkpoint_needs_it_until_its_first_epoch_is_done(
    workspace: Workspace, session: Session, tmp_path: Path
) -> None:
    file = published_file(tmp_path)
    begun = training_of(workspace, Samples.of(workspace), small(workspace), PIL, init=file)
    without = dataclasses.replace(begun, init=None)
    assert without.folder == begun.folder
    with pytest.raises(UsageError, match="starts from a checkpoint; run `oscbench train` with its --init FILE"):
        ensure([without], session)
    other = published_file(tmp_path, n_outputs=5)
    wider = training_of(workspace, Samples.of(workspace), small(workspace), PIL, init=other)
    with pytest.raises(UsageError, match="has 5 outputs"):
        ensure([wider], session)
    assert not wider.folder.exists()


def test_a_training_that_is_there_keeps_its_loader(workspace: Workspace, session: Session) -> None:
    first = training(workspace)
    ensure([first], session)
    again = training_of(workspace, Samples.of(workspace), small(workspace), TrainingOptions(ask=WorkerAsk(cpus=1)))
    assert (again.config.loader, again.state()) == ("pil", "done")
    assert Features.of(workspace, again, TrainingOptions()).config.loader == "pil"


def test_workers_of_an_implied_training_come_from_the_request(workspace: Workspace) -> None:
    options = TrainingOptions(loader="pil", workers=4, ask=WorkerAsk(cpus=2, gpus=0.0))
    implied = network_in_use(workspace, Samples.of(workspace), loss="eos", seed=0, options=options)
    assert (implied.config.workers, implied.ask, implied.config.loader) == (4, options.ask, "pil")
    assert Features.of(workspace, implied, options).ask == options.ask


def test_a_long_training_that_nobody_asked_for_needs_yes(
    workspace: Workspace, session: Session, runner: CountingRunner
) -> None:
    wanted = features(dataclasses.replace(workspace, crop=224, stored_side=256))
    message = r"train is missing and would take about .* \(resnet50 for protocol small with loss softmax, 120 epochs"
    with pytest.raises(UsageError, match=message):
        ensure([wanted], session)
    assert runner.trained == []
    assert not workspace.room.root.exists()


def test_features_hold_logits_classes_and_an_exact_head(workspace: Workspace, session: Session) -> None:
    ensure([training(workspace, "garbage")], session)
    stage = features(workspace, "garbage")
    ensure([stage], session)
    splits = stage.load()
    assert splits.train.logits is not None
    assert (splits.train.logits.shape[1], splits.train.n_known) == (4, 3)
    test = splits.split("test")
    assert [test.classes[place] for place in test.class_index] == ["c0"] * 3 + ["c1"] * 3 + ["c2"] * 3 + ["c-1"] * 3 + [
        "c-2"
    ] * 3
    assert set(np.unique(splits.train.labels)) == {-1, 0, 1, 2}
    head = splits.train.head
    assert head is not None
    for part in (splits.train, test):
        logits = np.asarray(part.pooled, np.float64) @ head.weight.T.astype(np.float64) + head.bias
        np.testing.assert_allclose(logits, part.logits, atol=1e-5)


def test_an_interrupted_extraction_keeps_the_splits_that_were_done(
    workspace: Workspace, session: Session, runner: CountingRunner
) -> None:
    ensure([training(workspace)], session)
    stage = features(workspace)
    real, calls = runner.extract, []

    def broken(job: Any, ask: Any, progress: Any) -> Any:
        calls.append(len(job.split))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(job, ask, progress)

    runner.extract = broken  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ensure([stage], session)
    assert stage.state() == "resumable"
    ensure([features(workspace)], session)
    assert calls == [32, 8, 8, 15]


# --- given checkpoints -----------------------------------------------------------------------------------------------


def published_file(folder: Path, n_outputs: int = 3) -> Path:
    file = folder / "published.pth"
    Checkpoint(epoch=120, model=build_network("tiny", n_outputs).state_dict()).save(file)
    return file


def test_the_newest_of_given_and_trained_networks_is_in_use(
    workspace: Workspace, tmp_path: Path, session: Session, runner: CountingRunner
) -> None:
    """What went wrong once: after features of a given checkpoint and a new training, the former's were still used."""
    file = published_file(tmp_path)
    given = given_network(workspace, Samples.of(workspace), file, loss="softmax", seed=0, network="tiny")
    from_file = Features.of(workspace, given, PIL)
    ensure([from_file], session)
    file.write_bytes(b"something else")  # our copy is enough
    assert features(workspace).fingerprint == from_file.fingerprint
    assert runner.trained == []
    trained = training(workspace)
    ensure([trained], session)
    after = features(workspace)
    assert after.origin.train == trained.fingerprint
    assert after.fingerprint != from_file.fingerprint
    ensure([after], session)
    assert after.load().train.info.origin.recipe == "published, epochs=2, batch_size=8"
    assert from_file.load().train.info.origin.recipe == "given checkpoint"


def test_a_given_checkpoint_serves_with_a_warning_about_its_split(
    workspace: Workspace, tmp_path: Path, caplog: pytest.LogCaptureFixture, session: Session
) -> None:
    file = published_file(tmp_path)
    request = FeatureRequest(
        runs=workspace.room.runs,
        protocol=str(tmp_path / "small.yaml"),
        losses=("eos",),
        data=str(workspace.images),
        checkpoint=file,
        network="tiny",
        options=PIL,
    )
    given = given_network(workspace, Samples.of(workspace), file, loss="eos", seed=0, network="tiny")
    ensure([given], session)
    assert "published.pth was trained on the published split" in caplog.text
    caplog.clear()
    ensure([Features.of(workspace, in_use(workspace, "eos"), PIL)], session)
    assert "published.pth was trained on the published split" in caplog.text  # whoever uses it is told
    with pytest.raises(UsageError, match=r"has 3 outputs .* tiny for protocol small with loss garbage needs 4"):
        requested_features(dataclasses.replace(request, losses=("garbage",)))


def test_an_own_checkpoint_on_its_own_samples_needs_no_warning(
    workspace: Workspace, caplog: pytest.LogCaptureFixture, session: Session
) -> None:
    caplog.set_level(logging.WARNING)
    trained = training(workspace)
    ensure([trained], session)
    given = given_network(workspace, Samples.of(workspace), trained.weights, loss="softmax", seed=0, network=None)
    assert given.view == trained.view
    ensure([given], session)
    assert "warning" not in caplog.text
    assert isinstance(in_use(workspace), GivenNetwork)


def test_a_published_checkpoint_needs_the_published_numbers_of_each_split_and_the_order_of_classes(
    workspace: Workspace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = Samples.of(workspace)
    ensure([samples], session)
    splits = samples.result.splits
    counts = {(role, split): getattr(splits[split], role) for split in splits for role in ("known", "negative")}
    monkeypatch.setattr(given_stage, "published_split_counts", lambda protocol: counts)
    assert is_published_split(samples)
    moved = counts | {("known", "train"): counts["known", "train"] - 1, ("known", "val"): counts["known", "val"] + 1}
    monkeypatch.setattr(given_stage, "published_split_counts", lambda protocol: moved)
    assert not is_published_split(samples)
    monkeypatch.setattr(given_stage, "published_split_counts", lambda protocol: counts)
    test = samples.table("test")
    swapped = dataclasses.replace(test, labels=np.array([1, 0, 2, -2, -1])[test.labels])
    write_samples(samples.folder / "test.csv", swapped)
    assert not is_published_split(samples)
    monkeypatch.setattr(given_stage, "published_split_counts", lambda protocol: {})
    assert not is_published_split(samples)


# --- own features ----------------------------------------------------------------------------------------------------


def test_extracted_features_given_by_their_folder_are_the_same_stage(
    workspace: Workspace, tmp_path: Path, session: Session
) -> None:
    ensure([training(workspace)], session)
    stage = features(workspace)
    ensure([stage], session)
    (own,) = requested_features(FeatureRequest(runs=workspace.room.runs, features=stage.folder))
    assert isinstance(own, OwnFeatures)
    assert (own.fingerprint, own.room, own.origin) == (stage.fingerprint, stage.room, stage.origin)
    assert [step.state for step in plan([own], session)] == ["given"]


@pytest.mark.parametrize(("network", "multiply_adds"), [("resnet50", 4.09e9), ("regnet_y_400mf", 0.40e9)])
def test_operations_are_those_of_the_literature(network: str, multiply_adds: float) -> None:
    """Torchvision's table, two operations each; RegNet cannot be built without memory."""
    assert forward_flops(network, 224) == pytest.approx(2 * multiply_adds, rel=0.02)


@pytest.mark.parametrize(("network", "crop"), COUNTED)
def test_what_is_not_counted_anew_is_what_counting_gives(network: str, crop: int) -> None:
    assert COUNTED[network, crop] == pytest.approx(_count_flops(network, crop), rel=0.01)


def test_the_usual_network_of_the_embedded_data_is_among_what_was_counted() -> None:
    demo = open_workspace(runs=Path("runs"), data="demo", protocol="2")
    config = default_config(demo, loss="softmax")
    assert {(config.network, config.crop), ("resnet50", 224)} == set(COUNTED)


def test_the_best_epoch_stands_beside_the_last_one(workspace: Workspace, session: Session) -> None:
    trained = training(workspace, epochs=4, learning_rate=3e-2)  # so fast that the last epoch need not be the best
    last = Features.of(workspace, trained, PIL)
    best = at_best_epoch(last)
    assert best is not None
    ensure([last, best], session)
    network = best.network
    assert isinstance(network, BestEpoch)
    assert network.weights.read_bytes() == (trained.folder / "best.pth").read_bytes()
    assert network.result.epoch == trained.result.best["epoch"] == Checkpoint.load(network.weights).epoch
    assert best.origin.at_best_epoch
    assert not last.origin.at_best_epoch
    assert best.origin.recipe == last.origin.recipe + "; best epoch"
    assert (best.load().test is not None, best.folder != last.folder) == (True, True)
    kept = {name: (workspace.room.root / f"softmax/s0/{name}").resolve().name for name in ("train", "features")}
    assert kept == {"train": trained.folder.name, "features": last.folder.name}  # what is in use stays in use
    scores = [scores_with(found, "mss", {}) for found in (last, best)]
    ensure(scores, session)
    assert len({stage.alias for stage in scores}) == 2
    workspace.room.refuse_older_layout()  # and its links are taken for ours
    assert at_best_epoch(Features.of(workspace, training(workspace, selection="best"), PIL)) is None
