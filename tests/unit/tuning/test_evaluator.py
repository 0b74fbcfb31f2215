"""What a trial costs: its share of the pass in which it was evaluated."""

from __future__ import annotations

import time
from typing import Any

import pytest
from feature_factory import make_features

from oscbench.resources import Resources
from oscbench.tuning import evaluator as evaluator_module
from oscbench.tuning.evaluator import SharedFeatures
from oscbench.tuning.space import Setting

TRAIN = make_features(30, negatives=20)
VAL = make_features(15, negatives=50, seed=1)
SETTINGS: list[Setting] = [{"tail_size": t, "distance_multiplier": 1.5, "alpha": 2} for t in (5, 10, 15, 20)]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pass over some settings took that came to its end, by a clock of its own."""
    seconds: list[float] = []
    evaluate = evaluator_module.grid_answer

    def timed(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        answer = evaluate(*arguments, **options)
        seconds.append(time.perf_counter() - started)
        return answer

    monkeypatch.setattr(evaluator_module, "grid_answer", timed)
    return seconds


def test_the_seconds_of_a_pass_are_shared_evenly(passes: list[float]) -> None:
    """Together they took no less than the inside of the pass and no more than what was seen from outside."""
    shared = SharedFeatures("openmax", TRAIN, VAL)
    started = time.perf_counter()
    outcomes = shared(SETTINGS)
    whole = time.perf_counter() - started
    seconds = [outcome["seconds"] for outcome in outcomes]
    assert len(set(seconds)) == 1
    assert len(passes) == 1
    assert passes[0] <= sum(seconds) * (1 + 1e-9)
    assert sum(seconds) <= whole * (1 + 1e-9)


def test_settings_tried_one_by_one_after_a_failure_cost_their_own_time(passes: list[float]) -> None:
    shared = SharedFeatures("openmax", TRAIN, VAL)
    started = time.perf_counter()
    first, failed, last = shared([SETTINGS[0], SETTINGS[1] | {"tail_size": -4}, SETTINGS[2]])
    whole = time.perf_counter() - started
    assert "seconds" not in failed
    assert len(passes) == 2
    for inside, outcome in zip(passes, (first, last), strict=True):
        assert inside <= outcome["seconds"] * (1 + 1e-9)
    assert first["seconds"] + last["seconds"] <= whole * (1 + 1e-9)


def test_a_quick_search_starts_a_process_for_some_settings_and_a_long_one_many(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedFeatures("mss", make_features(5), make_features(5, negatives=5))
    have = Resources(cpus=2, gpus=0)
    assert [shared.concurrency(left, have) for left in (1, 5, 24, 25, 80, 500)] == [1, 1, 1, 2, 4, 4]
    slow = SharedFeatures("knn", shared.train, shared.validation)
    assert [slow.concurrency(left, have) for left in (1, 5, 80)] == [1, 1, 4]
    monkeypatch.setattr(evaluator_module, "LARGE_PAIRS", 20_000)
    assert [slow.concurrency(left, have) for left in (1, 5, 80)] == [1, 4, 4]
    assert [shared.concurrency(left, have) for left in (1, 5, 80)] == [1, 1, 4]
    monkeypatch.setattr(evaluator_module, "LARGE_PAIRS", 100)
    assert [shared.concurrency(left, have) for left in (1, 5, 80)] == [1, 5, 16]
