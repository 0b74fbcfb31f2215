"""Searches through Ray Tune: equal to the plain evaluator, batched, budgeted, resumed, bounded."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray
from feature_factory import make_features
from ray import cloudpickle
from search_factory import is_finished, make_search, shared

from oscbench.distributed.cluster import object_store_bytes
from oscbench.distributed.service import start_service
from oscbench.distributed.shards import ShardedSource
from oscbench.distributed.tune import _Recorder, run_search, wait_for_room
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.progress import PassProgress
from oscbench.report.search import report_of
from oscbench.tuning.evaluator import EvaluationOptions, Nobody, SharedFeatures
from oscbench.tuning.local import OpenSettings
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.space import complete_setting, load_space
from oscbench.tuning.study import open_storage
from oscbench.tuning.trials import RATES, read_trials

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TRAIN = make_features(30, negatives=20)
VAL = make_features(15, negatives=50, seed=1)


def search_in(runs: Path, algorithm: str, overrides: tuple[str, ...] = (), **changes: Any) -> Search:
    space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params, overrides=overrides)
    base: dict[str, Any] = {"training": "softmax", "seed": 0, "algorithm": algorithm, "train": TRAIN, "validation": VAL}
    return make_search(runs, **(base | {"space": space} | changes))


SMALL = ("tail_size=5,20,60", "distance_multiplier=1.5,2.0", "alpha=2,3")


def rates_by_setting(table: pd.DataFrame, names: list[str]) -> dict[tuple[Any, ...], list[str]]:
    return {
        tuple(row[name] for name in names): [repr(float(row[rate])) for rate in RATES]
        for row in table.to_dict("records")
    }


def test_tune_gives_the_rows_of_the_plain_objective_and_fills_the_study(tmp_path: Path) -> None:
    search = search_in(tmp_path, "openmax", SMALL)
    seen = []

    class Counting(Nobody):
        def update(self, run: SearchRun) -> None:
            seen.append(run.done)

    with SearchRun(search) as run:
        run_search(run, shared(search), max_concurrent=3, watcher=Counting())
        run.finish()
    assert seen == list(range(1, 13))
    settings = search.grid_settings()
    plain = pd.DataFrame(
        [s | o for s, o in zip(settings, SharedFeatures("openmax", TRAIN, VAL)(settings), strict=True)]
    )
    names = search.hyperparameters
    table = read_trials(search.folder / "trials.parquet")
    assert rates_by_setting(table, names) == rates_by_setting(plain, names)
    storage = open_storage(search.folder / "study.log")
    (study,) = storage.get_all_studies()
    trials = storage.get_all_trials(study._study_id)
    assert sorted(trial.value for trial in trials) == sorted(table["sum"])
    assert is_finished(search)


def test_what_the_service_had_to_bend_reaches_the_search(tmp_path: Path) -> None:
    search = search_in(tmp_path, "openmax", ("tail_size=5,20,60", "distance_multiplier=2.0", "alpha=2,9"))
    with SearchRun(search) as run:
        run_search(run, shared(search), max_concurrent=2)
    largest = {"tail_size": 60, "distance_multiplier": 2.0, "alpha": 9}
    method = POSTPROCESSORS.info("openmax")
    alone = method.value(method.params(**largest)).fit(TRAIN)
    tail, alpha = map(str, alone.notes)
    assert tail.startswith("OpenMax: tail size 60 clipped for 6 of 6 classes")
    noted = sorted(map(str, search.notes()))
    assert noted[1:] == [tail]  # once, however many passes there were, and the largest one
    assert noted[0].startswith(alpha.removesuffix("1 settings"))
    document = report_of([search])
    assert sorted(document["searches"][0]["notes"]) == noted


def test_a_method_without_hyperparameters_is_one_trial(tmp_path: Path) -> None:
    search = search_in(tmp_path, "mls", kind="optuna")
    with SearchRun(search) as run:
        run_search(run, shared(search))
        best = run.finish()
    assert best.params == {}
    assert best.score_kind == "logit"
    assert len(read_trials(search.folder / "trials.csv")) == 1


@pytest.mark.slow
def test_a_budgeted_search_repeats_and_resumes_exactly(tmp_path: Path) -> None:
    tables = []
    for name, concurrent, budgets in (("a", 3, (9,)), ("b", 2, (5, 9))):
        for trials in budgets:  # the second one is ended in its second generation and made longer
            search = search_in(tmp_path / name, "openmax", kind="optuna", trials=trials)
            with SearchRun(search) as run:
                run_search(run, shared(search), max_concurrent=concurrent)
                run.finish()
        tables.append(read_trials(search.folder / "trials.csv"))
    names = search.hyperparameters
    assert rates_by_setting(tables[0], names) == rates_by_setting(tables[1], names)
    assert len(tables[0]) == len(tables[1]) == 9


def test_random_search_tries_what_its_seed_says(tmp_path: Path) -> None:
    search = search_in(tmp_path, "openmax", kind="random", trials=5)
    with SearchRun(search) as run:
        run_search(run, shared(search), max_concurrent=2)
        run.finish()
    proposer = search.proposer()
    expected = [search.complete(proposer.propose() or {}) for _ in range(5)]
    table = read_trials(search.folder / "trials.csv")
    found = [{name: row[name] for name in search.hyperparameters} for row in table.to_dict("records")]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_one_pass_answers_all_who_wait() -> None:
    train, val = ray.put(TRAIN), ray.put(VAL)
    service = start_service("openmax", EvaluationOptions(), callers=8)
    try:
        settings = [{"tail_size": t, "distance_multiplier": 2.0, "alpha": 2} for t in range(2, 26)]
        features = {"train": train, "val": val}
        answers = ray.get([service.evaluate.remote(setting, features) for setting in settings], timeout=900)
        passes = ray.get(service.passes.remote())
    finally:
        ray.kill(service)
    assert sum(passes) == 24
    assert len(passes) < 24
    alone = SharedFeatures("openmax", TRAIN, VAL)
    for setting, answer in zip(settings, answers, strict=True):
        assert [answer[name] for name in RATES] == [alone([setting])[0][name] for name in RATES]


PACES = 4
"""Steps of a paced pass, each of which waits until somebody has seen the one before."""


def paced_features(fields: dict[str, Any], folder: Path) -> FeatureSet:
    """Unpickles features in the service's process and makes passes there wait for files in the folder."""
    method = POSTPROCESSORS.get("openmax")
    at_once = method.best_of_settings

    def step_by_step(*args: Any, progress: Any, **options: Any) -> Any:
        for done in range(1, PACES):
            progress(done, PACES)
            deadline = time.monotonic() + 300
            while not (folder / str(done)).exists():
                assert time.monotonic() < deadline, f"nobody has told that {done} of {PACES} are done"
                time.sleep(0.01)
        return at_once(*args, **options)

    method.best_of_settings = step_by_step
    return FeatureSet(**fields)


