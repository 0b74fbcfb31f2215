"""Fine-tunings as stages: made from any network, tried by a search, scored, shared, refused."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from search_factory import Unwatched
from small_images import write_split

from oscbench.api.tune import tune as api_tune
from oscbench.errors import UsageError
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.proser import ProserParams
from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.resources import WorkerAsk
from oscbench.stages.features import FeatureRequest, Features, requested_features
from oscbench.stages.fine_tuning import FineTuning
from oscbench.stages.runner import LocalRunner, Session
from oscbench.stages.scores import scores_of_best, scores_with
from oscbench.stages.search import Tune
from oscbench.stages.stage import ensure
from oscbench.stages.training import TrainingOptions
from oscbench.training.checkpoint import Checkpoint
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import read_trials

OPTIONS = TrainingOptions(loader="pil", ask=WorkerAsk(cpus=1))
K = 3


class CountingRunner(LocalRunner):
    """Executes in this process and writes down the folder of each training."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[str] = []

    def train(self, job: Any, share: Any, on_epoch: Any) -> Any:
        self.trained.append(job.folder.name.rpartition("-")[0])
        return super().train(job, share, on_epoch)

    def within_trials(self, workers: int) -> Any:
        return lambda: contextlib.nullcontext(self)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a protocol and a network for each loss."""
    folder = tmp_path_factory.mktemp("proser")
    write_split(folder / "images", "train", [0, 1, 2, -1] * 16)
    write_split(folder / "images", "val", [0, 1, 2, -1, -2] * 6)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    write_protocol(folder / "small.yaml", make_protocol("small", roles, "test"))
    return folder


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


@pytest.fixture
def session(runner: CountingRunner) -> Session:
    return Session(lambda: contextlib.nullcontext(runner))


def features(user: Path, loss: str = "softmax", **request: Any) -> Features:
    """The features of a small network, which is trained when it is first asked for."""
    from oscbench.stages.samples import Samples
    from oscbench.stages.training import default_config, training_of
    from oscbench.stages.workspace import open_workspace
    from oscbench.training.recipes import Recipe

    wanted: Any = {"runs": user / "runs", "protocol": str(user / "small.yaml"), "data": str(user / "images")}
    if "checkpoint" not in request:
        workspace = open_workspace(**wanted, name=None)
        config = dataclasses.replace(
            default_config(workspace, loss=loss), network="tiny", recipe=Recipe(epochs=2, batch_size=8)
        )
        ensure([training_of(workspace, Samples.of(workspace), config, OPTIONS, on_epoch=lambda row: None)], Session())
    (found,) = requested_features(FeatureRequest(**wanted, losses=(loss,), **request, options=OPTIONS))
    assert isinstance(found, Features)
    return found


def tune(source: Features, *overrides: str, **how: Any) -> Tune:
    space = load_space("proser", POSTPROCESSORS.info("proser").params, overrides=["epochs=1", *overrides])
    return Tune.of(source, "proser", space, Unwatched(), training=OPTIONS, **how)


@pytest.mark.parametrize("loss", ["softmax", "garbage", "eos"])
def test_a_fine_tuned_network_has_an_output_more_whatever_it_was_trained_with(
    user: Path, session: Session, runner: CountingRunner, loss: str
) -> None:
    base = features(user, loss)
    network = FineTuning.of(base, ProserParams(dummies=4, epochs=1), ask=WorkerAsk(cpus=1))
    fine = network.features(like=base)
    ensure([fine], session)
    splits = fine.load()
    assert splits.train.logits is not None
    assert splits.train.logits.shape[1] == K + 1
    assert splits.train.head is None
    assert runner.trained == ["finetune"]
    saved = Checkpoint.load(network.weights)
    assert saved.dummies == 4
    assert saved.n_outputs == K + (loss == "garbage")  # the extra output stays in the file, as in published ones
    assert network.origin.train == network.fingerprint != base.origin.train
    assert "proser dummies=4" in network.origin.recipe
    assert (base.room.root / loss / "s0" / "proser" / "train").resolve() == network.folder.resolve()
    assert base.folder != fine.folder
    ensure([FineTuning.of(base, ProserParams(dummies=4, epochs=1)).features(like=base)], session)
    assert runner.trained == ["finetune"]  # not again


def test_a_search_trains_every_setting_once_and_its_best_is_scored_like_any_other(
    user: Path, session: Session, runner: CountingRunner
) -> None:
    base = features(user, "eos")
    search, link = tune(base, "dummies=1,2"), base.room.root / "eos" / "s0" / "proser" / "features"
    used = link.resolve()
    ensure([search], session)
    table = read_trials(search.folder / "trials.csv").set_index("dummies")
    assert table["status"].tolist() == ["done", "done"]
    assert (table["training"].unique(), table["train"].unique()) == (["eos"], [base.origin.train])
    counts = base.samples.result.splits["val"]
    assert (table["n_known"].unique(), table["n_negative"].unique()) == ([counts.known], [counts.negative])
    assert runner.trained == ["finetune", "finetune"]
    assert link.resolve() == used  # none of those that were tried is in use

    scores = scores_of_best(base, "proser", Unwatched(), training=OPTIONS)
    ensure([scores], session)
    found = scores.load()
    assert set(found) == {"val", "test"}
    assert scores.result.params == search.result.params
    assert runner.trained == ["finetune", "finetune"]
    assert found["val"].info is not None
    assert found["val"].info.origin == base.origin  # in tables beside the other methods on the same training
    best = FineTuning.of(base, ProserParams(**search.result.params)).features(like=base)
    logits = np.asarray(best.load().val.logits, np.float64)
    expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[:, :K]
    np.testing.assert_allclose(found["val"].score, expected.max(axis=1), rtol=1e-6)
    assert link.resolve() == best.folder.resolve()

    again = tune(base, "dummies=1,2,3")  # another search takes what the first one has trained
    ensure([again], session)
    assert runner.trained == ["finetune"] * 3
    by_hand = scores_with(base, "proser", {"dummies": 2, "epochs": 1}, training=OPTIONS)
    ensure([by_hand], session)
    assert runner.trained == ["finetune"] * 3


def test_on_embedded_data_every_way_to_a_search_means_the_recipe_for_them(tmp_path: Path) -> None:
    roles = {"known": ["n02085620", "n02088364"], "negative": ["n02114367"], "unknown": ["n02666196"]}
    members = {role: {wnid: wnid for wnid in wnids} for role, wnids in roles.items()}
    write_protocol(tmp_path / "few.yaml", make_protocol("few", members, "test"))
    asked: Any = {"protocol": str(tmp_path / "few.yaml"), "runs": tmp_path / "runs"}

    def planned(**how: Any) -> Tune:
        found = api_tune("proser", local=True, dry_run=True, **asked, **how).plan[-1].stage
        assert isinstance(found, Tune)
        return found

    demo = {"epochs": [3], "learning_rate": [1e-3]}
    assert {name: planned().config.space[name] for name in demo} == demo
    assert planned(settings={"epochs": 5}).config.space["epochs"] == [5]
    assert planned(recipe="published").config.space.keys() == {"dummies"}
    assert planned(search="random").config.space["epochs"]["high"] == 40  # who searches epochs is left to it
    (base,) = requested_features(FeatureRequest(data="demo", losses=("softmax",), **asked))
    implied = scores_of_best(base, "proser", Unwatched()).inputs["tune"]
    assert isinstance(implied, Tune)
    assert implied.config == planned().config
    assert implied.path == planned().path


def test_side_by_side_on_a_frozen_trunk_equals_one_by_one(user: Path, session: Session, runner: CountingRunner) -> None:
    base = features(user, "garbage")
    search = tune(base, "dummies=1,4", "trunk=frozen", share_trunk=True)
    ensure([search], session)
    assert runner.trained == ["finetune-shared"]
    scores = scores_of_best(base, "proser", Unwatched(), training=OPTIONS)
    ensure([scores], session)
    assert runner.trained == ["finetune-shared"]  # its trial has trained the best one
    for dummies in (1, 4):
        setting = ProserParams(dummies=dummies, epochs=1, trunk="frozen")
        together = Checkpoint.load(FineTuning.of(base, setting, together=(1, 4)).weights).model
        single_stage = FineTuning.of(base, setting)
        ensure([single_stage], session)
        single = Checkpoint.load(single_stage.weights).model
        start = Checkpoint.load(base.network.weights).model
        assert set(together) == set(single)
        for name, value in single.items():
            torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-7)  # gradients add up in other order
        moved = [name for name, value in start.items() if not torch.equal(single[f"resnet_base.{name}"], value)]
        assert moved
        assert {name.split(".")[1] for name in moved if name.startswith("resnet_base")} == {"layer4", "fc"}
    assert runner.trained == ["finetune-shared"] * 3


def test_checkpoint_files_are_taken_as_base_and_as_fine_tuned_networks(
    user: Path, session: Session, runner: CountingRunner, tmp_path: Path
) -> None:
    trained = features(user, "softmax")
    published = {"epoch": 3, "best_score": 0.1, "opt_state_dict": {}}
    weights = {f"module.{name}": value for name, value in Checkpoint.load(trained.network.weights).model.items()}
    torch.save(published | {"model_state_dict": weights}, tmp_path / "base.pth")
    base = features(user, "softmax", checkpoint=tmp_path / "base.pth", network="tiny")
    network = FineTuning.of(base, ProserParams(dummies=2, epochs=1), ask=WorkerAsk(cpus=1))
    ensure([network], session)
    assert runner.trained == ["finetune"]

    torch.save(published | {"model_state_dict": dict(Checkpoint.load(network.weights).model)}, tmp_path / "proser.pth")
    given = features(user, "softmax", checkpoint=tmp_path / "proser.pth", network="tiny")
    assert given.network.dummies == 2
    scores = scores_of_best(given, "proser", Unwatched(), training=OPTIONS)
    ensure([scores], session)
    assert runner.trained == ["finetune"]
    expected = scores_with(base, "proser", {"dummies": 2, "epochs": 1}, training=OPTIONS)
    ensure([expected], session)
    np.testing.assert_array_equal(scores.load()["test"].score, expected.load()["test"].score)
    with pytest.raises(UsageError, match=r"has 2 dummies already, it was fine-tuned by proser; give the network"):
        tune(given).check()


def test_a_file_with_foreign_weights_is_refused_before_anything_of_it_is_kept(user: Path, tmp_path: Path) -> None:
    base = features(user, "softmax")
    weights = dict(Checkpoint.load(base.network.weights).model)
    weights["resnet_base.nothing.weight"] = weights.pop("resnet_base.conv1.weight")
    torch.save({"epoch": 3, "model_state_dict": weights}, tmp_path / "foreign.pth")
    before = set(base.room.root.iterdir())
    words = (
        "foreign.pth holds another network, not tiny for protocol small with loss softmax: .*conv1.weight is missing"
    )
    with pytest.raises(UsageError, match=words):
        features(user, "softmax", checkpoint=tmp_path / "foreign.pth", network="tiny")
    assert set(base.room.root.iterdir()) == before


def test_workers_that_cannot_be_had_are_refused_before_the_search_is_begun(user: Path, session: Session) -> None:
    base = features(user, "softmax")
    space = load_space("proser", POSTPROCESSORS.info("proser").params, overrides=["epochs=1"])
    search = Tune.of(base, "proser", space, Unwatched(), training=dataclasses.replace(OPTIONS, workers=3))
    with pytest.raises(UsageError, match="3 workers need Ray"):
        ensure([search], session)
    assert not search.folder.exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"dummies": 0}, "dummies must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"mix_alpha": 0.0}, "mix_alpha must be finite and > 0, got 0.0"),
        ({"learning_rate": -1.0}, "learning_rate must be finite and > 0, got -1.0"),
        ({"lambda0": -0.1}, "lambda0 must be finite and not negative, got -0.1"),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ProserParams(**setting)


def test_a_loss_that_is_not_finite_ends_its_trial_and_not_the_others(user: Path, session: Session) -> None:
    search = tune(features(user, "softmax"), "dummies=1", "learning_rate=1e30,1e-4")
    ensure([search], session)
    table = read_trials(search.folder / "trials.csv").set_index("learning_rate")
    assert table.loc[1e-4, "status"] == "done"
    assert table.loc[1e30, "status"] == "failed"
    assert "in epoch 1, step 2; stopped" in table.loc[1e30, "error"]


def test_own_features_have_no_network_to_fine_tune(user: Path, session: Session) -> None:
    base = features(user, "softmax")
    ensure([base], session)
    (own,) = requested_features(FeatureRequest(runs=user / "runs", features=base.folder))
    with pytest.raises(UsageError, match="proser fine-tunes a network, and --features .* has none"):
        tune(own)
