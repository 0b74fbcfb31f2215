"""Ray Tune drives a search: each setting is a trial that asks the evaluation service, or trains, and reports CCR."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from oscbench.distributed.cluster import object_store_bytes, resources
from oscbench.distributed.service import READY_SECONDS, SERVICE_CPUS, WATCH, start_service
from oscbench.distributed.trial import ServiceTrial, training_trial
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.progress import log_once
from oscbench.tuning.early_stopping import Rungs
from oscbench.tuning.evaluator import AnyEvaluator, Nobody, Outcome, SharedFeatures, Watcher, pruned
from oscbench.tuning.local import TRIALS, OpenSettings, forget_trial
from oscbench.tuning.search import SearchRun
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES, trial_id

GIBIBYTE = 1 << 30
ROOM_SECONDS = 10.0
"""How long a search waits for a cluster that is busy."""

PROGRESS_SECONDS = 1.0
"""How often the service is asked how far its pass is."""

FAREWELL_SECONDS = 1.0
"""How long processes that were told to end may take for it."""

TRIAL_FAILURES = 3
"""How often a trial whose process died is tried again."""

ROUNDS = 2
"""How often what Tune has given up is begun anew. When a process dies between two settings, Tune hears of it twice: the
first time it tries the trial again, the second time it finds it waiting and gives it up."""


class _EarlyStopping(FIFOScheduler):  # type: ignore[misc]
    """Has Tune stop the trials that fall behind.

    Attributes:
        stopped: Ids of the trials it has stopped; Tune does not tell them from those that a time budget ends.
    """

    def __init__(self, rungs: Rungs) -> None:
        super().__init__()
        self._rungs = rungs
        self.stopped: set[str] = set()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Is not asked about the report with which a trial ends by itself."""
        if self._rungs.keeps_up(trial_id(trial.config["setting"]), result["step"], result["sum"]):
            return str(FIFOScheduler.CONTINUE)
        self.stopped.add(trial.trial_id)
        return str(FIFOScheduler.STOP)


class _Recorder(tune.Callback):  # type: ignore[misc]
    """The one writer of the run folder: records a trial as soon as Tune hears of its result."""

    def __init__(
        self, run: SearchRun, evaluator: AnyEvaluator, watcher: Watcher, stopping: _EarlyStopping | None = None
    ) -> None:
        self._run = run
        self._stopping = stopping
        self._on_the_way: dict[str, tuple[dict[str, float], float]] = {}
        self._evaluator = evaluator
        self._watcher = watcher
        self.failure: OscbenchError | None = None
        self.lost: list[Setting] = []
        """What Tune has given up."""
        self._trials: list[Trial] = []
        self._warned: set[str] = set()

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
        """A trial has reported, its outcome or figures on the way."""
        if "values" in result:
            setting, step, values = trial.config["setting"], result["step"], result["values"]
            self._run.step(setting, step, values)
            self._watcher.step(self._run, setting, step, values)
            self._on_the_way[trial_id(setting)] = (values, result["time_total_s"])
            return
        log_once(result["warnings"], self._warned)
        names = ("error", "notes") if "error" in result else (*RATES, "seconds", "notes")
        self._record(trial.config["setting"], {name: result[name] for name in names})

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial is over: it has said so itself, or was stopped early."""
        if self._stopping is not None and trial.trial_id in self._stopping.stopped:
            setting = trial.config["setting"]
            self._record(setting, pruned(*self._on_the_way[trial_id(setting)]))

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The process of a trial, or the service it waits for, has been lost more often than Tune tries again."""
        self.lost.append(trial.config["setting"])

    def give_up(self) -> None:
        """Records what was lost as failed."""
        for setting in self.lost:
            self._record(setting, {"error": "the process of the trial or of its service was lost repeatedly"})

    def _record(self, setting: Setting, outcome: Outcome) -> None:
        if trial_id(setting) in {row["trial_id"] for row in self._run.journal.rows}:
            return  # a trial whose process died just after its report is run again by Tune
        try:
            self._run.record(setting, outcome)
        except OscbenchError as error:  # Tune would wrap it
            self.failure = error
            raise
        forget_trial(self._run, self._evaluator, setting)
        self._watcher.update(self._run)


