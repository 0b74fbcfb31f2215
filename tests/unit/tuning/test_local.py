"""Searches in this process: the rows of a plain loop, trials that train, progress and the memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from feature_factory import make_features
from search_factory import is_finished, make_search, shared
from stepping_evaluator import STEPS, Stepping, fallen_behind

from oscbench.errors import OscbenchError
from oscbench.numerics.evm.source import LocalSource
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.evm import Evm
from oscbench.progress import PassMeter, PassProgress
from oscbench.tuning.evaluator import EvaluationOptions, Nobody, SharedFeatures
from oscbench.tuning.local import run_search_here
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.space import Setting, complete_setting, load_space
from oscbench.tuning.trials import RATES, read_trials, trial_id

TRAIN = make_features(30, negatives=20)
VAL = make_features(15, negatives=50, seed=1)


def search_in(runs: Path, *overrides: str, algorithm: str = "openmax", **changes: Any) -> Search:
    space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params, overrides=overrides)
    base = {"training": "softmax", "seed": 0, "algorithm": algorithm, "train": TRAIN, "validation": VAL}
    return make_search(runs, **(base | {"space": space} | changes))


class Seen(Nobody):
    """Everything a search tells, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def update(self, run: SearchRun) -> None:
        self.told.append(run.done)

    def progress(self, run: SearchRun, current: PassProgress) -> None:
        self.told.append(current)

    def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
        self.told.append((setting["tail_size"], step, dict(values)))


def rows(search: Search) -> dict[str, list[str]]:
    """The rates of each trial; repr: nan equals nan."""
    table = read_trials(search.folder / "trials.csv")
    return {row["trial_id"]: [repr(row[rate]) for rate in RATES] for row in table.to_dict("records")}


@pytest.mark.parametrize(("kind", "trials"), [("grid", 0), ("optuna", 11), ("random", 7)])
def test_rows_and_order_are_those_of_a_plain_loop(tmp_path: Path, kind: Any, trials: int) -> None:
    overrides = ("tail_size=5,20,60", "distance_multiplier=1.5,2.0", "alpha=2,3")
    whole, pieces = (search_in(tmp_path / name, *overrides, kind=kind, trials=trials) for name in "ab")
    seen = Seen()
    with SearchRun(whole) as run:
        run_search_here(run, shared(whole), watcher=seen)
        run.finish()
    assert [told for told in seen.told if isinstance(told, int)] == list(range(1, whole.total + 1))
    alone = SharedFeatures("openmax", TRAIN, VAL)
    with SearchRun(pieces) as run:
        proposer = None if pieces.is_exhaustive else pieces.proposer()
        for number in range(pieces.total):
            proposal = pieces.grid_settings()[number] if proposer is None else proposer.propose()
            assert proposal is not None
            setting = pieces.complete(proposal)
            run.record(setting, alone([setting])[0])
            if proposer is not None:
                proposer.tell(number, run.sums().get(trial_id(setting)))
    assert rows(whole) == rows(pieces)
    assert is_finished(whole)
    with SearchRun(whole) as run:
        run_search_here(run, alone, watcher=seen)
    assert len(rows(whole)) == whole.total  # nothing was tried again