class PacedFeatures(FeatureSet):
    folder: Path

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(FeatureSet)}
        return paced_features, (fields, type(self).folder)


def test_progress_of_a_pass_arrives_before_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass goes on only when the search has told how far it is: one that is silent would never end."""
    monkeypatch.setattr("oscbench.distributed.tune.PROGRESS_SECONDS", 0.05)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    PacedFeatures.folder = tmp_path
    told: list[Any] = []

    class Pacing(Nobody):
        def update(self, run: SearchRun) -> None:
            told.append(run.done)

        def progress(self, run: SearchRun, current: PassProgress) -> None:
            told.append(current)
            (tmp_path / str(round(current.done / current.total * PACES))).touch()

    fields = {field.name: getattr(TRAIN, field.name) for field in dataclasses.fields(TRAIN)}
    search = search_in(tmp_path, "openmax", SMALL, train=PacedFeatures(**fields))
    try:
        with SearchRun(search) as run:
            run_search(run, shared(search), max_concurrent=2, watcher=Pacing())
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    first = [current for current in told[: told.index(1)] if current.done]
    assert [(current.number, current.done / current.total) for current in first] == [(1, 0.25), (1, 0.5), (1, 0.75)]
    assert first[0].settings in (1, 2)
    seconds = [current.seconds for current in first]
    assert seconds == sorted(seconds)
    assert [done for done in told if isinstance(done, int)] == list(range(1, 13))


def test_what_failed_or_was_recorded_before_is_not_tried_again_when_another_trial_was_lost(tmp_path: Path) -> None:
    search = search_in(tmp_path, "openmax", kind="random", trials=3)
    with SearchRun(search) as run:
        number, setting = OpenSettings(run).take() or (None, {})
        recorder = _Recorder(run, shared(search), Nobody())
        for error in ("broken", "broken again"):
            recorder._record(setting, {"error": error})
        assert [row["error"] for row in run.journal.rows] == ["broken"]
        again = OpenSettings(run)
        left = [again.take(), again.take()]
        assert (number, [taken[0] for taken in left if taken]) == (0, [1, 2])
        assert again.take() is None
        assert again.over


def test_the_memory_budget_reaches_whoever_computes() -> None:
    evm = POSTPROCESSORS.info("evm").params
    setting = complete_setting({"tail_size": 5}, evm, "grid")
    service = start_service("evm", EvaluationOptions(memory=1 << 20), callers=1)
    try:
        features = {"train": ray.put(TRAIN), "val": ray.put(VAL)}
        answer = ray.get(service.evaluate.remote(setting, features), timeout=900)
    finally:
        ray.kill(service)
    assert re.search(r"need at least \d+ MiB, the memory budget is 1 MiB", answer["error"])


def test_shards_give_the_rows_of_one_process() -> None:
    evm = POSTPROCESSORS.info("evm").params
    space = load_space("evm", evm, overrides=("tail_size=5,20,60", "distance_multiplier=0.3,0.9"))
    settings = [complete_setting(setting, evm, "grid") for setting in space.settings()]
    sources = []

    def two_shards(gallery: Any) -> ShardedSource:
        sources.append(ShardedSource(gallery, 2, cpus_per_shard=0.5))
        return sources[0]

    try:
        sharded = SharedFeatures("evm", TRAIN, VAL, EvaluationOptions(expected=tuple(settings)), make_source=two_shards)
        answers = [sharded([setting])[0] for setting in settings[:2]] + sharded(settings[2:])
    finally:
        for source in sources:
            source.close()
    assert len(sources) == 1
    alone = SharedFeatures("evm", TRAIN, VAL)(settings)
    rows, expected = ([[repr(answer[name]) for name in RATES] for answer in part] for part in (answers, alone))
    assert rows == expected  # repr: a rate that cannot be reached is nan


def test_trial_processes_import_nothing_heavy() -> None:
    """Starting them is what a small search waits for; a handle of the service brings its module with it."""
    loaded = "import sys, oscbench.distributed.service, oscbench.distributed.trial; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "ray" in modules
    assert not {"torch", "numba", "scipy", "sklearn", "optuna", "oscbench.tuning"} & set(modules)


@pytest.mark.parametrize("needs", [{"logits"}, {"logits", "pooled"}])
def test_features_travel_by_reference_not_in_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: set[Any]
) -> None:
    """A feature set larger than what Tune lets a trainable carry goes through; pooled vectors where they are used."""
    stored: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value, **options: (stored.append(value), put(value, **options))[1])
    mls = dataclasses.replace(POSTPROCESSORS.info("mls"), needs=frozenset(needs))
    monkeypatch.setitem(POSTPROCESSORS._entries, "mls", mls)
    big = make_features(4000, dims=600)
    assert big.embedding.nbytes > 50e6
    mapped = np.lib.format.open_memmap(tmp_path / "e.npy", "w+", np.float32, big.embedding.shape)
    mapped[:] = big.embedding
    pooled = np.ones((len(big), 3), np.float32)
    search = search_in(tmp_path, "mls", train=dataclasses.replace(big, embedding=mapped, pooled=pooled))
    search = dataclasses.replace(search, validation=make_features(5, dims=600, negatives=9, seed=1))
    with SearchRun(search) as run:
        run_search(run, shared(search))
        run.finish()
    assert is_finished(search)
    (train,) = [value for value in stored if isinstance(value, FeatureSet) and len(value) == len(big)]
    assert type(train.embedding) is np.ndarray  # not a memory map, which would be copied
    assert (train.pooled is not None) == ("pooled" in needs)
    sizes = [file.stat().st_size for file in (search.folder / "ray").rglob("*") if file.is_file()]
    assert sum(sizes) < 1e6


@pytest.mark.slow
def test_a_time_budget_leaves_the_rest_for_later(tmp_path: Path) -> None:
    search = search_in(tmp_path, "openmax", SMALL)
    with SearchRun(search) as run:
        run_search(run, shared(search), time_budget=0.01)
        assert run.done < search.total
    assert not is_finished(search)
    with SearchRun(search) as run:
        run_search(run, shared(search))
        run.finish()
    assert is_finished(search)
    assert len(read_trials(search.folder / "trials.csv")) == search.total


def test_tensorboard_events_on_request(tmp_path: Path) -> None:
    search = search_in(tmp_path, "mls")
    with SearchRun(search) as run:
        run_search(run, shared(search), tensorboard=True)
    assert list((search.folder / "ray").rglob("events.out.tfevents*"))


def test_no_free_cpu_is_said_instead_of_waiting_for_ever() -> None:
    @ray.remote(num_cpus=2)
    class Holder:
        def ready(self) -> bool:
            return True

    holder = Holder.remote()
    ray.get(holder.ready.remote(), timeout=900)
    try:
        with pytest.raises(OscbenchError, match=r"no free CPU for a trial: the cluster has 2 CPU, 0 free"):
            wait_for_room(0.5, seconds=1.0)
    finally:
        ray.kill(holder)
    wait_for_room(0.5, seconds=20.0)


def test_features_that_the_object_store_cannot_hold_are_refused_before_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr("oscbench.distributed.tune.ray.put", sent.append)
    monkeypatch.setattr("oscbench.distributed.tune.object_store_bytes", lambda: 1000)
    search = search_in(tmp_path, "energy")
    said = r"energy needs 0\.00 GiB .* --object-store-memory=\d+ .*--local"
    with pytest.raises(UsageError, match=said), SearchRun(search) as run:
        run_search(run, shared(search))
    assert not sent


def test_the_object_store_is_as_large_as_ray_says() -> None:
    assert object_store_bytes() == ray.cluster_resources()["object_store_memory"]
