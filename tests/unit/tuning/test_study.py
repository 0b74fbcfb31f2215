"""The Optuna side of a search: repeatable proposals, the study journal after any crash, the mirror of the live page."""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from oscbench.errors import UsageError
from oscbench.tuning.proposals import Proposer, distribution
from oscbench.tuning.published import published_best
from oscbench.tuning.space import Range, SearchSpace, Setting, load_space
from oscbench.tuning.study import StudyLog, StudyMirror, open_storage
from oscbench.tuning.trials import trial_id

SPACE = SearchSpace(
    algorithm="toy",
    grid={"tail_size": (1, 2, 3), "mode": ("a", "b")},
    ranges={
        "tail_size": Range(type="int", low=1, high=500, log=True),
        "distance_multiplier": Range(type="float", low=0.1, high=2.0),
    },
)


def value_of(setting: Setting) -> float:
    """A smooth hill with its top at (40, 0.7)."""
    return -((float(setting["tail_size"]) - 40) ** 2 / 1e4) - (float(setting["distance_multiplier"]) - 0.7) ** 2


def run(proposer: Proposer, count: int, shuffle: random.Random | None = None, concurrent: int = 4) -> list[Setting]:
    """Plays a search in which up to ``concurrent`` trials run at once and finish in any order."""
    proposed: list[Setting] = []
    running: list[int] = []
    while len(proposed) < count or running:
        while len(proposed) < count and len(running) < concurrent and proposer.ready():
            setting = proposer.propose()
            assert setting is not None
            running.append(len(proposed))
            proposed.append(setting)
        number = running.pop(shuffle.randrange(len(running)) if shuffle else 0)
        proposer.tell(number, value_of(proposed[number]))
    return proposed


@pytest.mark.parametrize("search", ["optuna", "random"])
def test_the_sequence_depends_on_the_seed_alone(search: Any) -> None:
    first = run(Proposer(SPACE, search, 3), 24)
    for order in range(3):
        assert run(Proposer(SPACE, search, 3), 24, random.Random(order), concurrent=order + 1) == first
    assert run(Proposer(SPACE, search, 4), 24) != first


def test_the_nth_draw_is_that_of_the_seed_and_n() -> None:
    proposed = run(Proposer(SPACE, "random", 7), 6)
    for number, setting in enumerate(proposed):
        seed = int(np.random.SeedSequence([7, number, 0]).generate_state(1)[0])
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        assert study.ask({name: distribution(limits) for name, limits in SPACE.ranges.items()}).params == setting


def test_no_setting_is_proposed_twice_and_a_small_space_ends() -> None:
    small = SearchSpace(
        algorithm="toy",
        grid={},
        ranges={"tail_size": Range(type="int", low=1, high=6), "m": Range(type="choice", values=("a",))},
    )
    for search in ("optuna", "random"):
        proposer = Proposer(small, search, 0, generation=2)
        assert proposer.size == 6
        seen = []
        while (setting := proposer.propose()) is not None:
            proposer.tell(len(seen), float(setting["tail_size"]))
            seen.append(setting)
        assert sorted(int(setting["tail_size"]) for setting in seen) == [1, 2, 3, 4, 5, 6]


def test_a_generation_waits_for_the_one_before_the_last() -> None:
    proposer = Proposer(SPACE, "optuna", 0, generation=2)
    for _ in range(4):
        assert proposer.ready()
        assert proposer.propose() is not None
    assert not proposer.ready()
    proposer.tell(1, 0.5)
    proposer.tell(3, 0.5)
    assert not proposer.ready()
    proposer.tell(0, None)  # a failed trial counts as answered
    assert proposer.ready()
    assert proposer.propose() is not None


