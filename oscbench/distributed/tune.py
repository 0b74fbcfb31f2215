"""Ray Tune drives a search: each setting is a trial that asks the distance service and reports its CCR."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import ray
from ray import tune
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from oscbench.distributed.service import SERVICE_CPUS, TRIAL_CPUS, start_service
from oscbench.distributed.trial import ServiceTrial
from oscbench.errors import OscbenchError
from oscbench.features import FeatureSet
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.tuning.objective import Outcome
from oscbench.tuning.search import SearchRun
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES, trial_id

FEW_TRIALS, MANY_TRIALS = 4, 16
"""Trials that wait for the service at once. Each is a process that takes about a second to start, and what waits is
evaluated in one pass: few where a pass takes no longer than that, many where it does."""

LARGE_PAIRS = 2e8
"""Pairs of a training and a validation row from which on a pass takes longer than starting a process."""

FREE_CPU_SECONDS = 10.0
"""How long a search waits for a cluster that is busy."""

FAREWELL_SECONDS = 1.0
"""How long processes that were told to end may take for it."""

TRIAL_FAILURES = 3
"""How often a trial whose process died is tried again."""

ROUNDS = 2
"""How often what Tune has given up is begun anew. When a process dies between two settings, Tune hears of it twice: the
first time it tries the trial again, the second time it finds it waiting and gives it up."""

Update = Callable[[SearchRun], None]
"""Called after each finished trial."""


class _Recorder(tune.Callback):  # type: ignore[misc]
    """The one writer of the run folder: records a trial as soon as Tune hears of its result."""

    def __init__(self, run: SearchRun, update: Update | None) -> None:
        self._run = run
        self._update = update
        self.failure: OscbenchError | None = None
        self.lost: list[Setting] = []
        """What Tune has given up."""
        self._trials: list[Trial] = []

    def __getstate__(self) -> dict[str, Any]:
        """Tune saves its callbacks with the experiment; open files cannot be, and nothing is restored from there."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial begins."""
        self._trials = trials

    def running(self) -> list[Any]:
        """The actors of trials that Tune has not ended; not kept, for an actor lives as long as somebody knows it."""
        actors = [trial.temporary_state.ray_actor for trial in self._trials]
        return [actor for actor in actors if actor is not None]

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has reported."""
        names = ("error", "notes") if "error" in result else (*RATES, "seconds", "notes")
        self._record(trial.config["setting"], {name: result[name] for name in names})

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The process of a trial, or the service it waits for, has been lost more often than Tune tries again."""
        self.lost.append(trial.config["setting"])

    def give_up(self) -> None:
        """Records what was lost as failed."""
        for setting in self.lost:
            self._record(setting, {"error": "the process of the trial or of the distance service was lost repeatedly"})

    def _record(self, setting: Setting, outcome: Outcome) -> None:
        if self._run.outcome_of(setting) is not None:
            return  # a trial whose process died just after its report is run again by Tune
        try:
            self._run.record(setting, outcome)
        except OscbenchError as error:  # Tune would wrap it
            self.failure = error
            raise
        if self._update is not None:
            self._update(self._run)


class _ProposalSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the proposals of a budgeted search; those finished before are answered from the journal."""

    def __init__(self, run: SearchRun) -> None:
        super().__init__(metric="sum", mode="max")
        self._run = run
        self._proposer = run.search.proposer()
        self._proposed = 0
        self._numbers: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """As for ``_Recorder``: the journal replays the search."""
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next setting that is not finished; ``None`` while the sampler waits for values."""
        while self._proposed < self._run.search.total:
            if not self._proposer.ready():
                return None
            proposal = self._proposer.propose()
            if proposal is None:
                break
            number, setting = self._proposed, self._run.search.complete(proposal)
            self._proposed += 1
            value = self._run.outcome_of(setting)
            if value is None:
                self._numbers[trial_id] = number
                return {"setting": setting}
            self._proposer.tell(number, value)
        return str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Passes the value on to the sampler."""
        value = None if error or not result else result.get("sum")
        self._proposer.tell(self._numbers.pop(trial_id), value)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the journal replays the search."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to take up again."""


