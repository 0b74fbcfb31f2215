"""One search and its folder, without Ray: fingerprints, resuming, recording, products, locks; and the evaluator."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feature_factory import make_features
from search_factory import is_finished, make_search, shared

from oscbench.errors import OscbenchError, UsageError
from oscbench.metrics import ccr_at_fpr, oscr_curve
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.tuning.evaluator import Outcome, SharedFeatures, check_validation
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.space import Setting, load_space
from oscbench.tuning.trials import RATES, Best, read_trials, trial_id

TRAIN = make_features(30, negatives=20)
VAL = make_features(15, negatives=50, seed=1)


def search_in(runs: Path, algorithm: str = "openmax", **changes: Any) -> Search:
    space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params)
    base: dict[str, Any] = {"training": "softmax", "seed": 0, "algorithm": algorithm, "train": TRAIN, "validation": VAL}
    return make_search(runs, **(base | {"space": space} | changes))


def small(runs: Path, **changes: Any) -> Search:
    params = POSTPROCESSORS.info("openmax").params
    space = load_space("openmax", params, overrides=["tail_size=5,20", "distance_multiplier=1.5,2.0", "alpha=2,3"])
    return search_in(runs, space=space, **changes)


def finish_all(search: Search, stop_after: int | None = None) -> None:
    """Runs a search in this process, in order, perhaps not to its end."""
    evaluator = shared(search)
    with SearchRun(search) as run:
        for count, setting in enumerate(run.remaining()):
            if stop_after is not None and count >= stop_after:
                return
            run.record(setting, evaluator([setting])[0])
        run.finish()


STABLE = ["seconds", "finished_at"]
ON_FEATURES = sorted(name for name in POSTPROCESSORS.names() if not POSTPROCESSORS.info(name).fine_tunes)


def test_table_in_pieces_equals_table_at_once(tmp_path: Path) -> None:
    whole, pieces = small(tmp_path / "a"), small(tmp_path / "b")
    finish_all(whole)
    for _ in range(4):
        finish_all(pieces, stop_after=2)
    finish_all(pieces)
    first, second = (read_trials(search.folder / "trials.csv").drop(columns=STABLE) for search in (whole, pieces))
    pd.testing.assert_frame_equal(first, second)
    assert len(first) == whole.total == 8
    assert is_finished(whole)
    assert is_finished(pieces)
    assert Best.read(whole.folder / "best.yaml") == Best.read(pieces.folder / "best.yaml")


@pytest.mark.parametrize("algorithm", ON_FEATURES)
def test_one_by_one_batch_and_whole_grid_give_equal_rows(algorithm: str, tmp_path: Path) -> None:
    search = search_in(tmp_path, algorithm)
    settings = search.grid_settings()[:: max(1, search.total // 12)]
    evaluator = SharedFeatures(algorithm, TRAIN, VAL)
    whole = [_rates(outcome) for outcome in evaluator(settings)]
    assert [_rates(evaluator([setting])[0]) for setting in settings] == whole
    backwards = evaluator(settings[::-1])
    assert [_rates(outcome) for outcome in backwards][::-1] == whole
    halves = (
        evaluator(settings[: len(settings) // 2]) + evaluator(settings[len(settings) // 2 :])
        if len(settings) > 1
        else []
    )
    assert [_rates(outcome) for outcome in halves] == (whole if halves else [])


@pytest.mark.parametrize("algorithm", ON_FEATURES)
def test_what_is_kept_between_calls_changes_nothing(algorithm: str, tmp_path: Path) -> None:
    search = search_in(tmp_path, algorithm)
    settings = search.grid_settings()[:: max(1, search.total // 12)]
    fresh, keeping = SharedFeatures(algorithm, TRAIN, VAL), shared(search)
    for setting in settings:
        assert _rates(keeping([setting])[0]) == _rates(fresh([setting])[0])
    assert [_rates(outcome) for outcome in keeping(settings)] == [_rates(outcome) for outcome in fresh(settings)]


def test_corners_of_the_ranges_enclose_a_budgeted_search(tmp_path: Path) -> None:
    corners = search_in(tmp_path, kind="optuna").expected_settings()
    assert {(corner["tail_size"], corner["alpha"]) for corner in corners} == {(5, 1), (5, 30), (2000, 1), (2000, 30)}
    assert search_in(tmp_path).expected_settings() == search_in(tmp_path).grid_settings()


def _rates(outcome: Outcome) -> list[str]:
    return [repr(outcome[name]) for name in RATES]  # repr: nan equals nan


def test_objective_equals_fit_score_metric() -> None:
    entry = POSTPROCESSORS.info("mss")
    found = entry.value(entry.params(), score_kind=entry.score_kinds[0]).fit(TRAIN).predict(VAL.inputs())
    curve = oscr_curve(VAL.labels, found, unknown_label=-1)
    expected = [ccr_at_fpr(curve, fpr) for fpr in (1e-3, 1e-2, 1e-1, 1.0)]
    (outcome,) = SharedFeatures("mss", TRAIN, VAL)([{}])
    assert [outcome[name] for name in RATES] == [*expected, pytest.approx(np.nansum(expected), abs=1e-15)]


def test_a_failing_setting_does_not_take_the_others_with_it() -> None:
    evaluator = SharedFeatures("openmax", TRAIN, VAL)
    good: Setting = {"tail_size": 5, "distance_multiplier": 1.5, "alpha": 2}
    first, bad, last = evaluator([good, good | {"tail_size": -4}, good])
    assert first["sum"] == last["sum"]
    assert "tail_size" in bad["error"]
    assert set(bad) == {"error", "notes"}
    assert bad["notes"] == ()
    assert [str(note) for note in first["notes"]] == list(map(str, last["notes"]))


def test_features_without_logits_fail_with_a_clear_reason(tmp_path: Path) -> None:
    bare = [dataclasses.replace(split, logits=None) for split in (TRAIN, VAL)]
    search = search_in(tmp_path, "mss", train=bare[0], validation=bare[1])
    with pytest.raises(OscbenchError, match="no trial of mss finished: MSS needs logits"):
        finish_all(search)
    assert read_trials(search.folder / "trials.csv")["status"].tolist() == ["failed"]
    assert not is_finished(search)


def test_validation_without_negatives_says_what_cannot_be_computed() -> None:
    with pytest.raises(UsageError, match=r"val has no negatives.*1e-3, 1e-2 and 1e-1 cannot be computed"):
        check_validation(make_features(5).labels, "val")
    check_validation(VAL.labels, "val")
    only_negatives = make_features(0, negatives=5)
    with pytest.raises(UsageError, match="has no known samples"):
        check_validation(only_negatives.labels, "val")


def test_the_fingerprint_follows_what_decides_the_table_and_nothing_else(tmp_path: Path) -> None:
    base = search_in(tmp_path)
    assert base.fingerprint == search_in(tmp_path / "elsewhere").fingerprint
    assert base.fingerprint == search_in(tmp_path, trials=7).fingerprint
    assert base.fingerprint == search_in(tmp_path, generation=9).fingerprint
    different = [
        search_in(tmp_path, algorithm="mss"),
        search_in(tmp_path, training="eos"),
        search_in(tmp_path, seed=1),
        search_in(tmp_path, rule="published"),
        search_in(tmp_path, score_kind="probability"),
        search_in(tmp_path, kind="optuna"),
        search_in(tmp_path, kind="optuna", generation=9),
        search_in(tmp_path, kind="random"),
        search_in(tmp_path, validation=make_features(15, negatives=50, seed=2)),
        search_in(tmp_path, train=make_features(30, negatives=20, seed=2)),
        small(tmp_path),
    ]
    assert len({base.fingerprint, *(search.fingerprint for search in different)}) == len(different) + 1


def test_totals(tmp_path: Path) -> None:
    assert search_in(tmp_path).total == 96
    assert search_in(tmp_path, "mss").total == 1
    assert search_in(tmp_path, "mls", kind="optuna").total == 1
    assert search_in(tmp_path, kind="optuna").total == 60
    assert search_in(tmp_path, kind="random", trials=5).total == 5
    assert small(tmp_path, kind="optuna").total == 8  # no more settings than there are


def test_counts_and_names_in_the_table(tmp_path: Path) -> None:
    search = small(tmp_path)
    finish_all(search)
    table = read_trials(search.folder / "trials.parquet")
    assert set(table["n_known"]) == {int((VAL.labels >= 0).sum())}
    assert set(table["n_negative"]) == {50}
    assert set(table["run_id"]) == {search.fingerprint[:8]}
    assert search.folder.name == f"tune-{search.fingerprint[:8]}"
    assert table["trial_id"].is_unique
    pd.testing.assert_frame_equal(table, read_trials(search.folder / "trials.csv"))


def test_best_yaml_says_whether_the_search_is_complete(tmp_path: Path) -> None:
    search, objective = small(tmp_path), SharedFeatures("openmax", TRAIN, VAL)
    with SearchRun(search) as run:
        for setting in run.remaining()[:3]:
            run.record(setting, objective([setting])[0])
        run.finish()  # as when time is over
    assert not Best.read(search.folder / "best.yaml").complete
    finish_all(search)
    best = Best.read(search.folder / "best.yaml")
    assert (best.complete, best.search) == (True, "grid")


def test_a_journal_of_another_version_is_refused_every_time(tmp_path: Path) -> None:
    search = small(tmp_path)
    search.folder.mkdir(parents=True)
    (search.folder / "trials.csv").write_text("run_id,status\n")
    for _ in range(2):
        with pytest.raises(UsageError, match="written by another version"), SearchRun(search):
            pass


def test_a_longer_budget_goes_on_with_the_same_search(tmp_path: Path) -> None:
    def play(search: Search) -> list[Setting]:
        evaluator, proposer, proposed = SharedFeatures("openmax", TRAIN, VAL), search.proposer(), []
        with SearchRun(search) as run:
            while len(proposed) < search.total:
                assert proposer.ready()
                proposal = proposer.propose()
                assert proposal is not None
                setting = search.complete(proposal)
                if run.sums().get(trial_id(setting)) is None:
                    run.record(setting, evaluator([setting])[0])
                proposer.tell(len(proposed), run.sums().get(trial_id(setting)))
                proposed.append(setting)
            run.finish()
        return proposed

    short = play(search_in(tmp_path, kind="optuna", trials=6))
    longer = search_in(tmp_path, kind="optuna", trials=14)
    assert not is_finished(longer)
    assert play(longer)[:6] == short
    assert is_finished(longer)
    assert len(read_trials(longer.folder / "trials.csv")) == 14


# --- the settings that wait for the service ----------------------------------------------------------------------


def test_what_waits_is_evaluated_together_and_answered_each() -> None:
    from oscbench.distributed.service import PendingSettings

    entered, release = threading.Event(), threading.Event()

    def evaluate(settings: Sequence[Setting]) -> list[Outcome]:
        entered.set()
        release.wait(300)
        return [{"sum": float(setting["tail_size"]) * 2} for setting in settings]

    pending, answers = PendingSettings(evaluate), {}

    def ask(number: int) -> None:
        answers[number] = pending.ask({"tail_size": number})["sum"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(9)]
    threads[0].start()
    assert entered.wait(300)
    for thread in threads[1:]:
        thread.start()
    while len(pending._waiting) < 8:
        time.sleep(0.01)
    release.set()
    for thread in threads:
        thread.join(300)
    assert answers == {number: 2.0 * number for number in range(9)}
    assert pending.passes == [1, 8]


def test_the_first_pass_waits_for_all_callers_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from oscbench.distributed import service

    def evaluate(settings: Sequence[Setting]) -> list[Outcome]:
        return [dict(setting) for setting in settings]

    pending = service.PendingSettings(evaluate, callers=3)
    threads = [threading.Thread(target=pending.ask, args=({"tail_size": number},)) for number in range(3)]
    for thread in threads:
        assert pending.passes == []
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(300)
    assert pending.ask({"tail_size": 9}) == {"tail_size": 9}  # nobody is waited for later on
    assert pending.passes == [3, 1]

    monkeypatch.setattr(service, "GATHER_SECONDS", 0.1)
    alone = service.PendingSettings(evaluate, callers=3)
    assert alone.ask({"tail_size": 1}) == {"tail_size": 1}
    assert alone.passes == [1]
