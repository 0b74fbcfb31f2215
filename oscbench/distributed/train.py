"""Ray Train around ``training.run``: workers on one or many nodes, restarted from the last epoch when one is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import ray.train
import ray.train.torch
from ray.actor import ActorHandle
from ray.train import TrainingFailedError, UserCallback, WorkerGroupError
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oscbench.distributed.cluster import require, resources
from oscbench.errors import OscbenchError, UsageError
from oscbench.progress import collected_log, log_once
from oscbench.resources import WorkerShare
from oscbench.training.checkpoint import LAST
from oscbench.training.epoch_metrics import EpochRow
from oscbench.training.job import TrainingJob
from oscbench.training.run import run_training
from oscbench.training.workers import TorchWorkers, Workers

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
ABORT_SECONDS = 120.0
"""How long a training that is given up may take to end."""
ANSWER_SECONDS = 3.0
"""How long its controller may take to answer then."""
RETURN_SECONDS = 60.0
"""How long a lost node may take to come back before the training gives up; running it again goes on."""


def train_on_ray(
    job: TrainingJob,
    share: WorkerShare,
    *,
    max_failures: int = 3,
    on_epoch: Callable[[EpochRow], None] = lambda row: None,
) -> list[EpochRow]:
    """Trains on ``job.config.workers`` workers of the connected Ray; returns a row per epoch.

    A lost worker or node ends the worker group, and a new one goes on from ``last.pth``. Errors that would only
    repeat themselves (full disk, damaged data, a loss that is not finite) end the training at once; Ray's own
    retry cannot tell them apart, so the retry is here. The checkpoint is written by worker 0 and not copied by Ray,
    because Ray's copy is not atomic.

    Every report of a worker carries all epochs so far, so this process needs to see neither the training's folder nor
    the reports that a lost worker took with it.

    Args:
        job: The training; its folder must be visible to all workers.
        share: Resources per worker.
        max_failures: Lost workers or nodes to survive.
        on_epoch: Called in this process for every epoch that finishes while it runs.
    """
    require(workers=job.config.workers, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    if resources().nodes == 1:  # a watcher of reclaimed nodes would only cost a process here
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    # Beside this process, where Ray puts its controller too: the loss of another node must not take the reports along.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    with _noted_interrupt() as raise_if_interrupted:
        heard = _Heard(Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here}), on_epoch)
        try:
            for failures in range(max_failures + 1):
                error = _attempt(job, share, heard, raise_if_interrupted)
                if error is None:
                    break
                _raise_if_final(error)
                done = len(heard.history)
                if failures == max_failures:
                    raise OscbenchError(
                        f"training lost a worker {max_failures + 1} times, last after epoch {done} "
                        f"({_one_line(error)}); the same command goes on from there"
                    )
                logger.warning("a worker was lost (%s); going on from epoch %d", _one_line(error), done)
                _wait_for_room(job, share, done, raise_if_interrupted)
        finally:
            heard.queue.shutdown(force=True)
    shutil.rmtree(job.folder / "ray", ignore_errors=True)
    return heard.history


@contextlib.contextmanager
def _noted_interrupt() -> Iterator[Callable[[], None]]:
    """Yields what raises ``KeyboardInterrupt`` once Ctrl-C was pressed; a second Ctrl-C acts at once.

    Raised wherever this thread happens to be, it could leave a thread behind that nobody knows of; and a thread that
    asks Ray while Ray is shut down ends the whole process on the spot, with code 1.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield lambda: None
        return
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        noted = True
        signal.signal(signal.SIGINT, usual)

    def raise_if_interrupted() -> None:
        if noted:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield raise_if_interrupted
    finally:
        signal.signal(signal.SIGINT, usual)
    raise_if_interrupted()


class _Introduce(ControllerCallback):  # type: ignore[misc]
    """Tells the process that waits for the training whom it has to ask to stop it; ``fit`` keeps that to itself."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ray Train's controller is up, and no worker yet."""
        self._queue.put_nowait(ray.get_runtime_context().current_actor)


class _HandOver(UserCallback):  # type: ignore[misc]
    """Passes each report from Ray Train's controller, a process of its own, to the one that waits for the training."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Worker 0's epochs and all workers' warnings; back when they are in the queue, hence before the run ends."""
        warnings = [text for report in metrics for text in report["warnings"]]
        self._queue.put_nowait(metrics[0] | {"warnings": warnings})