class _ProposalSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the proposals of a budgeted search; those finished before are answered from the journal."""

    def __init__(self, run: SearchRun) -> None:
        super().__init__(metric="sum", mode="max")
        self._settings = OpenSettings(run)
        self._numbers: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """As for ``_Recorder``: the journal replays the search."""
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next setting that is not finished; ``None`` while the sampler waits for values."""
        taken = self._settings.take()
        if taken is None:
            return str(Searcher.FINISHED) if self._settings.over else None
        self._numbers[trial_id], setting = taken
        return {"setting": setting}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Passes the value on to the sampler."""
        value = None if error or not result else result.get("sum")
        self._settings.tell(self._numbers.pop(trial_id), value)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the journal replays the search."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to take up again."""


def run_search(
    run: SearchRun,
    evaluator: AnyEvaluator,
    *,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    tensorboard: bool = False,
    watcher: Watcher | None = None,
) -> None:
    """Runs every trial of the search that is not finished; Ray must be connected.

    Args:
        run: The open folder of the search; trial processes that train must see it.
        evaluator: What is asked.
        max_concurrent: Trials at once: of those that wait for shared features exactly so many, of those that train at
            most so many.
        time_budget: Seconds after which no more trials are run.
        tensorboard: Whether Tune also writes event files for TensorBoard.
        watcher: Who is told.
    """
    left, watcher = run.search.total - run.done, watcher or Nobody()
    if left <= 0:
        return
    at_once = evaluator.concurrency(left, resources())
    stopping = _EarlyStopping(Rungs(evaluator.longest, run.steps())) if evaluator.longest is not None else None
    recorder = _Recorder(run, evaluator, watcher, stopping)
    with contextlib.ExitStack() as ending:
        ending.callback(evaluator.clean_up)
        if isinstance(evaluator, SharedFeatures):
            at_once = min(max_concurrent or at_once, left)
            wait_for_room(SERVICE_CPUS + evaluator.cpus)
            trainable = ending.enter_context(_served(run, evaluator, at_once, watcher))
        else:
            at_once = max(1, min(max_concurrent or left, at_once, left))
            wait_for_room(evaluator.cpus, evaluator.gpus)
            folders = (run.search.folder / TRIALS).resolve()
            trainable = tune.with_parameters(training_trial, evaluator=evaluator, folders=folders)
        ending.callback(lambda: _end(recorder.running()))
        wanted = {"cpu": evaluator.cpus, "gpu": evaluator.gpus}
        # Tune must reserve something, also for a trial that leaves everything to its workers: a byte.
        trainable = tune.with_resources(trainable, wanted if any(wanted.values()) else {"memory": 1})
        started = time.monotonic()
        for _ in range(ROUNDS):
            rest = None if time_budget is None else time_budget - (time.monotonic() - started)
            if rest is not None and rest <= 0:
                break
            grid, recorder.lost = recorder.lost or run.remaining(), []
            _fit(run, grid, recorder, trainable, at_once, rest, tensorboard, stopping)
            if not recorder.lost:
                break
        recorder.give_up()


@contextlib.contextmanager
def _served(run: SearchRun, evaluator: SharedFeatures, callers: int, watcher: Watcher) -> Iterator[Any]:
    """Yields the trainable that asks a service, started for the length of the block and watched in a thread."""
    splits = {"train": evaluator.train, "val": evaluator.validation}
    with_pooled = bool(POSTPROCESSORS.info(evaluator.algorithm).needs & {"pooled", "head"})
    stored = {name: _to_store(split, with_pooled=with_pooled) for name, split in splits.items()}
    check_store(evaluator.algorithm, sum(split.nbytes for split in stored.values()), object_store_bytes())
    features = {name: ray.put(split) for name, split in stored.items()}
    service = start_service(evaluator.algorithm, evaluator.options, callers=callers)
    over = threading.Event()

    def watch() -> None:
        number, share = 0, 0.0
        while not over.wait(PROGRESS_SECONDS):
            asked = service.progress.options(concurrency_group=WATCH).remote()
            try:
                current = ray.get(asked, timeout=READY_SECONDS)
            except ray.exceptions.RayError:  # it is being restarted, or over
                continue
            if current is None or (current.number == number and current.done / current.total <= share):
                continue
            number, share = current.number, current.done / current.total
            watcher.progress(run, current)

    thread = threading.Thread(target=watch, name="pass-progress", daemon=True)
    try:
        thread.start()
        yield tune.with_parameters(ServiceTrial, service=service, features=features)
    finally:
        over.set()
        ray.kill(service)
        if thread.is_alive():
            thread.join()


