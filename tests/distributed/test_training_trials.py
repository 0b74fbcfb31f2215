"""Trials that train, through Ray Tune: killed and gone on with, bounded, watched, cleaned up."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import optuna
import pytest
import stepping_evaluator
from feature_factory import make_features
from ray import cloudpickle
from search_factory import is_finished, make_search
from stepping_evaluator import STEPS, Stepping, fallen_behind

from oscbench.distributed.tune import run_search
from oscbench.errors import UsageError
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.tuning.evaluator import Nobody
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.space import Setting, load_space
from oscbench.tuning.study import open_storage
from oscbench.tuning.trials import read_trials

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session", "by_value")]


@pytest.fixture
def by_value() -> Iterator[None]:
    """The evaluator travels whole: trial processes do not have the module of a test."""
    module = sys.modules[stepping_evaluator.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def search_over(runs: Path, tail_sizes: str) -> Search:
    overrides = (f"tail_size={tail_sizes}", "distance_multiplier=2.0", "alpha=2")
    return make_search(
        runs,
        algorithm="openmax",
        train=make_features(5, negatives=5),
        validation=make_features(5, negatives=5, seed=1),
        space=load_space("openmax", POSTPROCESSORS.info("openmax").params, overrides=overrides),
    )


class Steps(Nobody):
    """What is reported on the way."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}

    def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
        assert values["loss"] == 1.0 / step
        self.seen.setdefault(setting["tail_size"], []).append(step)


def test_killed_trials_go_on_where_they_were_and_failed_ones_leave_the_others_alone(tmp_path: Path) -> None:
    search, steps = search_over(tmp_path, "1,2,3,13,26"), Steps()
    evaluator = Stepping(log=tmp_path / "log", kills=(2,), refuses=(13, 26), lingers=2.0)
    with SearchRun(search) as run:
        run_search(run, evaluator, watcher=steps)
        run.finish()
    table = read_trials(search.folder / "trials.csv").set_index("tail_size")
    assert table["status"].to_dict() == {1: "done", 2: "done", 3: "done", 13: "failed", 26: "failed"}
    assert table.loc[[1, 2, 3], "sum"].tolist() == [0.01, 0.02, 0.03]
    assert table.loc[13, "error"] == "RuntimeError: 13 is refused"
    assert evaluator.steps() == dict.fromkeys((1, 2, 3), list(range(STEPS)))  # none again, none left out
    assert steps.seen == dict.fromkeys((1, 2, 3), list(range(1, STEPS + 1)))
    assert [note["attempt"] for note in evaluator.notes("begun") if note["trial"] == 2] == [0, 1]
    assert evaluator.most_at_once() <= 2
    assert len(evaluator.notes("cleaned up")) == 1
    assert not (search.folder / "trials").exists()

    again = Stepping(log=tmp_path / "again", most=1, lingers=2.0)
    with SearchRun(search) as run:
        run_search(run, again, max_concurrent=2)
        run.finish()
    assert set(again.steps()) == {13, 26}  # what is finished is not evaluated again
    assert again.most_at_once() == 1
    assert is_finished(search)


def test_a_trial_that_never_fits_is_refused_at_once(tmp_path: Path) -> None:
    evaluator = Stepping(log=tmp_path / "log", gpus=1.0)
    with (
        SearchRun(search_over(tmp_path, "1")) as run,
        pytest.raises(UsageError, match="a trial needs 1 GPU, the cluster has 0; join a larger one"),
    ):
        run_search(run, evaluator)
    assert len(evaluator.notes("cleaned up")) == 1


def test_trials_that_fall_behind_are_stopped_early_recorded_and_shown_as_such(tmp_path: Path) -> None:
    space = load_space("openmax", POSTPROCESSORS.info("openmax").params)
    search = make_search(
        tmp_path,
        algorithm="openmax",
        train=make_features(5, negatives=5),
        validation=make_features(5, negatives=5, seed=1),
        space=space,
        kind="random",
        trials=9,
    )
    evaluator = Stepping(log=tmp_path / "log", most=1, longest=STEPS)
    with SearchRun(search) as run:
        run_search(run, evaluator)
        best = run.finish()
    table = read_trials(search.folder / "trials.csv")
    assert len(table) == 9
    for row, behind in zip(table.to_dict("records"), fallen_behind(table["tail_size"] / 100), strict=True):
        assert (row["status"], row["sum"]) == ("pruned" if behind else "done", row["tail_size"] / 100)
        assert len(evaluator.steps()[row["tail_size"]]) == (behind or STEPS)
    assert {"done", "pruned"} == set(table["status"])
    assert best.sum == table.loc[table["status"] == "done", "sum"].max()
    (study,) = optuna.get_all_study_summaries(storage=open_storage(search.folder / "study.log"))
    trials = optuna.load_study(study_name=study.study_name, storage=open_storage(search.folder / "study.log")).trials
    states = {trial.user_attrs["trial_id"]: trial for trial in trials}
    for row in table.to_dict("records"):
        trial = states[row["trial_id"]]
        assert trial.state.name == {"done": "COMPLETE", "pruned": "PRUNED"}[row["status"]]
        assert set(trial.intermediate_values.values()) == {row["sum"]}
    again = Stepping(log=tmp_path / "again", longest=STEPS)
    with SearchRun(search) as run:
        run_search(run, again)
    assert not (tmp_path / "again").exists() or not again.steps()  # what was stopped is not run again
