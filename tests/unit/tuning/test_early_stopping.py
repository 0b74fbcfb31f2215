"""Which trials fall behind: by plain comparison at each rung, and as if a search had never been interrupted."""

from __future__ import annotations

import numpy as np
import pytest

from oscbench.tuning.early_stopping import Rungs


@pytest.mark.parametrize(("longest", "rungs"), [(40, [4, 12, 36]), (20, [2, 6, 18]), (4, [1, 3]), (2, [1]), (1, [])])
def test_trials_are_compared_after_a_tenth_and_then_three_times_as_late(longest: int, rungs: list[int]) -> None:
    best = Rungs(longest, {"best": dict.fromkeys(range(1, longest + 1), 1.0)})
    stops = []
    for first in range(1, longest + 1):  # a trial that is good up to here and poor from here on
        trial = f"poor from {first}"
        went_on = [best.keeps_up(trial, step, 0.0 if step >= first else 2.0) for step in range(1, first + 1)]
        stops += [] if went_on[-1] else [first]
    assert stops == rungs


def test_a_third_of_those_that_came_as_far_goes_on() -> None:
    random, rungs, reached = np.random.default_rng(0), Rungs(10, {}), list[float]()
    for number, value in enumerate(random.random(200)):
        expected = not reached or value >= np.quantile(reached, 2 / 3)
        assert rungs.keeps_up(str(number), 1, float(value)) == expected
        assert rungs.keeps_up(str(number), 2, -1.0)  # compared once
        reached.append(float(value))


def test_a_search_taken_up_again_compares_with_what_was_reported_before() -> None:
    history: dict[str, dict[int, float]] = {}
    values = np.random.default_rng(1).random((12, 40))
    whole, decisions = Rungs(40, {}), []
    for trial, sums in enumerate(values):
        for step, value in enumerate(sums, start=1):
            history.setdefault(str(trial), {})[step] = float(value)
            decisions.append(whole.keeps_up(str(trial), step, float(value)))
            if not decisions[-1]:
                break
    assert not all(decisions)
    for killed_after in (0, 5, 9):
        known = {str(trial): history[str(trial)] for trial in range(killed_after)}
        known["9" if killed_after == 9 else "none"] = {step: history["9"][step] for step in list(history["9"])[:3]}
        again, rest = Rungs(40, known), []
        for trial in range(killed_after, 12):
            begun = 3 if killed_after == trial == 9 else 0
            rest += [
                again.keeps_up(str(trial), step, value) for step, value in list(history[str(trial)].items())[begun:]
            ]
        assert rest == decisions[-len(rest) :]
