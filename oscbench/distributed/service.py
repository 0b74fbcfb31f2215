"""The evaluation service: one actor that answers all trials of a search on shared features, whatever the method.

Settings that wait at one moment are evaluated in one pass over the data: none of the hyperparameters of EVM and
OpenMax, for example, touches a distance. A setting evaluated alone gives the same row.

Every process that holds a handle of an actor imports the module of its class, so this one imports nothing heavy.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from oscbench.errors import OscbenchError

if TYPE_CHECKING:
    from oscbench.numerics.evm.gallery import Gallery
    from oscbench.numerics.sources import AnySource
    from oscbench.numerics.topk import ProductRows
    from oscbench.progress import PassMeter, PassProgress
    from oscbench.tuning.evaluator import EvaluationOptions, Outcome, SharedFeatures
    from oscbench.tuning.space import Setting

logger = logging.getLogger(__name__)

SERVICE_CPUS = 0.5
"""What the service reserves; little, so that shards of a distance source find room beside it and two searches fit into
two CPUs. It computes with as many threads as its node has CPUs free when it starts."""

GATHER_SECONDS = 10.0
"""How long the first pass waits for the processes of all trials. Answered earlier, Tune would give the next setting to
the process that is free, drop one that is still starting, and start another: one for nearly every setting of a quick
search, and at its end it would wait for all of them."""

WATCH = "watch"
"""Concurrency group of the actor's ``progress``, so that callers who wait do not keep it from answering."""

READY_SECONDS = 30.0
RESTARTS = 3


class PendingSettings:
    """Answers many callers, each with one setting, by evaluating together whatever waits at that moment.

    Whoever gets the evaluation lock first takes along the settings of all who are waiting behind it; they find their
    answer ready when their turn comes.

    Args:
        evaluate: Gives the outcomes of settings, in order.
        callers: So many are waited for before the first pass, but not for ever.
    """

    def __init__(self, evaluate: Callable[[Sequence[Setting]], list[Outcome]], callers: int = 1) -> None:
        self._evaluate = evaluate
        self._callers = callers
        self._gathered = threading.Event()
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
            if len(self._waiting) >= self._callers:
                self._gathered.set()
        if not self._gathered.wait(GATHER_SECONDS):
            self._gathered.set()
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


class EvaluationService:
    """The actor's body: feature sets taken once from the object store, and the settings that wait.

    The references come with each question rather than at the start, so that a service restarted after a crash, on
    whatever node, finds them.
    """

    def __init__(self, algorithm: str, options: EvaluationOptions, callers: int) -> None:
        self._algorithm = algorithm
        self._options = options
        self._callers = callers
        self._starting = threading.Lock()
        self._pending: PendingSettings | None = None
        self._meter: PassMeter | None = None

    def ready(self) -> bool:
        """Answers as soon as the actor runs."""
        return True

    def evaluate(self, setting: Setting, features: dict[str, Any]) -> Outcome:
        """The outcome of one setting, given references of the ``train`` and ``val`` feature sets."""
        from oscbench.tuning.evaluator import SharedFeatures

        with self._starting:
            if self._pending is None:
                train, validation = ray.get([features["train"], features["val"]])
                make_source = partial(_open_source, memory=self._options.memory)
                shared = SharedFeatures(self._algorithm, train, validation, self._options, make_source=make_source)
                self._pending = PendingSettings(partial(self._one_pass, shared), self._callers)
        return self._pending.ask(setting)

    def passes(self) -> list[int]:
        """How many settings each pass had."""
        return list(self._pending.passes) if self._pending is not None else []

    def progress(self) -> PassProgress | None:
        """How far the present pass is; also answers while it computes."""
        meter = self._meter
        return meter.now() if meter is not None else None

    def _one_pass(self, shared: SharedFeatures, settings: Sequence[Setting]) -> list[Outcome]:
        from oscbench.progress import PassMeter, collected_log

        self._meter = PassMeter(len(self.passes()), len(settings))
        try:
            with collected_log(logging.WARNING) as warnings:
                outcomes = shared(settings, self._meter)
            return [outcome | {"warnings": tuple(warnings)} for outcome in outcomes]
        finally:
            self._meter = None


def _open_source(gallery: Gallery | ProductRows, memory: int | None) -> AnySource:
    """Shards where the cluster has room for several, else this process."""
    from oscbench.distributed.shards import open_source
    from oscbench.numerics.sources import local_source

    try:
        return open_source(gallery, memory_budget=memory)
    except OscbenchError as error:  # somebody else was faster: the answer is the same, it only takes longer
        logger.warning("computing without shards: %s", error)
        return local_source(gallery, memory_budget=memory)


def start_service(algorithm: str, options: EvaluationOptions, *, callers: int) -> Any:
    """Starts the service and waits until it runs.

    Args:
        algorithm: A registered post-processor.
        options: How settings are evaluated.
        callers: How many trials may wait at once.

    Returns:
        The actor's handle. It restarts a few times when its process dies; calls in flight are then repeated.
    """
    free = [node.get("CPU", 0.0) for node in ray._private.state.available_resources_per_node().values()]
    threads = max(1, math.floor(max(free, default=0.0)))
    actor = ray.remote(concurrency_groups={WATCH: 1})(EvaluationService).options(
        num_cpus=SERVICE_CPUS,
        max_concurrency=callers + 2,
        max_restarts=RESTARTS,
        max_task_retries=RESTARTS,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},  # Ray's own would be the CPUs reserved
    )
    service = actor.remote(algorithm, options, callers)
    try:
        ray.get(service.ready.remote(), timeout=READY_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        ray.kill(service)
        raise OscbenchError(
            f"the evaluation service did not start within {READY_SECONDS:.0f} s: no node has {SERVICE_CPUS:g} CPU free "
            f"(`ray status` shows who holds them)"
        ) from error
    return service