class _Heard:
    """What the reports of all attempts have told so far."""

    def __init__(self, queue: Queue, on_epoch: Callable[[EpochRow], None]) -> None:
        self.queue = queue
        self.history: list[EpochRow] = []
        self.controller: ActorHandle | None = None
        self._on_epoch = on_epoch
        self._shown: int | None = None
        self._warned: set[str] = set()

    def reports(self) -> list[dict[str, Any]]:
        """Takes what lies in the queue; the controller's introduction is no report."""
        found = self.queue.get_nowait_batch(self.queue.qsize())
        self.controller = next((item for item in found if isinstance(item, ActorHandle)), self.controller)
        return [item for item in found if not isinstance(item, ActorHandle)]

    def listen(self) -> None:
        """Takes in what lies in the queue; tells of new epochs and logs new warnings."""
        for report in self.reports():
            log_once(report["warnings"], self._warned)
            if self._shown is None:  # what a resumed training brings along finished in an earlier run
                self._shown = len(report["history"]) if report["resumed"] else 0
            self.history = report["history"]
            for row in self.history[self._shown :]:
                self._on_epoch(row)
            self._shown = len(self.history)


def _attempt(
    job: TrainingJob, share: WorkerShare, heard: _Heard, raise_if_interrupted: Callable[[], None]
) -> Exception | None:
    """One worker group until it ends; how it ended. Ray waits in a thread, so that this one can show epochs."""
    ended: list[Exception | None] = []

    def fit() -> None:
        try:
            _trainer(job, share, heard.queue).fit()
            ended.append(None)
        except Exception as error:  # noqa: BLE001 - carried to the waiting thread
            ended.append(error)

    heard.controller = None
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()
    try:
        while True:
            raise_if_interrupted()
            alive = thread.is_alive()  # before listening, so that the last epoch is heard of too
            heard.listen()
            if not alive:
                return ended[0]
            thread.join(POLL_SECONDS)
    except BaseException:
        _abort(thread, heard)
        raise


def _abort(thread: threading.Thread, heard: _Heard) -> None:
    """Ends the workers, their controller and with it the thread that waits for them."""
    deadline = time.monotonic() + ABORT_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(ray.exceptions.RayError):  # it ends while it answers
            if heard.controller is None:
                heard.reports()
            else:
                _end(heard.controller)
        thread.join(POLL_SECONDS)


def _end(controller: ActorHandle) -> None:
    """Asks it to end; one that is busy starting its workers does not answer and is ended."""
    try:
        ray.get(controller.abort.remote(), timeout=ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError:
        ray.kill(controller)


def _trainer(job: TrainingJob, share: WorkerShare, queue: Queue) -> ray.train.torch.TorchTrainer:
    per_worker = {"CPU": float(share.cpus)} | ({"GPU": float(share.gpus)} if share.gpus else {})
    return ray.train.torch.TorchTrainer(
        _worker,
        train_loop_config={"job": job},
        scaling_config=ray.train.ScalingConfig(
            num_workers=job.config.workers, use_gpu=share.gpus > 0, resources_per_worker=per_worker
        ),
        run_config=ray.train.RunConfig(
            name=f"train-{time.time_ns():x}",
            storage_path=str((job.folder / "ray").absolute()),
            failure_config=ray.train.FailureConfig(max_failures=0),
            callbacks=[_Introduce(queue), _HandOver(queue)],
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
        ),
    )


def _worker(settings: dict[str, Any]) -> None:
    """What runs on each worker."""
    job: TrainingJob = settings["job"]
    workers = TorchWorkers() if ray.train.get_context().get_world_size() > 1 else Workers()
    resumed = (job.folder / LAST).exists()  # then the first report is of epochs that were there before
    with collected_log(logging.WARNING) as warnings:

        def report(history: tuple[EpochRow, ...]) -> None:
            ray.train.report({"history": list(history), "resumed": resumed, "warnings": list(warnings)})

        run_training(job, workers, ray.train.torch.get_device(), report)


def _raise_if_final(error: Exception) -> None:
    """Raises an error of ours as it is, and one that is none of a worker or of Ray's controller as one line."""
    if not isinstance(error, TrainingFailedError):
        raise OscbenchError(f"Ray Train failed: {_one_line(error)}") from error
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    for cause in map(_cause, failures.values()):
        if isinstance(cause, OscbenchError):
            raise cause from error


def _cause(failure: Exception) -> BaseException:
    """The exception as it was raised on the worker; Ray wraps it together with its traceback."""
    original: BaseException = getattr(failure, "_base_exc", failure)
    return original


def _one_line(error: Exception) -> str:
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = [f"worker {rank}: {type(_cause(f)).__name__}" for rank, f in sorted(failures.items())]
    return ", ".join(causes) or str(error).strip().rpartition("\n")[2][:200]


def _wait_for_room(job: TrainingJob, share: WorkerShare, epoch: int, raise_if_interrupted: Callable[[], None]) -> None:
    """Waits until all workers fit into the cluster again: a node may be on its way back."""
    deadline = time.monotonic() + RETURN_SECONDS
    while True:
        raise_if_interrupted()
        try:
            require(workers=job.config.workers, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus)
            return
        except UsageError as error:
            if time.monotonic() > deadline:
                raise OscbenchError(
                    f"a node was lost after epoch {epoch}: {error}; the same command goes on"
                ) from error
            time.sleep(1.0)