def test_the_warm_start_comes_first_when_it_lies_inside() -> None:
    inside: Setting = {"tail_size": 100, "distance_multiplier": 0.4, "cover_threshold": 1.0}
    space = load_space("evm", None)
    assert Proposer(space, "optuna", 0, warm_start=inside).propose() == inside
    for outside in ({"tail_size": 10**6}, {"cover_threshold": 0.5}, {"distance_multiplier": "x"}):
        assert Proposer(space, "optuna", 0, warm_start=inside | outside).propose() != inside | outside
    assert Proposer(space, "optuna", 0, warm_start={"tail_size": 5}).propose() is not None


def test_tpe_learns() -> None:
    """On a smooth hill the best of 40 lies nearer to the top with TPE than with independent draws (median of seeds)."""
    distance = {}
    for search in ("optuna", "random"):
        tops = [max(map(value_of, run(Proposer(SPACE, search, seed), 40))) for seed in range(5)]
        distance[search] = -statistics.median(tops)
    assert distance["optuna"] < distance["random"] / 3, distance


def test_a_space_without_ranges_is_refused() -> None:
    with pytest.raises(UsageError, match="has no ranges"):
        Proposer(SearchSpace(algorithm="toy", grid={}, ranges={}), "optuna", 0)


def test_published_optimum() -> None:
    best = published_best("openmax", "p3", "eos")
    assert best is not None
    assert best.setting == {"tail_size": 250, "distance_multiplier": 2.0, "alpha": 10}
    assert best.sum == 1.9241
    assert published_best("evm", "own", "softmax") is None
    assert published_best("mss", "p1", "softmax") is None
    count = [
        (a, p, t)
        for a in ("openmax", "evm", "proser")
        for p in ("p1", "p2", "p3")
        for t in ("softmax", "garbage", "eos")
    ]
    assert all(published_best(*key) is not None for key in count)


# --- the study journal -------------------------------------------------------------------------------------------


def row(tail_size: int, mode: str = "a", **changes: Any) -> dict[str, Any]:
    setting = {"tail_size": tail_size, "mode": mode}
    base = {"trial_id": trial_id(setting), "status": "done", **setting, "ccr_1e-3": float("nan"), "ccr_1": 0.5}
    return base | {"sum": 1.0 + tail_size, "seconds": 0.1, "error": ""} | changes


def trials_in(path: Path) -> list[optuna.trial.FrozenTrial]:
    storage = open_storage(path)
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id)