def test_no_pass_begins_after_the_time_budget(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    with SearchRun(search) as run:
        run_search_here(run, shared(search), time_budget=0.0)
        assert run.done == 0


def test_a_trial_goes_on_from_its_folder_and_an_error_is_its_own(tmp_path: Path) -> None:
    search = search_in(tmp_path, "tail_size=1,2,13", "distance_multiplier=2.0", "alpha=2")
    evaluator, seen = Stepping(log=tmp_path / "log", refuses=(13,), keeps_folders=True), Seen()

    class Interrupting(Nobody):
        def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
            if (setting["tail_size"], step) == (2, 3):
                raise KeyboardInterrupt

    with SearchRun(search) as run, pytest.raises(KeyboardInterrupt):
        run_search_here(run, evaluator, watcher=Interrupting())
    with SearchRun(search) as run:
        run_search_here(run, evaluator, watcher=seen)
    assert evaluator.steps() == dict.fromkeys((1, 2), list(range(STEPS)))
    assert seen.told == [
        (2, STEPS, dict.fromkeys(RATES, 0.02) | {"loss": 1 / STEPS}),
        2,
        2,
    ]  # the failed trial counts as not finished
    assert [note["attempt"] for note in evaluator.notes("begun")] == [0, 0, 1, 0]
    assert read_trials(search.folder / "trials.csv")["error"].tolist() == ["", "", "RuntimeError: 13 is refused"]
    assert len(evaluator.notes("cleaned up")) == 2
    assert len(list((search.folder / "trials").iterdir())) == 3
    with SearchRun(search) as run:
        run_search_here(run, Stepping(log=tmp_path / "log"))
    assert len(list((search.folder / "trials").iterdir())) == 2  # its own is gone, what was to be kept is not


def test_trials_that_fall_behind_are_stopped_and_an_interruption_changes_nothing(tmp_path: Path) -> None:
    searches = [search_in(tmp_path / name, kind="random", trials=9) for name in ("whole", "interrupted")]
    logs = [Stepping(log=tmp_path / name, longest=STEPS) for name in ("log", "log of the interrupted")]

    class Interrupting(Nobody):
        def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
            if run.done and step == 2:
                raise KeyboardInterrupt

    with SearchRun(searches[0]) as run:
        run_search_here(run, logs[0])
    with SearchRun(searches[1]) as run, pytest.raises(KeyboardInterrupt):
        run_search_here(run, logs[1], watcher=Interrupting())
    with SearchRun(searches[1]) as run:
        assert 1 <= run.done < 9
        run_search_here(run, logs[1])
    tables = [read_trials(search.folder / "trials.csv") for search in searches]
    behind = fallen_behind(tables[0]["tail_size"] / 100)
    assert tables[0]["status"].tolist() == ["pruned" if step else "done" for step in behind]
    assert {"pruned", "done"} == set(tables[0]["status"])
    for log in logs:
        assert [len(log.steps()[size]) for size in tables[0]["tail_size"]] == [step or STEPS for step in behind]
    assert rows(searches[0]) == rows(searches[1])


def test_progress_of_a_pass_comes_before_its_results_and_never_goes_back(tmp_path: Path) -> None:
    train, val = make_features(300, negatives=20), make_features(600, negatives=50, seed=1)
    overrides = ("tail_size=5,20", "distance_multiplier=0.3,0.5", "metric=cosine,euclidean")
    search, seen = search_in(tmp_path, *overrides, algorithm="evm", train=train, validation=val), Seen()
    with SearchRun(search) as run:
        run_search_here(run, shared(search), together=4, watcher=seen)
    first = seen.told[: seen.told.index(1)]
    assert len(first) > 3
    shares = [current.done / current.total for current in first]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    assert {(current.number, current.settings) for current in first} == {(1, 4)}
    assert {current.number for current in seen.told if isinstance(current, PassProgress)} == {1, 2}


def test_a_meter_never_goes_back() -> None:
    told: list[PassProgress] = []
    meter = PassMeter(1, 4, told.append)
    for done, total in ((3, 10), (2, 10), (3, 10), (1, 2), (4, 10)):
        meter(done, total)
    assert [(current.done, current.total) for current in told] == [(3, 10), (1, 2)]


# --- the memory budget -------------------------------------------------------------------------------------------


def evm_settings() -> list[Setting]:
    params = POSTPROCESSORS.info("evm").params
    space = load_space("evm", params, overrides=("tail_size=5,20,60", "distance_multiplier=0.3,0.5,0.9"))
    return [complete_setting(setting, params, "grid") for setting in space.settings()]


def test_a_memory_budget_changes_the_passes_and_not_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, passes, one_pass = evm_settings(), [], LocalSource._one_pass

    def counted(self: LocalSource, queries: Any, group: Sequence[Any], *rest: Any) -> Any:
        passes.append(len(group))
        return one_pass(self, queries, group, *rest)

    monkeypatch.setattr(LocalSource, "_one_pass", counted)
    records = [POSTPROCESSORS.info("evm").params(**setting) for setting in settings]
    gallery = Evm.gallery(TRAIN, records[-1])
    needed = LocalSource(gallery).plan(len(VAL), records).needed
    tables = []
    for memory in (None, needed, needed - 320 * len(gallery)):  # room for neither 60 float32 per row nor the last fits
        passes.clear()
        evaluator = SharedFeatures("evm", TRAIN, VAL, EvaluationOptions(memory=memory, expected=tuple(settings)))
        tables.append([[repr(outcome[rate]) for rate in RATES] for outcome in evaluator(settings)])
        evaluator.clean_up()
        assert (len(passes[1:]) > 1) == (memory is not None and memory < needed)  # the first one is for the tails
        assert sum(passes[1:]) == len(settings)
    assert tables[0] == tables[1] == tables[2]


def test_too_small_a_memory_budget_is_one_clear_line(tmp_path: Path) -> None:
    search = search_in(tmp_path, "tail_size=5", "distance_multiplier=0.3", algorithm="evm")
    with SearchRun(search) as run:
        run_search_here(run, shared(search, memory=1 << 20))
        with pytest.raises(
            OscbenchError, match=r"no trial of evm finished: .*need at least \d+ MiB, the memory budget"
        ):
            run.finish()
    both = [setting | {"metric": metric} for setting in evm_settings()[:1] for metric in ("cosine", "euclidean")]
    options = EvaluationOptions(memory=1 << 30, expected=tuple(both))
    outcomes = SharedFeatures("evm", TRAIN, VAL, options)(both)
    assert all("one metric and one choice of negatives at a time" in outcome["error"] for outcome in outcomes)
