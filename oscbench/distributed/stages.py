"""Ray as a crew: every stage a task with its share of the cluster, many side by side, in processes that stay warm."""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from oscbench.distributed.cluster import resources
from oscbench.distributed.runner import open_ray
from oscbench.errors import BusyError
from oscbench.progress import collected_log
from oscbench.resources import Resources, WorkerShare
from oscbench.stages.runner import Session, in_process
from oscbench.stages.stage import Stage
from oscbench.stages.together import Done, Work
from oscbench.tuning.evaluator import describe

LOST_AT_MOST = 3
"""How often a stage whose process died is begun again; it goes on where that one was."""
BUSY_SECONDS = 60.0
"""How long a process of an earlier, killed run may still hold a stage before somebody else must be working on it."""


class RayCrew:
    """Tasks on the connected Ray. A stage with several workers waits in a task of its own while Ray Train runs them."""

    def __init__(self) -> None:
        self._running: dict[Any, str] = {}

    def resources(self) -> Resources:
        """What the cluster has."""
        return resources()

    def begin(self, work: Work) -> None:
        """Sends the stage to a process."""
        stage, share = work.stage, work.share
        alone = stage.workers == 1
        task = _make_elsewhere.options(num_cpus=share.cpus if alone else 0, num_gpus=share.gpus if alone else 0)
        self._running[task.remote(stage, share)] = stage.path

    def wait(self, seconds: float) -> list[Done]:
        """See ``Crew.wait``."""
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._result(reference) for reference in ended]

    def _result(self, reference: Any) -> Done:
        path = self._running.pop(reference)
        try:
            return Done(path, warnings=tuple(ray.get(reference)))
        except RayTaskError as error:
            return Done(path, describe(error.cause))
        except RayError as error:
            return Done(path, f"its process was lost more than {LOST_AT_MOST} times ({type(error).__name__})")

    def stop(self) -> None:
        """Ends the tasks; processes of a cluster that others use would go on otherwise."""
        for reference in self._running:
            ray.cancel(reference, force=True)


def _make(stage: Stage[Any, Any], share: WorkerShare) -> list[str]:
    """Makes a stage in this process and returns what everybody who uses it should be warned of."""
    from oscbench.numerics.threads import at_most

    have = Resources(share.cpus, math.ceil(share.gpus))
    opened = partial(in_process, have) if stage.workers == 1 else open_ray
    with collected_log(logging.WARNING) as lines, at_most(share.cpus), Session(opened) as session:
        _run(stage, session)
        lines += stage.notices()
    return lines


_make_elsewhere = ray.remote(max_retries=LOST_AT_MOST)(_make)


def _run(stage: Stage[Any, Any], session: Session) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return stage.run(session)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
