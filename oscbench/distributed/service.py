"""The distance service: one actor per (protocol, training, seed) that answers all trials of a search.

None of the hyperparameters of EVM and OpenMax touches a distance, so the settings that wait at one moment are
evaluated in one pass over the data. A setting evaluated alone gives the same row.

Every process that holds a handle of an actor imports the module of its class, so this one imports nothing heavy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray

from oscbench.errors import OscbenchError

if TYPE_CHECKING:
    from oscbench.tuning.objective import Outcome
    from oscbench.tuning.space import Setting

SERVICE_CPUS = 0.5
"""The least the service reserves. It reserves one CPU where there is one, so that two searches fit into two, and
computes with as many threads as its node has CPUs free when it starts."""

TRIAL_CPUS = 0.02
"""A trial only waits for the service's answer."""

READY_SECONDS = 30.0
RESTARTS = 3


class PendingSettings:
    """Answers many callers, each with one setting, by evaluating together whatever waits at that moment.

    Whoever gets the evaluation lock first takes along the settings of all who are waiting behind it; they find their
    answer ready when their turn comes.
    """

    def __init__(self, evaluate: Callable[[Sequence[Setting]], list[Outcome]]) -> None:
        self._evaluate = evaluate
        self._evaluating = threading.Lock()
        self._guard = threading.Lock()
        self._waiting: list[tuple[Setting, list[Outcome]]] = []
        self.passes: list[int] = []
        """How many settings each pass had."""

    def ask(self, setting: Setting) -> Outcome:
        """The outcome of one setting; blocks until a pass that holds it is over."""
        answer: list[Outcome] = []
        with self._guard:
            self._waiting.append((setting, answer))
        with self._evaluating:
            if not answer:
                self._one_pass()
        return answer[0]

    def _one_pass(self) -> None:
        with self._guard:
            batch, self._waiting = self._waiting, []
        self.passes.append(len(batch))
        for (_, answer), outcome in zip(batch, self._evaluate([setting for setting, _ in batch]), strict=True):
            answer.append(outcome)


class DistanceService:
    """The actor's body: feature sets taken once from the object store, and the settings that wait.

    The references come with each question rather than at the start, so that a service restarted after a crash, on
    whatever node, finds them.
    """

    def __init__(self, algorithm: str, options: dict[str, Any]) -> None:
        self._algorithm = algorithm
        self._options = options
        self._starting = threading.Lock()
        self._pending: PendingSettings | None = None

    def ready(self) -> bool:
        """Answers as soon as the actor runs."""
        return True

    def evaluate(self, setting: Setting, features: dict[str, Any]) -> Outcome:
        """The outcome of one setting, given references of the ``train`` and ``val`` feature sets."""
        from oscbench.tuning.objective import Objective

        with self._starting:
            if self._pending is None:
                train, validation = ray.get([features["train"], features["val"]])
                self._pending = PendingSettings(Objective(self._algorithm, train, validation, **self._options))
        return self._pending.ask(setting)

    def passes(self) -> list[int]:
        """How many settings each pass had."""
        return list(self._pending.passes) if self._pending is not None else []


def start_service(algorithm: str, options: dict[str, Any], *, callers: int) -> Any:
    """Starts the service and waits until it runs.

    Args:
        algorithm: A registered post-processor.
        options: Further arguments of ``Objective``.
        callers: How many trials may wait at once.

    Returns:
        The actor's handle. It restarts a few times when its process dies; calls in flight are then repeated.
    """
    cpus, threads, gpus = _node_share(callers)
    actor = ray.remote(DistanceService).options(
        num_cpus=cpus,
        num_gpus=gpus,
        max_concurrency=callers + 2,
        max_restarts=RESTARTS,
        max_task_retries=RESTARTS,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},  # Ray's own would be the CPUs reserved
    )
    service = actor.remote(algorithm, options)
    try:
        ray.get(service.ready.remote(), timeout=READY_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        ray.kill(service)
        raise OscbenchError(
            f"the distance service did not start within {READY_SECONDS:.0f} s: no node has {cpus:g} CPU free "
            f"(`ray status` shows who holds them)"
        ) from error
    return service


def _node_share(callers: int) -> tuple[float, int, int]:
    """CPUs to reserve, threads and GPUs for the service, by what the freest node has; the trials need their share."""
    nodes = list(ray._private.state.available_resources_per_node().values())
    most = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    cpus = max(SERVICE_CPUS, min(1.0, math.floor(10 * (most - callers * TRIAL_CPUS)) / 10))
    return cpus, max(1, math.floor(most)), int(any(node.get("GPU", 0) >= 1 for node in nodes))
