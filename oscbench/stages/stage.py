"""What a stage is, what of a graph of stages is there, and the one way to make the rest.

A stage is a value: a name, a frozen record of what decides it, the stages it is made from. So its fingerprint and its
folder, ``<name>-<8 hex>``, are known before it runs, ``plan`` can tell the truth about what would be done, and two
networks, recipes or checkpoints of one loss and seed never meet in one folder.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from oscbench.artifacts import (
    ASIDE,
    Input,
    Meta,
    Request,
    atomic_folder,
    exclusive_lock,
    is_begun,
    is_complete,
)
from oscbench.errors import OscbenchError, StoppedError, UsageError
from oscbench.progress import duration
from oscbench.records import SCHEMA, fingerprint
from oscbench.resources import WorkerAsk
from oscbench.stages.runner import Session
from oscbench.store import Store

logger = logging.getLogger(__name__)

C = TypeVar("C")
R = TypeVar("R")

State = Literal["given", "done", "resumable", "missing"]

ASK_ABOVE_SECONDS = 600.0
"""A stage that nobody asked for by name and that would take longer needs ``--yes``."""


class _Travels:
    """Takes its paths along as absolute ones: the process that unpickles it works in another folder."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value.absolute() if isinstance(value, Path) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Room(_Travels):
    """The folder of one (data, protocol) below ``--runs``, in which its stages lie side by side.

    >>> Room(Path("runs"), "demo-1a2b3c4d", "p1").root.as_posix()
    'runs/demo-1a2b3c4d/p1'
    """

    runs: Path
    data: str
    protocol: str

    @property
    def root(self) -> Path:
        """Everything of this data and protocol."""
        return self.runs / self.data / self.protocol

    @property
    def store(self) -> Store:
        """Where finished stages are kept."""
        return Store(self.runs)

    def point(self, alias: str, folder: Path) -> None:
        """Makes ``alias``, a readable name like ``softmax/s0/train``, a link to the folder that is in use."""
        link = self.root / alias
        target = os.path.relpath(folder, link.parent)
        if link.is_symlink() and os.readlink(link) == target:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        new = link.with_name(f".{link.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        os.replace(new, link)

    def in_use(self, alias: str) -> Path | None:
        """The folder that ``alias`` points at, where it is there."""
        link = self.root / alias
        return self.root / link.resolve().name if link.is_symlink() and link.exists() else None

    def refuse_older_layout(self) -> None:
        """Raises when an earlier version of the program left its results here: they are neither used nor mixed up."""
        old = [*self.root.glob("samples"), *self.root.glob("beton"), *self.root.glob("*/s*/*")]
        folders = [
            path
            for path in old
            if path.is_dir() and not path.is_symlink() and path.relative_to(self.root).parts[0] != ASIDE
        ]
        kept = next((path for path in folders if path.parent == self.root or not _holds_aliases(path)), None)
        if kept is not None:
            raise UsageError(
                f"{kept} was written by an earlier version, which kept its results in another way; choose another "
                f"--runs folder, or move {self.root} away"
            )


def _holds_aliases(folder: Path) -> bool:
    """Whether a folder like ``softmax/s0/evm`` is ours: there is nothing but links in it."""
    return all(path.is_symlink() for path in folder.iterdir())


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(_Travels, ABC, Generic[C, R]):
    """One step from images to scores.

    A subclass names its record types and says how the stage is made. Fields beside ``config`` and ``inputs`` (where
    images lie, how many processes convert) must not change the result: they are in no fingerprint.

    Attributes:
        room: Where its folder lies.
        config: What decides it, besides its inputs.
        inputs: The stages it is made from, by what they are to it.
        ask: What each worker is to get, where several can share its work.
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Any]]
    result_type: ClassVar[type[Any]]
    resumes: ClassVar[bool] = False
    """Whether it works in its own folder and goes on there after an interruption; else it appears in one piece."""
    spreads: ClassVar[bool] = False
    """Whether the session's executor does the work; it is entered before anything is written."""

    room: Room
    config: C
    inputs: Mapping[str, Stage[Any, Any]] = field(default_factory=dict)
    ask: WorkerAsk = WorkerAsk()

    # --- what it is ------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over everything that decides the stage."""
        return fingerprint(self.name, self.config, {role: stage.fingerprint for role, stage in self.inputs.items()})

    @property
    def path(self) -> str:
        """Its name in the store."""
        return f"{self.room.data}/{self.room.protocol}/{self.name}-{self.fingerprint[:8]}"

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return self.room.store.folder(self.path)

    @property
    def alias(self) -> str:
        """The readable name that points at the folder in use, relative to the room."""
        return self.name

    @abstractmethod
    def describe(self) -> str:
        """What would be done, in words: ``tiny for protocol p1 with loss eos, 8 epochs of 3712 images``."""

    # --- what there is of it ---------------------------------------------------------------------------------------

    def state(self) -> State:
        """Whether it has to be made."""
        if self.room.store.exists(self.path):
            meta = self.meta
            if self._made_from(meta.inputs) and self.is_whole(meta):
                return "done"
        return "resumable" if self._is_resumable() else "missing"

    def _is_resumable(self) -> bool:
        if not self.resumes or not is_begun(self.folder):
            return False
        return self._made_from(Request.read(self.folder, self.name, self.config_type).inputs)

    @property
    def meta(self) -> Meta[C, R]:
        """The record of the finished stage; one that is not finished is refused."""
        folder = self.room.store.fetch(self.path)
        meta: Meta[C, R] = Meta.read(folder, self.name, self.config_type, self.result_type)
        if meta.fingerprint != self.fingerprint:
            raise OscbenchError(
                f"{folder} holds {self.name} {meta.fingerprint}, expected {self.fingerprint}; move it away"
            )
        return meta

    @property
    def result(self) -> R:
        """What the finished stage found out."""
        return self.meta.result

    def _made_from(self, inputs: Mapping[str, Input]) -> bool:
        """Whether the folder was made from the inputs as they are now.

        An input that came out otherwise since, by ``--restart`` say, makes it stale, and so does one that is stale
        itself. One that is gone is not missed.
        """
        return all(
            "" in (inputs[role].content, stage.content_now())
            or (inputs[role].content == stage.content_now() and stage.is_current())
            for role, stage in self.inputs.items()
        )

    def is_current(self) -> bool:
        """Whether the finished stage was made from its inputs as they are now."""
        return self._made_from(self.meta.inputs)

    def content_now(self) -> str:
        """Digest of what the finished stage holds; empty where it is not there (any more)."""
        return self.meta.content if is_complete(self.folder) else ""

    def is_whole(self, meta: Meta[C, R]) -> bool:
        """Whether a finished folder needs nothing more; a subclass may look at its files."""
        return True

    # --- how it is made --------------------------------------------------------------------------------------------

    @abstractmethod
    def make(self, work: Path, session: Session) -> R | None:
        """Makes the stage in the folder ``work``.

        Returns:
            What goes into ``meta.json``; ``None`` where the stage is left unfinished on purpose, to be taken up again.
        """

    def check(self) -> None:
        """Raises where it is clear from what is there that the stage cannot be made; called before anything is."""

    def admit(self, session: Session) -> None:
        """Raises where the executor could never make the stage; called before anything of it is written."""
        if self.spreads:
            _ = session.runner

    @property
    def workers(self) -> int:
        """Processes that do its work together; several need an executor that spreads over them."""
        return 1

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU where there is one."""
        return False

    def seconds(self, session: Session) -> float | None:
        """About how long what is missing of it takes; ``None``: not worth saying."""
        return None

    def how_far(self) -> str:
        """Where an interrupted stage stands, in words that follow "stopped"; empty where that cannot be said."""
        return ""

    def notices(self) -> Iterator[str]:
        """Warnings about the finished stage that everybody who uses it should see."""
        return iter(())

    def content(self, result: R) -> str:
        """Digest of what came out; a subclass leaves out what differs from run to run, such as times."""
        return fingerprint("content", {"result": result}, {})

    def refuse_busy(self) -> None:
        """Raises when another process works on the stage."""
        with self._lock():
            pass

    def _set_aside(self) -> None:
        if self.folder.exists():
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.folder.stat().st_mtime))
            aside = self.room.root / ASIDE / f"{self.folder.name}-{stamp}-{secrets.token_hex(2)}"
            aside.parent.mkdir(exist_ok=True)
            self.folder.rename(aside)
            logger.info("%s: the earlier one is kept as %s", self.name, aside)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return exclusive_lock(self.room.root / f".{self.folder.name}.lock", f"{self.name} in {self.folder}")

    def run(self, session: Session, *, anew: bool = False, in_use: bool = True) -> None:
        """Makes the stage, locked, whole or not at all, and records it.

        Args:
            session: Who computes.
            anew: Sets aside what is there and begins again, so that nothing expensive is lost.
            in_use: Whether its readable name points at it from the beginning, so that it can be watched and taken up.
        """
        with self._lock():
            if self.state() == "done" and not anew:  # somebody else was faster
                return
            self.admit(session)
            if anew:
                self._set_aside()
            started = time.monotonic()
            inputs = {
                role: Input(fingerprint=stage.fingerprint, content=stage.content_now())
                for role, stage in self.inputs.items()
            }
            with self._workplace(inputs, in_use) as work:
                result = self.make(work, session)
                if result is None:  # to be taken up again
                    return
                Meta.create(
                    stage=self.name,
                    fingerprint=self.fingerprint,
                    content=self.content(result),
                    inputs=inputs,
                    config=self.config,
                    result=result,
                    seconds=time.monotonic() - started,
                ).write(work)
            self.room.store.publish(self.path)

    @contextlib.contextmanager
    def _workplace(self, inputs: dict[str, Input], in_use: bool) -> Iterator[Path]:
        """Where to work: a new folder that replaces the old one in the end, or the stage's own, readable from now."""
        request = Request(
            schema=SCHEMA, stage=self.name, fingerprint=self.fingerprint, inputs=inputs, config=self.config
        )
        if not self.resumes:
            with atomic_folder(self.folder) as work:
                request.write(work)
                yield work
            return
        if self.state() == "missing":  # what lies there was made from something else
            self._set_aside()
        self.folder.mkdir(parents=True, exist_ok=True)
        request.write(self.folder)
        if in_use:
            self.room.point(self.alias, self.folder)
        yield self.folder


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(Stage[C, R]):
    """A stage that is not ours to make: a user's own features, or a finished search picked for its result."""

    def state(self) -> State:
        """Always there."""
        return "given"

    def is_current(self) -> bool:
        """Always: nobody makes it anew."""
        return True

    def make(self, work: Path, session: Session) -> R | None:
        """Never called."""
        raise AssertionError(f"{self.name} is given, not made")


# --- graphs of stages ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A line of the plan.

    Attributes:
        stage: What.
        state: What there is of it.
        seconds: About how long what is missing takes; ``None``: not worth saying, or nothing to do.
    """

    stage: Stage[Any, Any]
    state: State
    seconds: float | None


def plan(wanted: Sequence[Stage[Any, Any]], session: Session, *, anew: bool = False) -> list[Step]:
    """Every stage that ``wanted`` need, inputs first, with what there is of it; the graph that ``ensure`` works off.

    Inputs of a finished stage are shown too, but need not be there any more. Arguments as for ``ensure``.
    """
    steps = []
    todo = {id(stage) for stage in needed(wanted, anew)}
    asked = {stage.path for stage in wanted}
    for stage in in_order(wanted):
        state: State = "missing" if anew and stage.path in asked else stage.state()
        missing = state in ("missing", "resumable")
        if missing and id(stage) not in todo:
            continue
        steps.append(Step(stage, state, stage.seconds(session) if missing else None))
    return steps


def ensure(
    wanted: Sequence[Stage[Any, Any]],
    session: Session,
    *,
    yes: bool = False,
    anew: bool = False,
    in_use: bool = True,
    forgiven: Collection[str] = (),
) -> dict[str, Exception]:
    """Makes what is missing of the stages and of all they need, inputs first; what is complete is re-used.

    Returns what went wrong with those of the ``forgiven`` that could not be made, by their path.

    Args:
        wanted: The stages asked for by name.
        session: Who computes.
        yes: Whether a stage that was not asked for by name may take long.
        anew: Whether the stages asked for are begun again, whatever there is of them.
        in_use: Whether their readable names are to point at them; not for one of many that are only tried.
        forgiven: Paths of stages asked for without which the others are made all the same. When none can be made, or
            one that is not among these cannot, the error is raised.
    """
    asked = {stage.path for stage in wanted}
    todo = needed(wanted, anew)
    failed: dict[str, Exception] = {}
    missing = [stage for stage in todo if stage.path in asked]
    forgiving = functools.partial(_forgiving, asked=asked, missing=missing, forgiven=forgiven, failed=failed)
    for stage in todo:
        with forgiving(stage) as go:
            if go:
                stage.check()
    for stage in todo:
        if stage.path not in failed and not yes and stage.path not in asked:
            refuse_long(stage, stage.seconds(session))
    for stage in todo:
        with forgiving(stage) as go:
            if go:
                _make(stage, session, anew=anew and stage.path in asked, in_use=in_use)
    made = {id(stage) for stage in todo}
    for stage in in_order([stage for stage in wanted if stage.path not in failed]):
        if isinstance(stage, Given) or not stage.folder.exists():
            continue
        if in_use:
            stage.room.point(stage.alias, stage.folder)
        if id(stage) not in made and is_complete(stage.folder):
            logger.info("%s: re-using %s", stage.name, stage.folder)
            for line in stage.notices():
                logger.warning("warning: %s", line)
    return {path: error for path, error in failed.items() if path in asked}


def _make(stage: Stage[Any, Any], session: Session, *, anew: bool, in_use: bool) -> None:
    """Makes one stage whose inputs are there, and says so."""
    going_on = stage.state() == "resumable"
    logger.info("%s: %s %s", stage.name, "going on with" if going_on else "making", stage.folder)
    try:
        stage.run(session, anew=anew, in_use=in_use)
    except KeyboardInterrupt:
        logger.info("%s: stopped%s; run the same command again to go on", stage.name, stage.how_far())
        raise
    for line in stage.notices() if is_complete(stage.folder) else ():
        logger.warning("warning: %s", line)


@contextlib.contextmanager
def _forgiving(
    stage: Stage[Any, Any],
    *,
    asked: Collection[str],
    missing: Sequence[Stage[Any, Any]],
    forgiven: Collection[str],
    failed: dict[str, Exception],
) -> Iterator[bool]:
    """Whether work on a stage can begin, its inputs being there; what goes wrong in it is kept if it is forgiven.

    It is when all that need it, of those asked for that are ``missing``, are forgiven and others are left.
    """
    before = [failed[path] for path in (stage.path, *(other.path for other in stage.inputs.values())) if path in failed]
    if before:
        failed[stage.path] = before[0]
        yield False
        return
    try:
        yield True
    except StoppedError:
        raise
    except Exception as error:
        hit = {other.path for other in missing if stage.path in {step.path for step in in_order([other])}}
        if not hit <= set(forgiven) or set(asked) <= hit | set(failed):
            raise
        failed[stage.path] = error


def refuse_long(stage: Stage[Any, Any], seconds: float | None) -> None:
    """Raises where a stage takes so long that somebody must have agreed to it."""
    if seconds is not None and seconds > ASK_ABOVE_SECONDS:
        raise UsageError(
            f"{stage.name} is missing and would take about {duration(seconds)} ({stage.describe()}); add --yes to "
            f"start it, or see --dry-run"
        )


def in_order(wanted: Sequence[Stage[Any, Any]]) -> list[Stage[Any, Any]]:
    """All stages of the graph, each once (by its folder), inputs before what is made from them."""
    found: dict[str, Stage[Any, Any]] = {}

    def visit(stage: Stage[Any, Any]) -> None:
        for before in stage.inputs.values():
            visit(before)
        found.setdefault(stage.path, stage)

    for stage in wanted:
        visit(stage)
    return list(found.values())


def needed(wanted: Sequence[Stage[Any, Any]], anew: bool = False) -> list[Stage[Any, Any]]:
    """The stages that have to be made, inputs first: what stands behind a finished stage is not asked for."""
    found: dict[str, Stage[Any, Any]] = {}
    order = {stage.path: stage for stage in in_order(wanted)}  # one object for each path
    asked = {stage.path for stage in wanted} if anew else set()

    def visit(stage: Stage[Any, Any]) -> None:
        stage = order[stage.path]
        if stage.path in found or (stage.path not in asked and stage.state() in ("done", "given")):
            return
        for before in stage.inputs.values():
            visit(before)
        found[stage.path] = stage

    for stage in wanted:
        visit(stage)
    return list(found.values())
