"""A graph made side by side: what begins when, what each gets, and that one failure stops nobody else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oscbench.errors import OscbenchError, StoppedError, UsageError
from oscbench.resources import Resources, WorkerAsk, WorkerShare
from oscbench.stages.runner import Session
from oscbench.stages.stage import ASK_ABOVE_SECONDS, Room, Stage
from oscbench.stages.together import Alone, Board, Done, Work, make_together, prepare, shares_of


@dataclass(frozen=True, kw_only=True)
class Number:
    value: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Add(Stage[Number, Number]):
    """Adds its own value to those of its inputs, or fails; writes down that it was made."""

    name = "add"
    config_type, result_type = Number, Number

    made: list[int] = field(default_factory=list)
    takes: float | None = None
    fails: str = ""
    refuses: str = ""
    gpu: bool = False
    together: int = 1

    def describe(self) -> str:
        return f"adds {self.config.value}"

    def seconds(self, session: Session) -> float | None:
        return self.takes

    @property
    def on_gpu(self) -> bool:
        return self.gpu

    @property
    def workers(self) -> int:
        return self.together

    def check(self) -> None:
        if self.refuses:
            raise UsageError(self.refuses)

    def make(self, work: Path, session: Session) -> Number:
        self.made.append(self.config.value)
        if self.fails == "stop":
            raise StoppedError("enough")
        if self.fails:
            raise OscbenchError(self.fails)
        (work / "there").touch()
        return Number(value=self.config.value + sum(stage.result.value for stage in self.inputs.values()))


class Train(Add):
    """Another kind of stage."""

    name = "train"


class Clocked:
    """A crew in simulated time: stages take as long as they say, and it counts what runs side by side."""

    def __init__(self, have: Resources) -> None:
        self.have = have
        self.now = 0.0
        self.running: list[tuple[float, Work]] = []
        self.begun: list[tuple[float, int]] = []
        self.stopped = False
        self.fullest = 0

    def resources(self) -> Resources:
        return self.have

    def begin(self, work: Work) -> None:
        stage = work.stage
        assert isinstance(stage, Add)
        self.begun.append((self.now, stage.config.value))
        self.running.append((self.now + (stage.takes or 1.0), work))
        taken = sum(work.share.cpus for _, work in self.running)
        self.fullest = max(self.fullest, taken)
        assert taken <= self.have.cpus or len(self.running) == 1
        assert sum(work.share.gpus for _, work in self.running) <= self.have.gpus

    def wait(self, seconds: float) -> list[Done]:
        self.running.sort(key=lambda pair: pair[0])
        self.now, work = self.running.pop(0)
        try:
            with Session() as session:
                work.stage.run(session)
        except StoppedError:
            raise
        except OscbenchError as error:
            return [Done(work.stage.path, str(error))]
        return [Done(work.stage.path)]

    def stop(self) -> None:
        self.stopped = True


class Silent:
    """Keeps what it was shown."""

    def __init__(self) -> None:
        self.summaries: list[str] = []

    def show(self, board: Board) -> None:
        self.summaries.append(board.summary())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "runs", "data", "p1")


def make(stages: Sequence[Add], crew: Clocked | Alone, *, yes: bool = True) -> Board:
    board = prepare(stages, crew.resources(), yes=yes)
    make_together(board, lambda: crew, Silent())
    return board


def diamond(room: Room, made: list[int], fails: int = 0) -> Add:
    """1 -> 2, 3 -> 4; and 5, which nobody needs, beside them."""

    def add(value: int, inputs: dict[str, Stage] | None = None) -> Add:  # type: ignore[type-arg]
        why = f"{value} is refused" if value == fails else ""
        return Add(room=room, config=Number(value=value), inputs=inputs or {}, made=made, fails=why)

    first = add(1)
    return add(4, {"left": add(2, {"before": first}), "right": add(3, {"before": first})})


TWO = Resources(2, 0)


@pytest.mark.parametrize("crew", [Alone, lambda: Clocked(TWO)])
def test_a_graph_is_made_inputs_first_each_once_and_then_re_used(room: Room, crew: Callable[[], Clocked | Alone]):
    made: list[int] = []
    board = make([diamond(room, made)], crew())
    assert made[0] == 1
    assert made[-1] == 4
    assert sorted(made) == [1, 2, 3, 4]
    assert (len(board.done), board.failed, board.total) == (4, {}, 4)
    assert diamond(room, made).result == Number(value=4 + 2 + 3 + 1 + 1)
    again = prepare([diamond(room, made)], TWO, yes=True)
    make_together(again, lambda: pytest.fail("there is nothing to do, so nobody is needed"), Silent())
    assert (sorted(made), len(again.reused)) == ([1, 2, 3, 4], 4)


def test_links_point_at_what_was_made_and_at_what_was_there(room: Room):
    last = diamond(room, [])
    make([last], Alone())
    (room.root / "add").unlink()
    make([last], Alone())
    assert (room.root / "add").is_symlink()


def test_stages_that_need_nothing_of_each_other_run_at_once(room: Room):
    stages = [Add(room=room, config=Number(value=value), takes=10.0) for value in range(4)]
    crew = Clocked(TWO)
    make(stages, crew)
    assert sorted(time for time, _ in crew.begun) == [0.0, 0.0, 10.0, 10.0]
    assert crew.fullest == 2


def test_the_longest_chain_begins_first(room: Room):
    quick = [Add(room=room, config=Number(value=value), takes=1.0) for value in range(3)]
    behind = Add(room=room, config=Number(value=10), takes=1.0)
    long = Add(room=room, config=Number(value=11), inputs={"before": behind}, takes=50.0)
    crew = Clocked(Resources(1, 0))
    make([*quick, long], crew)
    assert [value for _, value in crew.begun][:2] == [10, 11]


def test_one_failure_stops_only_what_needs_it(room: Room):
    made: list[int] = []
    alone = Add(room=room, config=Number(value=9), made=made)
    board = make([diamond(room, made, fails=2), alone], Clocked(TWO))
    failed = {path: reason for path, reason in board.failed.items()}
    assert sorted(made) == [1, 2, 3, 9]
    assert set(failed.values()) == {"2 is refused"}
    assert {board.stages[path].config.value for path in failed} == {2, 4}
    assert board.failure(next(iter(failed))).startswith("failed: p1 add: ")
    healed = make([diamond(room, made), alone], Clocked(TWO))  # the same again, and nothing fails now
    assert healed.failed == {}
    assert sorted(made) == [1, 2, 2, 3, 4, 9]


def test_what_can_be_seen_to_fail_fails_before_anything_begins(room: Room):
    made: list[int] = []
    bad = Add(room=room, config=Number(value=1), made=made, refuses="no such thing")
    board = prepare([Add(room=room, config=Number(value=2), inputs={"of": bad}, made=made)], TWO, yes=True)
    assert set(board.failed.values()) == {"no such thing"}
    assert (len(board.failed), board.waiting) == (2, set())


def test_who_stops_ends_what_runs(room: Room):
    crew = Clocked(TWO)
    board = prepare([Add(room=room, config=Number(value=1), fails="stop")], TWO, yes=True)
    with pytest.raises(StoppedError, match="enough"):
        make_together(board, lambda: crew, Silent())
    assert crew.stopped


def test_long_stages_ask_first(room: Room):
    long = Add(room=room, config=Number(value=1), takes=2 * ASK_ABOVE_SECONDS)
    with pytest.raises(UsageError, match="--yes"):
        prepare([long], TWO, yes=False)
    assert prepare([long], TWO, yes=True).waiting == {long.path}


# --- shares --------------------------------------------------------------------------------------------------------


def many(room: Room, n: int, **how: object) -> list[Add]:
    return [Train(room=room, config=Number(value=value), **how) for value in range(n)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "how", "have", "wanted"),
    [
        (1, {}, Resources(8, 0), WorkerShare(cpus=8)),
        (3, {}, Resources(8, 0), WorkerShare(cpus=2)),
        (9, {}, Resources(2, 0), WorkerShare(cpus=1)),
        (1, {}, Resources(8, 0, nodes=4), WorkerShare(cpus=2)),  # a process cannot span nodes
        (3, {"ask": WorkerAsk(cpus=3)}, Resources(8, 0), WorkerShare(cpus=3)),
        (3, {"together": 2}, Resources(8, 0), WorkerShare(cpus=8)),
        (3, {"together": 2, "ask": WorkerAsk(cpus=1)}, Resources(8, 0), WorkerShare(cpus=2)),
        (3, {"gpu": True}, Resources(8, 2), WorkerShare(cpus=3, gpus=1.0)),  # one CPU is left for searches
        (3, {"gpu": True}, Resources(8, 0), WorkerShare(cpus=2)),
        (3, {"gpu": True, "ask": WorkerAsk(gpus=0.5)}, Resources(9, 1), WorkerShare(cpus=3, gpus=0.5)),
    ],
)
def test_shares(room: Room, n: int, how: dict[str, object], have: Resources, wanted: WorkerShare):
    assert set(shares_of(many(room, n, **how), have).values()) == {wanted}


def test_a_share_does_not_depend_on_what_is_left(room: Room):
    """The weights of a network depend on its threads, which a benchmark taken up again must not change."""
    stages = many(room, 2)
    make(stages[:1], Alone())
    board = prepare(stages, Resources(2, 0), yes=True)
    assert board.waiting == {stages[1].path}
    assert board.shares[stages[1].path] == WorkerShare(cpus=1)


def test_searches_run_beside_a_training_on_the_gpu(room: Room):
    trains = many(room, 2, gpu=True, takes=10.0)
    adds = [Add(room=room, config=Number(value=value), takes=1.0) for value in range(10, 14)]
    crew = Clocked(Resources(4, 1))
    make([*trains, *adds], crew)
    at = {value: time for time, value in crew.begun}
    assert sorted(at[value] for value in (0, 1)) == [0.0, 10.0]
    assert all(at[value] < 10 for value in range(10, 14))


# --- the time left -------------------------------------------------------------------------------------------------


def test_the_time_left_is_work_over_cpus_but_never_less_than_the_longest_chain(room: Room):
    stages = [Add(room=room, config=Number(value=value), takes=10.0) for value in range(6)]
    assert prepare(stages, TWO, yes=True).seconds_left() == pytest.approx(30.0)
    chain = itertools.accumulate(
        range(1, 6),
        lambda before, value: Add(room=room, config=Number(value=value), inputs={"b": before}, takes=10.0),
        initial=stages[0],
    )
    assert prepare([list(chain)[-1]], Resources(8, 0), yes=True).seconds_left() == pytest.approx(60.0)


def test_estimates_are_corrected_by_what_stages_of_the_kind_have_taken(room: Room, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("oscbench.stages.together.time.monotonic", lambda: now[0])
    first, second = (Add(room=room, config=Number(value=value), takes=10.0) for value in (1, 2))
    board = prepare([first, second], TWO, yes=True)
    board.waiting.remove(first.path)
    board.running[first.path] = now[0]
    now[0] = 30.0
    board.end(first.path)
    assert board.expected(second.path) == pytest.approx(30.0)


def test_a_line_says_where_everything_stands(room: Room):
    view = Silent()
    board = prepare([diamond(room, [], fails=3)], TWO, yes=True)
    make_together(board, lambda: Clocked(TWO), view)
    assert view.summaries[0].startswith("0 of 4 stages done, 1 running, 3 waiting, 0 failed; 0:00 passed, about 0:0")
    assert view.summaries[-1].startswith("2 of 4 stages done, 0 running, 0 waiting, 2 failed; 0:0")
