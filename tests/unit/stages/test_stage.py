"""What a stage is and how a graph of stages is worked off: on small stages that only count."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oscbench.artifacts import META, Meta, Request
from oscbench.errors import OscbenchError, UsageError
from oscbench.stages.runner import LocalRunner, Session
from oscbench.stages.stage import ASK_ABOVE_SECONDS, Given, Room, Stage, ensure, plan


@dataclass(frozen=True, kw_only=True)
class Number:
    value: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Total:
    total: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Add(Stage[Number, Total]):
    """Adds its own value to those of its inputs; writes down how often it was made."""

    name = "add"
    config_type, result_type = Number, Total

    made: list[int] = field(default_factory=list)
    takes: float | None = None
    offset: int = 0

    def describe(self) -> str:
        return f"adds {self.config.value}"

    def seconds(self, session: Session) -> float | None:
        return self.takes

    def make(self, work: Path, session: Session) -> Total | None:
        self.made.append(self.config.value)
        total = self.config.value + self.offset + sum(stage.result.total for stage in self.inputs.values())
        (work / "total.txt").write_text(str(total))
        return Total(total=total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps(Add):
    """Takes three steps and stops before any that is in ``stops``."""

    name = "steps"
    resumes = True
    stops: set[int] = field(default_factory=set)

    def make(self, work: Path, session: Session) -> Total | None:
        for step in range(3):
            if (work / f"step{step}").exists():
                continue
            if step in self.stops:
                return None
            self.made.append(step)
            (work / f"step{step}").touch()
        return Total(total=self.config.value)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "runs", "data", "p1")


SESSION = Session()


def chain(room: Room, made: list[int], **last: object) -> tuple[Add, Add, Add]:
    first = Add(room=room, config=Number(value=1), made=made)
    second = Add(room=room, config=Number(value=2), inputs={"before": first}, made=made)
    return first, second, Add(room=room, config=Number(value=3), inputs={"before": second, "first": first}, made=made)


def test_the_fingerprint_is_known_before_and_depends_on_config_and_inputs_alone(room: Room):
    first, second, third = chain(room, [])
    assert not room.root.exists()
    assert first.folder == room.root / f"add-{first.fingerprint[:8]}"
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3
    assert chain(Room(room.runs, "other", "p1"), [7])[2].fingerprint == third.fingerprint
    changed = Add(room=room, config=Number(value=9))
    assert Add(room=room, config=Number(value=3), inputs={"before": second, "first": changed}).fingerprint not in (
        third.fingerprint,
    )


def test_a_stage_that_travels_to_a_process_elsewhere_finds_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    first, second, _ = chain(Room(Path("runs"), "data", "p1"), [])
    assert not second.folder.is_absolute()  # as the user has said it
    ensure([second], SESSION)
    travels = pickle.dumps(second)
    monkeypatch.chdir(tmp_path)
    arrived = pickle.loads(travels)
    assert arrived.folder == tmp_path / "here" / second.folder
    assert arrived.result == Total(total=3)
    assert arrived.inputs["before"].folder == tmp_path / "here" / first.folder


def test_a_graph_is_made_inputs_first_each_once_and_then_re_used(room: Room):
    made: list[int] = []
    *_, third = chain(room, made)
    ensure([third], SESSION)
    assert made == [1, 2, 3]
    assert third.result == Total(total=3 + (2 + 1) + 1)
    ensure([chain(room, made)[2]], SESSION)
    assert made == [1, 2, 3]
    meta = Meta.read(third.folder, "add", Number, Total)
    assert meta.config == Number(value=3)
    assert meta.inputs["before"].fingerprint == chain(room, [])[1].fingerprint


def test_two_wanted_stages_share_what_they_need(room: Room):
    made: list[int] = []
    first, second, third = chain(room, made)
    again = chain(room, made)
    ensure([second, again[2]], SESSION)
    assert made == [1, 2, 3]


def test_inputs_of_a_finished_stage_need_not_be_there(room: Room):
    made: list[int] = []
    first, second, third = chain(room, made)
    ensure([third], SESSION)
    for stage in (first, second):
        (stage.folder / "total.txt").unlink()
        (stage.folder / META).unlink()
    ensure([third], SESSION)
    assert made == [1, 2, 3]
    assert [(step.stage.config.value, step.state) for step in plan([third], SESSION)] == [(3, "done")]


def test_an_input_that_came_out_otherwise_makes_what_stands_on_it_stale(room: Room):
    made: list[int] = []
    first, second, third = chain(room, made)
    ensure([third], SESSION)
    same = Add(room=room, config=Number(value=1), made=made)
    assert [step.state for step in plan([same], SESSION, anew=True)] == ["missing"]
    ensure([same], SESSION, anew=True)
    ensure([third], SESSION)  # made again, to the same: nothing else is
    assert made == [1, 2, 3, 1]
    other = Add(room=room, config=Number(value=1), made=made, offset=10)
    ensure([other], SESSION, anew=True)
    assert [step.state for step in plan([third], SESSION)] == ["done", "missing", "missing"]
    ensure([third], SESSION)
    assert made == [1, 2, 3, 1, 1, 2, 3]
    assert third.result.total == 3 + (2 + 11) + 11
    kept = [path for path in (room.root / "aside").iterdir() if path.name.startswith(first.folder.name)]
    assert len(kept) == 2  # nothing that was finished is lost
    room.refuse_older_layout()  # what is kept is ours


def test_staleness_goes_all_the_way_down_a_chain(room: Room):
    made: list[int] = []
    first = Add(room=room, config=Number(value=1), made=made)
    second = Add(room=room, config=Number(value=2), inputs={"before": first}, made=made)
    third = Add(room=room, config=Number(value=3), inputs={"before": second}, made=made)
    ensure([third], SESSION)
    ensure([Add(room=room, config=Number(value=1), made=made, offset=10)], SESSION, anew=True)
    assert [step.state for step in plan([third], SESSION)] == ["done", "missing", "missing"]
    ensure([third], SESSION)
    assert made == [1, 2, 3, 1, 2, 3]
    assert third.result.total == 3 + 2 + 11


def test_the_plan_is_what_is_then_done(room: Room):
    made: list[int] = []
    first, second, third = chain(room, made)
    third = Add(room=room, config=third.config, inputs=third.inputs, made=made, takes=70.0)
    before = plan([third], SESSION)
    assert [(step.state, step.seconds) for step in before] == [("missing", None), ("missing", None), ("missing", 70.0)]
    assert made == []
    assert not room.root.exists()
    ensure([third], SESSION)
    assert [step.stage.folder.is_dir() for step in before] == [True] * 3
    after = plan([third], SESSION)
    assert [(step.state, step.seconds) for step in after] == [("done", None)] * 3
    assert [step.stage.folder for step in before] == [step.stage.folder for step in after]


def test_an_unfinished_stage_goes_on_where_it_was(room: Room):
    made: list[int] = []
    stage = Steps(room=room, config=Number(value=5), made=made, stops={1})
    ensure([stage], SESSION)
    assert made == [0]
    assert stage.state() == "resumable"
    assert Request.read(stage.folder, "steps", Number).config == Number(value=5)
    ensure([Steps(room=room, config=Number(value=5), made=made)], SESSION)
    assert made == [0, 1, 2]
    assert stage.state() == "done"


def test_an_error_leaves_nothing_half_written(room: Room):
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Broken(Add):
        def make(self, work: Path, session: Session) -> Total:
            (work / "half").write_text("written")
            raise OscbenchError("no space")

    broken = Broken(room=room, config=Number(value=1))
    with pytest.raises(OscbenchError, match="no space"):
        ensure([broken], SESSION)
    assert broken.state() == "missing"
    assert [path.name for path in room.root.iterdir() if not path.name.endswith(".lock")] == []


def test_a_readable_alias_points_at_the_folder_in_use(room: Room):
    first, second, _ = chain(room, [])
    ensure([first], SESSION)
    assert (room.root / "add").resolve() == first.folder.resolve()
    assert room.in_use("add") == first.folder
    ensure([second], SESSION)
    assert room.in_use("add") == second.folder
    ensure([first], SESSION)  # found finished, and in use again
    assert room.in_use("add") == first.folder
    assert (room.root / "add" / "total.txt").read_text() == "1"
    assert room.in_use("never") is None


def test_a_long_stage_that_nobody_asked_for_needs_yes(room: Room):
    long = Add(room=room, config=Number(value=1), takes=ASK_ABOVE_SECONDS + 60)
    wanted = Add(room=room, config=Number(value=2), inputs={"before": long}, takes=ASK_ABOVE_SECONDS + 60)
    with pytest.raises(UsageError, match=r"add is missing and would take about 11:00 \(adds 1\); add --yes"):
        ensure([wanted], SESSION)
    assert not room.root.exists()
    ensure([wanted], SESSION, yes=True)
    assert wanted.state() == "done"


def test_what_cannot_be_made_is_said_before_anything_is_made(room: Room):
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Picky(Add):
        def check(self) -> None:
            raise UsageError("not with these")

    first = Add(room=room, config=Number(value=1))
    with pytest.raises(UsageError, match="not with these"):
        ensure([Picky(room=room, config=Number(value=2), inputs={"before": first})], SESSION)
    assert not room.root.exists()


def test_what_the_executor_refuses_leaves_nothing_behind(room: Room):
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Crowded(Steps):
        def admit(self, session: Session) -> None:
            raise UsageError("too many workers")

    good = Steps(room=room, config=Number(value=1))
    ensure([good], SESSION)
    for refused in (Crowded(room=room, config=Number(value=2)), Crowded(room=room, config=Number(value=1))):
        with pytest.raises(UsageError, match="too many workers"):
            ensure([refused], SESSION, anew=True)
    assert good.state() == "done"
    assert room.in_use("steps") == good.folder
    assert not refused.folder.with_name(f"steps-{Steps(room=room, config=Number(value=2)).fingerprint[:8]}").exists()


def test_given_stages_are_never_made(room: Room):
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Own(Given[Number, Total]):
        name = "own"
        config_type, result_type = Number, Total

        def describe(self) -> str:
            return "mine"

        @property
        def result(self) -> Total:
            return Total(total=40)

    wanted = Add(room=room, config=Number(value=2), inputs={"own": Own(room=room, config=Number(value=0))})
    ensure([wanted], SESSION)
    assert wanted.result.total == 42
    assert [step.state for step in plan([wanted], SESSION)] == ["given", "done"]


def _hold(stage: Add, held: multiprocessing.Queue) -> None:
    with stage._lock():
        held.put(os.getpid())
        signal.pause()


def test_a_stage_is_made_by_one_process_at_a_time_and_a_killed_one_lets_go(room: Room):
    stage = Add(room=room, config=Number(value=1))
    context = multiprocessing.get_context("fork")
    held: multiprocessing.Queue = context.Queue()
    other = context.Process(target=_hold, args=(stage, held))
    other.start()
    pid = held.get(timeout=300)
    with pytest.raises(OscbenchError, match=rf"add in .* is in use by process {pid} on "):
        ensure([stage], SESSION)
    os.kill(pid, signal.SIGKILL)
    other.join(300)
    ensure([stage], SESSION)
    assert stage.state() == "done"


def test_a_folder_of_another_schema_or_stage_is_refused(room: Room):
    stage = Add(room=room, config=Number(value=1))
    ensure([stage], SESSION)
    text = (stage.folder / META).read_text()
    (stage.folder / META).write_text(text.replace('"schema": 2', '"schema": 1'))
    with pytest.raises(UsageError, match=r"has schema 1, this version reads 2; choose another --runs folder"):
        stage.state()
    (stage.folder / META).write_text(text.replace('"stage": "add"', '"stage": "sub"'))
    with pytest.raises(UsageError, match="holds stage 'sub', expected 'add'"):
        stage.state()
    (stage.folder / META).write_text(text.replace('"value": 1', '"value": "x"'))
    with pytest.raises(UsageError, match="value: expected int, got 'x'"):
        stage.state()


@pytest.mark.parametrize("left", ["samples", "beton", "softmax/s0/train", "softmax/s0/evm/tune-1a2b3c4d"])
def test_what_an_older_layout_left_is_refused_with_the_way_out(room: Room, left: str):
    first, *_ = chain(room, [])
    ensure([first], SESSION)
    room.point("softmax/s0/openmax/tune", first.folder)
    room.refuse_older_layout()
    (room.root / left).mkdir(parents=True)
    (room.root / left / "meta.json").touch()
    with pytest.raises(UsageError, match=r"was written by an earlier version.*; choose another --runs folder, or move"):
        room.refuse_older_layout()


@pytest.mark.parametrize("name", ["samples", "beton"])
def test_a_folder_in_the_place_of_a_link_is_refused_even_if_empty(room: Room, name: str):
    (room.root / name).mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"{name} was written by an earlier version"):
        room.refuse_older_layout()


def test_the_executor_is_entered_once_and_only_when_needed():
    import contextlib
    from collections.abc import Iterator

    entered: list[str] = []

    @contextlib.contextmanager
    def open_runner() -> Iterator[LocalRunner]:
        entered.append("in")
        yield LocalRunner()
        entered.append("out")

    with Session(open_runner) as session:
        session.resources()
        assert entered == []
        assert session.runner is session.runner
    assert entered == ["in", "out"]


# --- what is forgiven ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Fails(Add):
    """Cannot be made; from a check on, or only while it is made."""

    name = "fails"
    early: bool = False

    def check(self) -> None:
        if self.early:
            raise UsageError(f"{self.config.value} is refused")

    def make(self, work: Path, session: Session) -> Total | None:
        raise OscbenchError(f"{self.config.value} failed")


@pytest.mark.parametrize("early", [True, False])
def test_what_is_forgiven_fails_alone_with_what_needs_it(room: Room, early: bool):
    made: list[int] = []
    fails = Fails(room=room, config=Number(value=1), early=early)
    after = Add(room=room, config=Number(value=2), inputs={"before": fails}, made=made)
    good = Add(room=room, config=Number(value=3), made=made)
    failed = ensure([after, good], SESSION, forgiven={after.path})
    assert made == [3]
    assert list(failed) == [after.path]
    assert str(failed[after.path]) == ("1 is refused" if early else "1 failed")
    assert not after.folder.exists()


def test_what_is_there_needs_no_forgiveness(room: Room):
    """A finished stage does not need its inputs any more, even where another one does."""
    made: list[int] = []
    base = Add(room=room, config=Number(value=1), made=made)
    done = Add(room=room, config=Number(value=2), inputs={"before": base}, made=made)
    ensure([done], SESSION)
    shutil.rmtree(base.folder)
    broken = Fails(room=room, config=Number(value=4))
    other = Add(room=room, config=Number(value=3), inputs={"before": broken}, made=made)
    done_too = Add(room=room, config=Number(value=2), inputs={"before": base}, made=made)
    assert list(ensure([done_too, other], SESSION, forgiven={other.path})) == [other.path]
    assert made == [1, 2]


def test_what_is_not_forgiven_stops_everything(room: Room):
    made: list[int] = []
    fails = Fails(room=room, config=Number(value=1))
    forgiven, strict = (
        Add(room=room, config=Number(value=value), inputs={"before": fails}, made=made) for value in (2, 3)
    )
    with pytest.raises(OscbenchError, match="1 failed"):
        ensure([forgiven, strict], SESSION, forgiven={forgiven.path})
    with pytest.raises(OscbenchError, match="1 failed"):  # nothing would be left
        ensure([forgiven], SESSION, forgiven={forgiven.path})
    assert made == []