def run_search(
    run: SearchRun,
    *,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    tensorboard: bool = False,
    update: Update | None = None,
) -> None:
    """Runs every trial of the search that is not finished; Ray must be connected.

    Args:
        run: The open folder of the search.
        max_concurrent: Trials that wait for the service at once; default by the size of the features.
        time_budget: Seconds after which no more trials are run.
        tensorboard: Whether Tune also writes event files for TensorBoard.
        update: Called after each finished trial.
    """
    if run.done >= run.search.total:
        return
    wait_for_cpu(SERVICE_CPUS + TRIAL_CPUS)
    search = run.search
    pairs = len(search.train) * len(search.validation)
    wanted = max_concurrent or (FEW_TRIALS if pairs < LARGE_PAIRS else MANY_TRIALS)
    callers = min(wanted, search.total - run.done)
    options = {"rule": search.rule, "score_kind": search.score_kind, "expected": search.expected_settings()}
    splits = {"train": search.train, "val": search.validation}
    uses_pooled = getattr(POSTPROCESSORS.get(search.algorithm), "uses_pooled", False)
    features = {name: ray.put(_to_store(split, with_pooled=uses_pooled)) for name, split in splits.items()}
    service = start_service(search.algorithm, options, callers=callers)
    trainable = tune.with_parameters(ServiceTrial, service=service, features=features)
    recorder = _Recorder(run, update)
    started = time.monotonic()
    try:
        for _ in range(ROUNDS):
            left = None if time_budget is None else time_budget - (time.monotonic() - started)
            if left is not None and left <= 0:
                break
            recorder.lost.clear()
            _fit(run, recorder, trainable, callers, left, tensorboard)
            if not recorder.lost:
                break
        recorder.give_up()
    finally:
        _end(recorder.running(), service)


def _end(trials: list[Any], service: Any) -> None:
    """Ends the trials of a stopped search that still wait, then the service, whose loss they would report."""
    for trial in trials:
        ray.kill(trial)
    if trials:
        time.sleep(FAREWELL_SECONDS)
    ray.kill(service)


def _fit(
    run: SearchRun,
    recorder: _Recorder,
    trainable: Any,
    callers: int,
    time_budget: float | None,
    tensorboard: bool,
) -> None:
    _quiet_tune()
    callbacks: list[tune.Callback] = [recorder]
    if tensorboard:
        from ray.tune.logger import TBXLoggerCallback

        callbacks.append(TBXLoggerCallback())
    exhaustive = run.search.is_exhaustive
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": TRIAL_CPUS}),
        param_space={"setting": tune.grid_search(run.remaining())} if exhaustive else {},
        tune_config=tune.TuneConfig(
            search_alg=None if exhaustive else _ProposalSearcher(run),
            num_samples=1 if exhaustive else -1,
            reuse_actors=True,
            max_concurrent_trials=callers,
            time_budget_s=time_budget,
            trial_dirname_creator=_trial_folder,
        ),
        run_config=tune.RunConfig(
            # A new name each time: what Tune kept of a killed run is not restored (see SearchRun).
            name=datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f"),
            storage_path=str((run.search.folder / "ray").resolve()),
            verbose=0,
            callbacks=callbacks,
            failure_config=tune.FailureConfig(max_failures=TRIAL_FAILURES),
        ),
    )
    try:
        tuner.fit()
    except Exception:
        if recorder.failure is not None:
            raise recorder.failure from None
        raise


def _quiet_tune() -> None:
    """No files and tables of Tune's own, which cost more than a trial; Ctrl-C ends the search at once."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    os.environ.setdefault("TUNE_WARN_THRESHOLD_S", "10")
    logging.getLogger("ray.tune").setLevel(logging.ERROR)


def _trial_folder(trial: Trial) -> str:
    return trial_id(trial.config["setting"])


def _to_store(features: FeatureSet, *, with_pooled: bool) -> FeatureSet:
    """The same set with memory maps as plain arrays, which the object store shares without copying.

    The pooled vectors, by far the largest array, go along only where a method says ``uses_pooled``.
    """
    fields = {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}
    arrays: Any = {name: np.asarray(value) for name, value in fields.items() if isinstance(value, np.memmap)}
    if not with_pooled:
        arrays["pooled"] = None
    return dataclasses.replace(features, **arrays)


def wait_for_cpu(cpus: float, seconds: float = FREE_CPU_SECONDS) -> None:
    """Returns when the cluster has that much CPU free; says so when it has not, instead of waiting for ever."""
    deadline = time.monotonic() + seconds
    while ray.available_resources().get("CPU", 0.0) < cpus:
        if time.monotonic() > deadline:
            total = ray.cluster_resources().get("CPU", 0.0)
            free = ray.available_resources().get("CPU", 0.0)
            raise OscbenchError(
                f"no free CPU for a trial: the cluster has {total:g} CPU, {free:g} free, and a search needs {cpus:g}; "
                "wait for the jobs that hold them (`ray status`), or start a cluster of your own without --address"
            )
        time.sleep(0.2)


@dataclasses.dataclass(frozen=True)
class Dashboard:
    """Where the cluster's own page is, and how to get in."""

    url: str
    entry: str


def dashboard() -> Dashboard | None:
    """The dashboard of the connected cluster; ``None`` when it has none."""
    url = ray._private.worker.get_dashboard_url()
    if not url:
        return None
    secured = is_token_auth_enabled()
    entry = "log in with the token that `ray get-auth-token` prints" if secured else "no login needed"
    return Dashboard(f"http://{url}", entry)
