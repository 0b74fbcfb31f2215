"""Every trial of every search as an Optuna study in a journal file, which ``oscbench watch`` shows live."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from oscbench.artifacts import ASIDE
from oscbench.tuning.proposals import distribution
from oscbench.tuning.space import SearchSpace, Value
from oscbench.tuning.trials import RATES, Row, drop_torn_line, plain_value

FILE = "study.log"
METRIC = "sum of CCR"
_STATES = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


def open_storage(path: Path) -> JournalStorage:
    """The Optuna storage in a journal file.

    The kernel drops its lock with the holder, however that dies; Optuna's own lock files outlive a killed process.
    """
    lock: Any = FileLock(f"{path}.lock")  # acquires and releases as Optuna's locks do, without being one
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


class StudyLog:
    """The study of one search; ``trials.csv`` is the truth, this follows it.

    Opening brings it in step: a torn last line is cut off, trials whose line was written just before a crash are added,
    and a file that cannot be read or belongs to other trials is made anew.

    Args:
        path: The journal file.
        name: Name of the study.
        space: What is searched.
        search: ``grid``, ``optuna`` or ``random``.
        rows: What ``trials.csv`` holds already.
    """

    def __init__(self, path: Path, name: str, space: SearchSpace, search: str, rows: Sequence[Row]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = _distributions(space, search)
        self._study = _open_study(path, name, {str(row["trial_id"]) for row in rows})
        trials = self._study.get_trials(deepcopy=False)
        # What a killed search left running goes on, or is finished by the rows below.
        self._running = {
            str(trial.user_attrs.get("trial_id")): trial._trial_id for trial in trials if not trial.state.is_finished()
        }
        present = _finished_ids(trials)
        for row in rows:
            if row["trial_id"] not in present:
                self.add(row)

    def step(self, name: str, setting: Mapping[str, Any], step: int, values: Mapping[str, float]) -> None:
        """Adds a figure on the way of the trial called ``name``; with its first one the trial appears as running."""
        storage = self._study._storage
        if name not in self._running:
            begun = self._trial(TrialState.RUNNING, setting, {"trial_id": name})
            self._running[name] = storage.create_new_trial(self._study._study_id, template_trial=begun)
        storage.set_trial_intermediate_value(self._running[name], step, float(values["sum"]))

    def steps(self) -> dict[str, dict[int, float]]:
        """The figures on the way of every trial, by its name."""
        trials = self._study.get_trials(deepcopy=False)
        return {str(trial.user_attrs.get("trial_id")): trial.intermediate_values for trial in trials}

    def add(self, row: Row) -> None:
        """Adds one trial that has finished, was stopped early or has failed."""
        state, storage = _STATES[row["status"]], self._study._storage
        value = float(row["sum"]) if state != TrialState.FAIL else None
        listed = {name: plain_value(row.get(name)) for name in (*RATES, "trial_id", "seconds", "error")}
        attributes = {name: found for name, found in listed.items() if found not in (None, "")}
        running = self._running.pop(str(row["trial_id"]), None)
        if running is None:
            self._study.add_trial(self._trial(state, row, attributes, value))
            return
        for name, found in attributes.items():
            storage.set_trial_user_attr(running, name, found)
        storage.set_trial_state_values(running, state, None if value is None else [value])

    def _trial(
        self, state: TrialState, setting: Mapping[str, Any], attributes: dict[str, Any], value: float | None = None
    ) -> FrozenTrial:
        found = {name: plain_value(setting.get(name)) for name in self._distributions}
        used = {name: taken for name, taken in found.items() if taken is not None}
        return optuna.trial.create_trial(
            state=state,
            value=value,
            params=used,
            distributions={name: self._distributions[name] for name in used},
            user_attrs=attributes,
        )


def _open_study(path: Path, name: str, known: set[str]) -> optuna.Study:
    """The study in ``path``; made anew when it is damaged or holds trials that ``known`` does not."""
    if path.exists():
        drop_torn_line(path)
        try:
            study = optuna.create_study(
                storage=open_storage(path), study_name=name, direction="maximize", load_if_exists=True
            )
            if _finished_ids(study.get_trials(deepcopy=False)) <= known:
                return study
        except (
            ValueError,
            KeyError,
            TypeError,
            AssertionError,
        ):  # what the journal reader raises for lines that are not its own
            pass
        path.unlink()
    study = optuna.create_study(storage=open_storage(path), study_name=name, direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([METRIC])  # what the live page writes on its axes
    return study


def _finished_ids(trials: Sequence[FrozenTrial]) -> set[str]:
    finished = (TrialState.COMPLETE, TrialState.PRUNED)
    return {str(trial.user_attrs.get("trial_id")) for trial in trials if trial.state in finished}


def _distributions(space: SearchSpace, search: str) -> dict[str, BaseDistribution]:
    if search != "grid":
        return {name: distribution(limits) for name, limits in space.ranges.items()}
    return {name: _axis(values) for name, values in space.grid.items()}


def _axis(values: Sequence[Value]) -> BaseDistribution:
    """Numbers as an interval, so that plots get a numeric axis; anything else as a choice."""
    if len(set(values)) > 1 and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return IntDistribution(int(min(values)), int(max(values)))
    if len(set(values)) > 1 and all(isinstance(value, int | float) for value in values):
        return FloatDistribution(float(min(values)), float(max(values)))
    return CategoricalDistribution(values)


# --- what the live page shows ------------------------------------------------------------------------------------


class StudyMirror:
    """All studies below a runs folder in one storage in memory, for the live page.

    Searches add trials, and go on with those that run: following them means copying both. The page works on the copy:
    nothing a visitor does there can touch a search.
    """

    def __init__(self, runs: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.storage: BaseStorage = InMemoryStorage()
        self._runs = runs
        self._open: dict[Path, JournalStorage] = {}
        self._studies: dict[tuple[Path, str], int] = {}
        self._beginnings: dict[Path, bytes] = {}
        self._running: dict[tuple[Path, str], dict[int, int]] = {}
        """Of each study, the copies of trials that run, by the number of the trial."""

    def refresh(self) -> int:
        """Copies what is new and returns the number of trials shown."""
        for path in sorted(self._logs(), key=lambda file: file.stat().st_mtime):
            try:
                self._follow(path)
            except (
                ValueError,
                KeyError,
                TypeError,
                AssertionError,
                OSError,
            ):  # being repaired by its search at this moment: next time
                self._forget(path)
        return sum(self.storage.get_n_trials(study) for study in self._studies.values())

    def _logs(self) -> list[Path]:
        return [path for path in self._runs.rglob(FILE) if ASIDE not in path.relative_to(self._runs).parts]

    def _follow(self, path: Path) -> None:
        with path.open("rb") as file:
            beginning = file.readline()  # names the process that began the study: another one means another study
        if self._beginnings.setdefault(path, beginning) != beginning:
            self._forget(path)
            self._beginnings[path] = beginning
        source = self._open.setdefault(path, open_storage(path))
        for study in source.get_all_studies():
            target = self._target(path, study.study_name)
            for name, value in source.get_study_system_attrs(study._study_id).items():
                self.storage.set_study_system_attr(target, name, value)
            trials = source.get_all_trials(study._study_id, deepcopy=False)
            running = self._running.setdefault((path, study.study_name), {})
            for number, copy in list(running.items()):
                self._go_on(copy, trials[number])
                if trials[number].state.is_finished():
                    del running[number]
            for trial in trials[self.storage.get_n_trials(target) :]:
                copy = self.storage.create_new_trial(target, template_trial=trial)
                if not trial.state.is_finished():
                    running[trial.number] = copy

    def _go_on(self, copy: int, trial: FrozenTrial) -> None:
        """Brings the copy of a trial that ran in step with it."""
        known = self.storage.get_trial(copy).intermediate_values
        for step, value in trial.intermediate_values.items():
            if step not in known:
                self.storage.set_trial_intermediate_value(copy, step, value)
        if trial.state.is_finished():
            for name, attribute in trial.user_attrs.items():
                self.storage.set_trial_user_attr(copy, name, attribute)
            self.storage.set_trial_state_values(copy, trial.state, trial.values)

    def _target(self, path: Path, name: str) -> int:
        if (path, name) not in self._studies:
            taken = any(name == other for _, other in self._studies)  # a copied runs folder
            shown = f"{name} ({path.parent})" if taken else name
            self._studies[path, name] = self.storage.create_new_study([StudyDirection.MAXIMIZE], shown)
        return self._studies[path, name]

    def _forget(self, path: Path) -> None:
        self._open.pop(path, None)
        self._beginnings.pop(path, None)
        for key in [key for key in self._studies if key[0] == path]:
            self._running.pop(key, None)
            self.storage.delete_study(self._studies.pop(key))


def study_name(key: Mapping[str, Any], run: str) -> str:
    """How the live page calls a search.

    >>> key = {"data": "demo", "protocol": "p1", "training": "eos", "seed": 0, "algorithm": "evm"}
    >>> study_name(key, "1a2b3c4d5e")
    'demo p1 eos s0 evm 1a2b3c4d'
    """
    return f"{key['data']} {key['protocol']} {key['training']} s{key['seed']} {key['algorithm']} {run[:8]}"
