"""Searches and scores as stages, in this process: what is re-used, what is stale, which search counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_factory import feature_info, make_features, write_feature_folder
from search_factory import Unwatched

from oscbench.errors import OscbenchError, UsageError
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.scores import ScoreSet
from oscbench.stages.features import FeatureRequest, OwnFeatures, requested_features
from oscbench.stages.runner import SearchOptions, Session
from oscbench.stages.scores import best_search, scores_of_best, scores_with
from oscbench.stages.search import Tune
from oscbench.stages.stage import ensure, plan
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import Best, read_trials

SESSION = Session()
GRID = ("tail_size=5,20", "distance_multiplier=1.5,2.0", "alpha=2,3")


@pytest.fixture
def features(tmp_path: Path) -> OwnFeatures:
    (found,) = requested_features(
        FeatureRequest(runs=tmp_path / "runs", features=write_feature_folder(tmp_path / "mine"))
    )
    assert isinstance(found, OwnFeatures)
    return found


def tune(features: OwnFeatures, overrides: tuple[str, ...] = GRID, **options: Any) -> Tune:
    space = load_space("openmax", POSTPROCESSORS.info("openmax").params, overrides=overrides)
    return Tune.of(features, "openmax", space, Unwatched(), **options)


def test_a_search_is_a_stage_whose_folder_is_known_before(features: OwnFeatures) -> None:
    search = tune(features)
    steps = plan([search], SESSION)
    assert [(step.stage.name, step.state) for step in steps] == [("features", "given"), ("tune", "missing")]
    assert not features.room.runs.exists()
    ensure([search], SESSION)
    table = read_trials(search.folder / "trials.csv")
    assert len(table) == search.result.trials == 8
    assert search.result.sum == table["sum"].max()
    assert (search.room.root / "softmax/s0/openmax/tune").resolve() == search.folder.resolve()
    before = (search.folder / "trials.csv").stat().st_mtime_ns
    ensure([tune(features)], SESSION)
    assert (search.folder / "trials.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "changes",
    [{"rule": "published"}, {"score_kind": "probability"}, {"search": "random"}, {"overrides": ("alpha=2",)}],
)
def test_whatever_decides_the_table_decides_the_folder(features: OwnFeatures, changes: dict[str, Any]) -> None:
    assert tune(features, **changes).folder != tune(features).folder


def test_rows_and_best_name_network_recipe_and_training(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "val", "test")):
        made = make_features(10, negatives=20, unknowns=20 if split == "test" else 0, seed=number)
        info = feature_info("p2", made.n_known, split)
        origin = dataclasses.replace(
            info.origin, training="eos", seed=3, network="resnet18", recipe="published, epochs=5", train="ab" * 8
        )
        info = dataclasses.replace(info, origin=origin)
        dataclasses.replace(made, info=info, classes=info.classes).save(tmp_path / "f" / split)
    (found,) = requested_features(FeatureRequest(runs=tmp_path / "runs", features=tmp_path / "f"))
    assert isinstance(found, OwnFeatures)
    search = tune(found, ("tail_size=5", "distance_multiplier=2.0", "alpha=2"))
    ensure([search], SESSION)
    (row,) = read_trials(search.folder / "trials.csv").to_dict("records")
    best = Best.read(search.folder / "best.yaml")
    for name, value in (("network", "resnet18"), ("recipe", "published, epochs=5"), ("train", "ab" * 8)):
        assert row[name] == getattr(best, name) == value
    assert (row["training"], row["seed"], row["protocol"]) == ("eos", 3, "p2")
    scores = scores_with(found, "mls", {})
    ensure([scores], SESSION)
    assert ScoreSet.load(scores.folder / "val").info.origin == found.origin


def test_a_time_budget_leaves_the_search_open_and_scores_wait_for_it(features: OwnFeatures) -> None:
    short = tune(features, options=SearchOptions(time_budget=0.0))
    with pytest.raises(OscbenchError, match="no trial of openmax finished"):
        ensure([short], SESSION)
    assert short.state() == "resumable"
    ensure([tune(features)], SESSION)
    assert tune(features).state() == "done"


def test_validation_without_negatives_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    request = FeatureRequest(runs=tmp_path / "runs", features=write_feature_folder(tmp_path / "f", negatives=0))
    (found,) = requested_features(request)
    assert isinstance(found, OwnFeatures)
    with pytest.raises(UsageError, match="val has no negatives"):
        ensure([tune(found)], SESSION)
    assert not (tmp_path / "runs").exists()


def test_scores_take_the_best_of_the_grid_where_nothing_was_searched(features: OwnFeatures) -> None:
    wanted = scores_of_best(features, "openmax", Unwatched())
    before = plan([wanted], SESSION)
    assert [(step.stage.name, step.state) for step in before] == [
        ("features", "given"),
        ("tune", "missing"),
        ("scores", "missing"),
    ]
    ensure([wanted], SESSION)
    assert wanted.result.params == Best.read(before[1].stage.folder / "best.yaml").params
    again = scores_of_best(features, "openmax", Unwatched())
    assert again.folder == wanted.folder  # found again through the finished search
    assert [step.state for step in plan([again], SESSION)] == ["given", "given", "done"]
    assert set(again.load()) == {"val", "test"}


def test_a_search_that_was_made_longer_makes_its_scores_stale(features: OwnFeatures) -> None:
    def longer(trials: int) -> Tune:
        return tune(features, (), search="random", trials=trials)

    ensure([longer(2)], SESSION)
    first = scores_of_best(features, "openmax", Unwatched())
    ensure([first], SESSION)
    assert first.state() == "done"
    more = longer(12)
    assert more.folder == longer(2).folder
    assert more.state() == "resumable"
    ensure([more], SESSION)
    assert more.result.trials == 12
    table = read_trials(more.folder / "trials.csv")
    assert table["sum"].idxmax() > 1, "the best must be among the later trials for this test to mean something"
    second = scores_of_best(features, "openmax", Unwatched())
    assert second.folder == first.folder
    assert second.state() == "missing"
    ensure([second], SESSION)
    assert second.result.params == more.result.params


def test_sums_of_other_rules_kinds_and_unfinished_searches_do_not_compete(features: OwnFeatures) -> None:
    usual = tune(features, ("tail_size=5", "distance_multiplier=2.0", "alpha=2"))
    ensure([usual], SESSION)
    for options in ({"rule": "published"}, {"score_kind": "probability"}):
        ensure([tune(features, **options)], SESSION)
    found = best_search(features, "openmax", rule="inclusive", score_kind=None)
    assert found is not None
    assert found.folder == usual.folder
    by_kind = best_search(features, "openmax", rule="inclusive", score_kind="probability")
    assert by_kind is not None
    assert by_kind.config.score_kind == "probability"
    assert best_search(features, "openmax", rule="inclusive", score_kind="published") is None
    better = tune(features, ("tail_size=20", "distance_multiplier=1.5", "alpha=3"))
    ensure([better], SESSION)
    (better.folder / "meta.json").unlink()  # as if it had been killed
    found = best_search(features, "openmax", rule="inclusive", score_kind=None)
    assert found is not None
    assert found.folder == usual.folder


def test_a_method_without_hyperparameters_needs_no_search(features: OwnFeatures) -> None:
    wanted = scores_of_best(features, "mss", Unwatched())
    assert [step.stage.name for step in plan([wanted], SESSION)] == ["features", "scores"]
    ensure([wanted], SESSION)
    assert wanted.result.params == {}


def test_test_rows_and_loss_of_own_features_decide_what_they_decide(tmp_path: Path) -> None:
    folder = write_feature_folder(tmp_path / "mine")

    def asked(**options: Any) -> OwnFeatures:
        (found,) = requested_features(FeatureRequest(runs=tmp_path / "runs", features=folder, **options))
        assert isinstance(found, OwnFeatures)
        return found

    before = scores_with(asked(), "mls", {})
    search = tune(asked())
    ensure([before], SESSION)
    logits = np.load(folder / "test" / "logits.npy")
    np.save(folder / "test" / "logits.npy", logits[::-1].copy())
    after = scores_with(asked(), "mls", {})
    assert (after.state(), after.folder != before.folder) == ("missing", True)
    assert tune(asked()).folder == search.folder  # a search never looks at them
    assert tune(asked(losses=("eos",))).folder != search.folder


@pytest.mark.parametrize("algorithm", ["openmax", "mss"])
def test_a_memory_bound_is_refused_where_nothing_is_shared(features: OwnFeatures, algorithm: str) -> None:
    space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params)
    with pytest.raises(UsageError, match=f"{algorithm} keeps none; leave it out"):
        ensure([Tune.of(features, algorithm, space, Unwatched(), memory=1 << 30)], SESSION)
    assert not features.room.runs.exists()