def _end(trials: list[Any]) -> None:
    """Ends the trials of a stopped search that still run, before a service whose loss they would report."""
    for trial in trials:
        ray.kill(trial)
    if trials:
        time.sleep(FAREWELL_SECONDS)


def _fit(
    run: SearchRun,
    grid: list[Setting],
    recorder: _Recorder,
    trainable: Any,
    at_once: int,
    time_budget: float | None,
    tensorboard: bool,
    stopping: _EarlyStopping | None,
) -> None:
    _quiet_tune()
    callbacks: list[tune.Callback] = [recorder]
    if tensorboard:
        from ray.tune.logger import TBXLoggerCallback

        callbacks.append(TBXLoggerCallback())
    exhaustive = run.search.is_exhaustive
    tuner = tune.Tuner(
        trainable,
        param_space={"setting": tune.grid_search(grid)} if exhaustive else {},
        tune_config=tune.TuneConfig(
            search_alg=None if exhaustive else _ProposalSearcher(run),
            scheduler=stopping,
            num_samples=1 if exhaustive else -1,
            # A process costs more than a small trial, and seconds of imports before a training. But one in which a
            # training was stopped takes its time to end it, and Tune would give up the next trial meanwhile.
            reuse_actors=stopping is None,
            max_concurrent_trials=at_once,
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
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # figures on the way and errors come without a sum
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    os.environ.setdefault("TUNE_WARN_THRESHOLD_S", "10")
    logging.getLogger("ray.tune").setLevel(logging.ERROR)


def _trial_folder(trial: Trial) -> str:
    return trial_id(trial.config["setting"])


def _to_store(features: FeatureSet, *, with_pooled: bool) -> FeatureSet:
    """The same set with memory maps as plain arrays, which the object store shares without copying.

    The pooled vectors, by far the largest array, go along only where a method needs them; so does the head, which
    belongs to them.
    """
    fields = {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}
    arrays: Any = {name: np.asarray(value) for name, value in fields.items() if isinstance(value, np.memmap)}
    if not with_pooled:
        arrays |= {"pooled": None, "head": None}
    return dataclasses.replace(features, **arrays)


def check_store(algorithm: str, needed: int, have: int) -> None:
    """Refuses features that Ray's object store cannot hold, before anything is sent."""
    if needed > have:
        raise UsageError(
            f"{algorithm} needs {needed / GIBIBYTE:.2f} GiB of features in Ray's object store, which has "
            f"{have / GIBIBYTE:.2f} GiB on this node: start Ray with --object-store-memory={needed * 5 // 4} or more "
            "and join it by --address, or run with --local"
        )


def wait_for_room(cpus: float, gpus: float = 0.0, seconds: float = ROOM_SECONDS) -> None:
    """Returns when the cluster has so much free; says so when it has not, instead of waiting for ever."""
    deadline = time.monotonic() + seconds
    for name, need in (("CPU", cpus), ("GPU", gpus)):
        total = ray.cluster_resources().get(name, 0.0)
        if total < need:
            raise UsageError(f"a trial needs {need:g} {name}, the cluster has {total:g}; join a larger one (--address)")
        while (free := ray.available_resources().get(name, 0.0)) < need:
            if time.monotonic() > deadline:
                raise OscbenchError(
                    f"no free {name} for a trial: the cluster has {total:g} {name}, {free:g} free, and a search needs "
                    f"{need:g}; wait for the jobs that hold them (`ray status`), or start a cluster of your own "
                    "without --address"
                )
            time.sleep(0.2)
