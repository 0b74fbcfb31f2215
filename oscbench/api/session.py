"""What functions that run stages share: who executes them, who is told, and which algorithms are meant."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from oscbench.errors import StoppedError, UsageError
from oscbench.stages.runner import Session
from oscbench.stages.search import SearchView
from oscbench.tuning.evaluator import Nobody

if TYPE_CHECKING:
    from oscbench.distributed.cluster import Dashboard
    from oscbench.stages.runner import Runner
    from oscbench.stages.scores import Scores
    from oscbench.stages.search import Tune
    from oscbench.stages.training import TrainingOptions
    from oscbench.tuning.search import SearchRun

logger = logging.getLogger(__name__)

S = TypeVar("S", "Scores", "Tune")

Loader = Literal["auto", "ffcv", "pil"]

PUBLISHED_LOSSES = ("softmax", "garbage", "eos")
"""What ``all`` means where losses are asked for."""


def open_session(
    address: str | None = None, local: bool = False, tell: Callable[[Dashboard], None] | None = None
) -> Session:
    """Who executes stages; nothing is started before a stage needs it, and leaving a ``with`` block ends it.

    Functions open one of their own unless they are given one: several calls can share it, and so one start of Ray.

    Args:
        address: A Ray cluster to join; default: start Ray here.
        local: This process instead of Ray.
        tell: Told where the cluster can be watched; without it a Ray started here serves no dashboard.

    >>> with open_session(local=True) as session:
    ...     session.resources().cpus >= 1
    True
    """
    if not local:

        def open_runner() -> contextlib.AbstractContextManager[Runner]:
            from oscbench.distributed.runner import open_ray

            return open_ray(address, tell=tell)

        return Session(open_runner, remote=address is not None)
    if address is not None:
        raise UsageError(f"--local runs without Ray, --address {address} names a Ray cluster; give one of them")
    return Session()


def session_for(
    given: Session | None, address: str | None, local: bool, tell: Callable[[Dashboard], None] | None = None
) -> contextlib.AbstractContextManager[Session]:
    """The session that was given, which its owner ends; else one for this call alone."""
    if given is None:
        return open_session(address, local, tell)
    if address is not None or local:
        raise UsageError("a session says itself where stages run; leave out address and local")
    return contextlib.nullcontext(given)


def training_options(
    num_workers: int, cpus_per_worker: int | None, gpus_per_worker: float | None, loader: Loader
) -> TrainingOptions:
    """The four options that every verb hands on to trainings and extractions."""
    from oscbench.resources import WorkerAsk
    from oscbench.stages.training import TrainingOptions

    ask = WorkerAsk(cpus=cpus_per_worker, gpus=gpus_per_worker)
    return TrainingOptions(workers=num_workers, ask=ask, loader=loader)


def chosen_losses(loss: str | Sequence[str]) -> tuple[str, ...]:
    """Registered losses of ``eos``, ``softmax,eos``, ``all`` or a sequence of names.

    >>> chosen_losses("all"), chosen_losses(["eos", "eos"])
    (('softmax', 'garbage', 'eos'), ('eos',))
    """
    from oscbench.losses import LOSSES

    parts = loss.split(",") if isinstance(loss, str) else loss
    names = PUBLISHED_LOSSES if loss == "all" else tuple(part.strip() for part in parts)
    for name in names:
        LOSSES.info(name)
    return tuple(dict.fromkeys(names))


# --- who is told ---------------------------------------------------------------------------------------------------


class View(SearchView, Protocol):
    """Who is told what happens, and asked what nobody else can decide."""

    def say(self, text: str) -> None:
        """One line about what happens."""
        ...

    def dashboard(self, dashboard: Dashboard) -> None:
        """Where the cluster can be watched, and how to get in."""
        ...

    def wants_to_go_on(self, state: str) -> bool:
        """Whether to go on with what an earlier run has left unfinished, ``state`` of which it is."""
        ...


class LogView(Nobody):
    """Tells the log; who wants to go on with an unfinished search has to say so beforehand."""

    def say(self, text: str) -> None:
        """See ``View.say``."""
        logger.info("%s", text)

    def dashboard(self, dashboard: Dashboard) -> None:
        """See ``View.dashboard``."""
        logger.info("Ray dashboard: %s  (%s)", dashboard.url, dashboard.entry)

    def wants_to_go_on(self, state: str) -> bool:
        """See ``View.wants_to_go_on``."""
        raise UsageError(f"an unfinished search is there ({state}); give resume=True to go on with it")

    def begin(self, run: SearchRun) -> None:
        """See ``SearchView.begin``."""
        search = run.search
        logger.info("%s: %d trials by %s, %d finished before", search.folder, search.total, search.kind, run.done)

    def end(self, run: SearchRun) -> None:
        """See ``SearchView.end``."""
        logger.info("%s: %d of %d trials are finished", run.search.folder, run.done, run.search.total)


# --- which algorithms ----------------------------------------------------------------------------------------------


class Asked:
    """The algorithms that are asked for: one, a list, or a group such as ``posthoc``.

    A member of a group that cannot be used is told in one line and left out; one asked for by its own name is refused.

    Attributes:
        text: As the user wrote it.
        by_name: Each algorithm, and whether it was asked for by its own name.
        left_out: Those that could not be used, each with the reason.
    """

    def __init__(self, algorithms: str | Sequence[str], say: Callable[[str], None]) -> None:
        from oscbench.postprocessors.base import expand_algorithms

        names = [algorithms] if isinstance(algorithms, str) else [*algorithms]
        self.text = ",".join(names)
        self.by_name = expand_algorithms(names)
        self.left_out: list[dict[str, Any]] = []
        self._say = say

    @property
    def has_group(self) -> bool:
        """Whether a group is among them."""
        return not all(self.by_name.values())

    @property
    def several(self) -> bool:
        """Whether the answer is about several, even where only one of them can be used."""
        return len(self.by_name) > 1 or self.has_group

    @contextlib.contextmanager
    def trying(self, algorithm: str) -> Iterator[None]:
        """Leaves a member of a group out that is refused inside."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a method raises belongs to it, not to its group
            self._leave_out(algorithm, error)

    def _leave_out(self, algorithm: str, error: Exception, **where: Any) -> None:
        if self.by_name[algorithm]:
            raise error
        text = str(error) if hasattr(error, "exit_code") else f"{type(error).__name__}: {error}"
        reason = " ".join(text.split())
        if {"algorithm": algorithm, **where, "reason": reason} in self.left_out:  # on other features too
            return
        self.left_out.append({"algorithm": algorithm, **where, "reason": reason})
        on = ", ".join(f"{name} {value}" for name, value in where.items() if value != "")
        self._say(f"{algorithm} is left out{f' ({on})' if on else ''}: {reason}")

    def require_some(self, left: Sequence[Any]) -> None:
        """Refuses a group of which nothing is left."""
        if not left:
            reason = self.left_out[0]["reason"] if self.left_out else "there is none"
            raise UsageError(f"no algorithm of --alg {self.text} can be used here; the first: {reason}")

    def ensure(self, stages: Sequence[S], session: Session, *, yes: bool) -> list[S]:
        """Makes the stages, each of an algorithm asked for, and returns those that could be made."""
        from oscbench.stages.stage import ensure

        forgiven = {stage.path for stage in stages if not self.by_name[stage.config.algorithm]}
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints warnings of its own; stdout is for the result
            failed = ensure(stages, session, yes=yes, forgiven=forgiven)
        for stage in stages:
            if stage.path in failed:
                origin = stage.features.origin
                where = {"training": origin.training, "seed": origin.seed or 0}
                self._leave_out(stage.config.algorithm, failed[stage.path], **where)
        return [stage for stage in stages if stage.path not in failed]
