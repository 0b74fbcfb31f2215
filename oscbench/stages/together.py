"""A graph of stages made side by side: whatever has its inputs and room begins, and one that fails stops no other."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from oscbench.errors import StoppedError
from oscbench.progress import duration, log_once
from oscbench.resources import Resources, WorkerShare
from oscbench.stages.runner import Session, in_process
from oscbench.stages.stage import Given, Stage, State, Step, in_order, needed, refuse_long
from oscbench.tuning.evaluator import describe

logger = logging.getLogger(__name__)

AnyStage = Stage[Any, Any]

LOOK_EVERY_SECONDS = 2.0
"""How often who watches is told how far the running stages are."""
UNKNOWN_SECONDS = 2.0
"""What a stage that says nothing of its time is taken for until the first of its kind is done."""


@dataclass(frozen=True)
class Work:
    """A stage with what it gets: all of its workers together."""

    stage: AnyStage
    share: WorkerShare


@dataclass(frozen=True)
class Done:
    """A stage that has ended; ``error`` is empty where it was made."""

    path: str
    error: str = ""
    warnings: tuple[str, ...] = ()


class Crew(Protocol):
    """Who makes stages: processes side by side, or this one."""

    def resources(self) -> Resources:
        """What it has for stages at the same time."""
        ...

    def begin(self, work: Work) -> None:
        """Sets out to make a stage whose inputs are there."""
        ...

    def wait(self, seconds: float) -> list[Done]:
        """Stages that have ended; none when none has after so long."""
        ...

    def stop(self) -> None:
        """Ends what is running; it is taken up again another time."""
        ...


class Alone:
    """This process as a crew: one stage after the other, each with all there is."""

    def __init__(self) -> None:
        self._begun: list[Work] = []

    def resources(self) -> Resources:
        """Those of this machine."""
        return Resources.here()

    def begin(self, work: Work) -> None:
        """Keeps it for ``wait``."""
        self._begun.append(work)

    def wait(self, seconds: float) -> list[Done]:
        """Makes it."""
        work = self._begun.pop()
        try:
            with Session() as session:
                work.stage.run(session)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stage raises belongs to it, not to the others
            return [Done(work.stage.path, describe(error))]
        return [Done(work.stage.path, warnings=tuple(work.stage.notices()))]

    def stop(self) -> None:
        """Nothing runs while nobody waits."""


# --- what each gets ------------------------------------------------------------------------------------------------


def shares_of(stages: Sequence[AnyStage], have: Resources) -> dict[str, WorkerShare]:
    """What each stage gets, by its path: as much as leaves room for all of its kind at once, at least one CPU.

    It depends on the whole graph and not on what is left of it: the weights of a network depend on the number of
    threads, which a benchmark that is taken up again must not change. A stage with several workers gets everything
    there is, unless it asks for less.
    """
    kinds = Counter((stage.name, stage.on_gpu) for stage in stages)
    return {stage.path: _share(stage, kinds[(stage.name, stage.on_gpu)], have) for stage in stages}


def _share(stage: AnyStage, alike: int, have: Resources) -> WorkerShare:
    gpus = stage.ask.gpus_of(have) if stage.on_gpu else 0.0
    cpus = stage.ask.cpus
    if stage.workers > 1:
        each = cpus or max(1, have.cpus // stage.workers)
        return WorkerShare(cpus=min(have.cpus, each * stage.workers), gpus=min(have.gpus, gpus * stage.workers))
    if gpus:
        at_once = max(1, int(have.gpus / gpus))
        return WorkerShare(cpus=cpus or max(1, have.cpus // at_once - 1), gpus=gpus)  # one for stages without a GPU
    node = max(1, have.cpus // have.nodes)
    return WorkerShare(cpus=min(node, cpus or max(1, have.cpus // alike)))


# --- where everything stands ---------------------------------------------------------------------------------------


@dataclass
class Board:
    """Where every stage of a graph stands; stages by their path.

    Attributes:
        stages: All of them, inputs before what is made from them.
        shares: What each gets.
        cpus: Of the crew.
        reused: Those that were there before.
        waiting: Not begun yet.
        running: With the time of their beginning.
        done: Made now.
        failed: Why, of those that could not be made and of all that needed them.
        began: Time of the beginning.
    """

    stages: Mapping[str, AnyStage]
    shares: Mapping[str, WorkerShare]
    cpus: int
    reused: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    running: dict[str, float] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _expected: dict[str, float] = field(default_factory=dict)
    _took: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds that stages of a name took, and what was expected of them."""

    @property
    def total(self) -> int:
        """How many stages there are."""
        return len(self.stages)

    def steps(self) -> Iterator[Step]:
        """Every stage, inputs first, with what there is of it and about how long what is missing takes."""
        for path, stage in self.stages.items():
            there = path in self.reused or path in self.done
            state: State = stage.state() if there or path in self.waiting else "missing"
            yield Step(stage, state, None if there else self.expected(path))

    def summary(self) -> str:
        """Where all of it stands, in one line."""
        done, passed = len(self.done) + len(self.reused), time.monotonic() - self.began
        text = f"{done} of {self.total} stages done, {len(self.running)} running, {len(self.waiting)} waiting"
        text += f", {len(self.failed)} failed; {duration(passed)} passed"
        return text + (f", about {duration(self.seconds_left())} left" if self.waiting or self.running else "")

    def running_now(self) -> list[str]:
        """What is being made, and how far it is."""
        return [title_of(self.stages[path]) + self.stages[path].how_far() for path in self.running]

    def failure(self, path: str) -> str:
        """What has failed and why, in one line."""
        return f"failed: {title_of(self.stages[path])}: {self.failed[path]}"

    def expect(self) -> None:
        """Estimates how long each waiting stage takes with its share."""
        for path in self.waiting:
            share = self.shares[path]
            have = Resources(share.cpus, int(-(-share.gpus // 1)))
            with Session(partial(in_process, have)) as session:
                _ = session.runner  # so that it answers for the share, not for the machine
                self._expected[path] = self.stages[path].seconds(session) or UNKNOWN_SECONDS

    def expected(self, path: str) -> float:
        """About how long a stage takes, as corrected by those of its name that are done."""
        took, thought = self._took.get(self.stages[path].name, (0.0, 0.0))
        return self._expected.get(path, UNKNOWN_SECONDS) * (took / thought if thought else 1.0)

    def end(self, path: str) -> None:
        """A running stage has been made."""
        seconds = time.monotonic() - self.running.pop(path)
        took, thought = self._took.get(self.stages[path].name, (0.0, 0.0))
        self._took[self.stages[path].name] = (
            took + seconds,
            thought + self._expected.get(path, UNKNOWN_SECONDS),
        )
        self.done.add(path)

    def fail(self, path: str, reason: str) -> None:
        """A stage cannot be made, and neither can what is made from it."""
        self.running.pop(path, None)
        self.waiting.discard(path)
        self.failed[path] = reason
        for other in list(self.waiting):
            if any(stage.path == path for stage in self.stages[other].inputs.values()):
                self.fail(other, reason)

    def ready(self) -> list[str]:
        """Waiting stages whose inputs are there, first those behind which most work waits."""
        unmade = self.waiting | set(self.running)
        free = [
            path
            for path in self.waiting
            if not any(stage.path in unmade for stage in self.stages[path].inputs.values())
        ]
        behind = self._work_behind()
        return sorted(free, key=lambda path: (-behind[path], path))

    def _work_behind(self) -> dict[str, float]:
        """The longest chain of work that begins with each waiting stage."""
        longest: dict[str, float] = {}
        for path in reversed(list(self.stages)):  # what is made from a stage comes after it
            if path not in self.waiting:
                continue
            longest[path] = longest.get(path, 0.0) + self.expected(path)
            for stage in self.stages[path].inputs.values():
                longest[stage.path] = max(longest.get(stage.path, 0.0), longest[path])
        return longest

    def seconds_left(self) -> float:
        """About how long all of it still takes: work over CPUs, but never less than the longest chain."""
        now = time.monotonic()
        running = {path: max(1.0, self.expected(path) - (now - at)) for path, at in self.running.items()}
        work = sum(self.expected(path) * self.shares[path].cpus for path in self.waiting)
        work += sum(left * self.shares[path].cpus for path, left in running.items())
        chain = max(self._work_behind().values(), default=0.0)
        return max(work / max(1, self.cpus), chain, *running.values(), 0.0)


class Spectator(Protocol):
    """Who is shown the board."""

    def show(self, board: Board) -> None:
        """Something has changed, or time has passed."""
        ...


# --- the work ------------------------------------------------------------------------------------------------------


def prepare(wanted: Sequence[AnyStage], have: Resources, *, yes: bool) -> Board:
    """The board of all that is wanted and what it needs; refuses what can be seen to fail before anything begins.

    Args:
        wanted: The stages asked for.
        have: What the crew has.
        yes: Whether stages may take long.
    """
    stages = {stage.path: stage for stage in in_order(wanted)}
    todo = {stage.path for stage in needed(wanted)}
    there = {path for path, stage in stages.items() if path not in todo and stage.state() in ("done", "given")}
    known = {path: stage for path, stage in stages.items() if path in todo | there}
    board = Board(known, shares_of(list(stages.values()), have), have.cpus, reused=there, waiting=set(todo))
    for path in [path for path in known if path in todo]:
        if path in board.waiting:
            try:
                known[path].check()
            except Exception as error:  # noqa: BLE001 - as in ``Alone.wait``
                board.fail(path, describe(error))
    board.expect()
    for path in known if not yes else ():
        if path in board.waiting:
            refuse_long(known[path], board.expected(path))
    return board


def make_together(board: Board, open_crew: Callable[[], Crew], spectator: Spectator) -> None:
    """Makes every waiting stage of the board that can be made; what went wrong stands in ``board.failed``.

    Args:
        board: From ``prepare``.
        open_crew: Who makes them; asked for only where something is to be made.
        spectator: Who is shown how far it is.
    """
    for path in board.reused:
        _point_at(board.stages[path])
    if not board.waiting:
        return
    crew, warned = open_crew(), set[str]()
    free = crew.resources()
    room = [float(free.cpus), float(free.gpus)]
    try:
        while board.waiting or board.running:
            for path in board.ready():
                share = board.shares[path]
                if board.running and (share.cpus > room[0] or share.gpus > room[1]):
                    continue
                room[0], room[1] = room[0] - share.cpus, room[1] - share.gpus
                board.waiting.remove(path)
                board.running[path] = time.monotonic()
                crew.begin(Work(board.stages[path], share))
            spectator.show(board)
            for done in crew.wait(LOOK_EVERY_SECONDS):
                share = board.shares[done.path]
                room[0], room[1] = room[0] + share.cpus, room[1] + share.gpus
                if done.error:
                    board.fail(done.path, done.error)
                else:
                    board.end(done.path)
                    _point_at(board.stages[done.path])
                    log_once((f"warning: {line}" for line in done.warnings), warned)
        spectator.show(board)
    except BaseException:
        crew.stop()
        raise


def _point_at(stage: AnyStage) -> None:
    if not isinstance(stage, Given) and stage.folder.exists():
        stage.room.point(stage.alias, stage.folder)


def title_of(stage: AnyStage) -> str:
    """A stage in a few words: ``p1 eos/s0/evm/tune``."""
    return f"{stage.room.protocol} {stage.alias}"