def test_finished_and_failed_trials_are_in_the_study(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    log = StudyLog(path, "toy", SPACE, "grid", [])
    log.add(row(1))
    log.add(row(2, "b", status="failed", sum=None, error="boom"))
    done, failed = trials_in(path)
    assert (done.value, done.params) == (2.0, {"tail_size": 1, "mode": "a"})
    assert done.user_attrs["ccr_1"] == 0.5
    assert "ccr_1e-3" not in done.user_attrs
    assert failed.state == optuna.trial.TrialState.FAIL
    assert failed.user_attrs["error"] == "boom"


def test_a_trial_on_its_way_is_shown_running_and_then_as_what_became_of_it(tmp_path: Path) -> None:
    path, mirror = tmp_path / "study.log", StudyMirror(tmp_path)
    log = StudyLog(path, "toy", SPACE, "grid", [])

    def shown() -> list[tuple[str, dict[int, float], dict[str, Any]]]:
        mirror.refresh()
        (study,) = mirror.storage.get_all_studies()
        copies = mirror.storage.get_all_trials(study._study_id)
        assert [(t.state, t.intermediate_values, t.value) for t in copies] == [
            (t.state, t.intermediate_values, t.value) for t in trials_in(path)
        ]
        return [(trial.state.name, trial.intermediate_values, trial.params) for trial in copies]

    first, second = ({"tail_size": size, "mode": "a"} for size in (1, 2))
    log.step(trial_id(first), first, 1, {"sum": 0.5})
    assert shown() == [("RUNNING", {1: 0.5}, first)]
    log.step(trial_id(second), second, 1, {"sum": 0.2})
    log.step(trial_id(first), first, 2, {"sum": 0.6})
    assert shown() == [("RUNNING", {1: 0.5, 2: 0.6}, first), ("RUNNING", {1: 0.2}, second)]
    stopped = row(2, status="pruned", sum=0.2)
    log.add(stopped)
    assert [state for state, _, _ in shown()] == ["RUNNING", "PRUNED"]
    log = StudyLog(path, "toy", SPACE, "grid", [stopped])  # killed and resumed: the first trial goes on
    log.step(trial_id(first), first, 3, {"sum": 0.7})
    log.add(row(1))
    assert shown() == [("COMPLETE", {1: 0.5, 2: 0.6, 3: 0.7}, first), ("PRUNED", {1: 0.2}, second)]
    assert trials_in(path)[0].user_attrs["ccr_1"] == 0.5
    StudyLog(path, "toy", SPACE, "grid", [stopped, row(1)])
    assert len(trials_in(path)) == 2


def test_cut_at_every_byte_the_study_is_brought_in_step_with_the_table(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    rows = [row(1), row(2), row(3, "b")]
    StudyLog(path, "toy", SPACE, "grid", rows)
    content = path.read_bytes()
    for cut in range(0, len(content) + 1, 7):
        path.write_bytes(content[:cut])
        StudyLog(path, "toy", SPACE, "grid", rows)
        assert [trial.value for trial in trials_in(path)] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("content", [b"nonsense\n", b'{"op_code": 99}\n', b'{"a": 1}\nnonsense\n{"a": 1}\n', b"[1]\n"])
def test_a_damaged_study_is_made_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.log"
    path.write_bytes(content)
    StudyLog(path, "toy", SPACE, "grid", [row(1)])
    assert [trial.value for trial in trials_in(path)] == [2.0]


def test_a_study_of_other_trials_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    StudyLog(path, "toy", SPACE, "grid", [row(1), row(2)])
    StudyLog(path, "toy", SPACE, "grid", [row(3)])
    assert [trial.value for trial in trials_in(path)] == [4.0]


def test_a_killed_writer_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    StudyLog(path, "toy", SPACE, "grid", [row(1)])
    code = f"""
        import os, signal
        from pathlib import Path
        from oscbench.tuning.study import open_storage
        open_storage(Path({str(path)!r}))._backend._lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert killed.returncode == -signal.SIGKILL
    StudyLog(path, "toy", SPACE, "grid", [row(1)]).add(row(2))
    assert [trial.value for trial in trials_in(path)] == [2.0, 3.0]


def test_the_mirror_follows_running_and_new_searches(tmp_path: Path) -> None:
    mirror = StudyMirror(tmp_path)
    assert mirror.refresh() == 0
    (tmp_path / "a").mkdir()
    log = StudyLog(tmp_path / "a" / "study.log", "first", SPACE, "grid", [row(1)])
    assert mirror.refresh() == 1
    log.add(row(2))
    log.add(row(3))
    assert mirror.refresh() == 3
    (tmp_path / "b").mkdir()
    StudyLog(tmp_path / "b" / "study.log", "second", SPACE, "grid", [row(1)])
    StudyLog(tmp_path / "b" / "copy.log", "second", SPACE, "grid", [row(1)])
    assert mirror.refresh() == 4
    assert {study.study_name for study in mirror.storage.get_all_studies()} == {"first", "second"}
    (tmp_path / "a" / "study.log").unlink()  # begun anew by its search
    StudyLog(tmp_path / "a" / "study.log", "first", SPACE, "grid", [row(3)])
    assert mirror.refresh() == 2
    assert mirror.refresh() == 2


def test_the_mirror_survives_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "study.log").write_bytes(b"nonsense\n" * 3)
    mirror = StudyMirror(tmp_path)
    assert mirror.refresh() == 0
    (tmp_path / "study.log").unlink()
    StudyLog(tmp_path / "study.log", "toy", SPACE, "grid", [row(1)])
    assert mirror.refresh() == 1
