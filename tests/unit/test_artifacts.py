from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from oscbench.artifacts import (
    Input,
    Meta,
    Request,
    atomic_file,
    atomic_folder,
    exclusive_lock,
    is_begun,
    is_complete,
    load_array,
    save_array,
    write_text,
)
from oscbench.errors import OscbenchError, UsageError
from oscbench.records import SCHEMA


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path: Path):
    write_text(tmp_path / "deep" / "a.txt", "äöü")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "äöü"
    assert listing(tmp_path / "deep") == ["a.txt"]


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert listing(tmp_path) == ["a.txt"]


def test_a_folder_replaces_the_old_one_only_on_success(tmp_path: Path):
    target = tmp_path / "stage"
    with atomic_folder(target) as temporary:
        (temporary / "one").write_text("1")
    with pytest.raises(RuntimeError), atomic_folder(target) as temporary:
        (temporary / "two").write_text("2")
        raise RuntimeError
    assert listing(target) == ["one"]
    with atomic_folder(target) as temporary:
        (temporary / "three").write_text("3")
    assert listing(target) == ["three"]
    assert listing(tmp_path) == ["stage"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, object]]:
    """What is synced (with its content at that moment) and what is renamed to what, in order."""
    events: list[tuple[str, str, object]] = []
    fsync = os.fsync

    def watched_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(("sync", str(path), listing(path) if path.is_dir() else path.read_text()))
        fsync(descriptor)

    def watched(rename):
        def watched_rename(source: str | Path, target: str | Path) -> None:
            events.append(("rename", str(source), str(target)))
            rename(source, target)

        return watched_rename

    monkeypatch.setattr(os, "fsync", watched_fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return events


def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_end(tmp_path: Path, disk):
    for text in ("one", "another"):
        disk.clear()
        write_text(tmp_path / "a.txt", text)
        (temporary,) = [source for kind, source, target in disk if kind == "rename"]
        assert disk == [
            ("sync", temporary, text),
            ("rename", temporary, str(tmp_path / "a.txt")),
            ("sync", str(tmp_path), ["a.txt"]),
        ]


def test_a_folder_is_on_disk_with_all_it_holds_before_its_name(tmp_path: Path, disk):
    target = tmp_path / "stage"
    for text in ("one", "another"):
        disk.clear()
        with atomic_folder(target) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / "a.txt").write_text(text)
            (temporary / "b.txt").write_text(text)
        place = disk.index(("rename", str(temporary), str(target)))
        before, after = disk[:place], disk[place + 1 :]
        content = {"deep/a.txt": text, "b.txt": text, "deep": ["a.txt"]}
        expected = [("sync", str(temporary / name), held) for name, held in content.items()]
        synced = [event for event in before if event[0] == "sync"]
        assert sorted(synced, key=str) == sorted([*expected, ("sync", str(temporary), ["b.txt", "deep"])], key=str)
        moved_away = [source for kind, source, _ in before if kind == "rename"]
        assert moved_away == ([str(target)] if text == "another" else [])
        assert [(kind, path) for kind, path, _ in after] == [("sync", str(tmp_path))]
        assert "stage" in after[0][2]


def test_what_a_killed_writer_left_is_cleared_by_the_next(tmp_path: Path):
    code = f"""
        import os, signal
        from pathlib import Path
        from oscbench.artifacts import atomic_folder
        with atomic_folder(Path({str(tmp_path)!r}) / "stage") as temporary:
            (temporary / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    assert killed.returncode == -signal.SIGKILL
    assert len(listing(tmp_path)) == 1
    assert not (tmp_path / "stage").exists()
    with atomic_folder(tmp_path / "stage") as temporary:
        (temporary / "whole").write_text("whole")
    assert listing(tmp_path) == ["stage"]


def test_a_living_writer_is_left_alone(tmp_path: Path):
    other = tmp_path / f".stage.{socket.gethostname()}-{os.getppid()}-0123abcd"
    other.mkdir()
    with atomic_folder(tmp_path / "stage"):
        pass
    assert listing(tmp_path) == [other.name, "stage"]


@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, writer):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(OscbenchError, match="cannot write .*file/a: .*choose another folder"),
        writer(tmp_path / "file" / "a"),
    ):
        pass


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path):
    with (
        pytest.raises(OscbenchError, match="No space left on device"),
        atomic_file(tmp_path / "a.txt") as temporary,
    ):
        temporary.write_text("some of it")
        with open("/dev/full", "w") as full:
            full.write("x")
    assert listing(tmp_path) == []


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path):
    lock = tmp_path / "lock"
    with (
        exclusive_lock(lock, "the search"),
        pytest.raises(OscbenchError, match=f"the search is in use by process {os.getpid()}"),
        exclusive_lock(lock, "the search"),
    ):
        pass
    with exclusive_lock(lock, "the search"):
        pass


def test_arrays_round_trip_as_little_endian_c_order(tmp_path: Path):
    array = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    save_array(tmp_path / "a.npy", array)
    loaded = load_array(tmp_path / "a.npy", np.float32, 2)
    assert loaded.dtype.str == "<f4"
    assert loaded.flags.c_contiguous
    np.testing.assert_array_equal(loaded, array)


def test_damaged_arrays_are_named(tmp_path: Path):
    path = tmp_path / "a.npy"
    with pytest.raises(UsageError, match=r"a\.npy is missing"):
        load_array(path, np.float32, 1)
    save_array(path, np.arange(100, dtype=np.float32))
    with pytest.raises(UsageError, match=r"holds float32 with 1 dimensions, expected int64 with 1"):
        load_array(path, np.int64, 1)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(OscbenchError, match=r"a\.npy is damaged"):
        load_array(path, np.float32, 1)
    path.write_bytes(b"")
    with pytest.raises(OscbenchError, match=r"a\.npy is damaged"):
        load_array(path, np.float32, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    layer: str
    sizes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    rows: dict[str, int]


def make_meta() -> Meta[Layer, Rows]:
    return Meta.create(
        stage="features",
        fingerprint="0123456789abcdef",
        content="fedcba98",
        inputs={"train": Input(fingerprint="00ff", content="ab")},
        config=Layer(layer="embedding", sizes={"train": (1, 2)}),
        result=Rows(rows={"val": 5}),
        seconds=1.23456,
    )


def read_meta(folder: Path) -> Meta[Layer, Rows]:
    return Meta.read(folder, "features", Layer, Rows)


def test_meta_round_trips_with_its_types_and_completes_the_folder(tmp_path: Path):
    meta = make_meta()
    assert not is_complete(tmp_path)
    meta.write(tmp_path)
    assert read_meta(tmp_path) == meta
    assert read_meta(tmp_path).config.sizes == {"train": (1, 2)}
    assert is_complete(tmp_path)
    assert {"python", "numpy", "torch"} <= set(meta.versions)
    assert meta.cpus >= 1
    assert meta.seconds == 1.235


def test_a_request_is_readable_before_the_stage_is_finished(tmp_path: Path):
    request = Request(
        schema=SCHEMA,
        stage="train",
        fingerprint="ab",
        inputs={"samples": Input(fingerprint="cd")},
        config=Layer(layer="x"),
    )
    assert not is_begun(tmp_path)
    request.write(tmp_path)
    assert is_begun(tmp_path)
    assert not is_complete(tmp_path)
    assert Request.read(tmp_path, "train", Layer) == request


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"schema": 2', '"schema": 1'), "schema 1, this version reads 2"),
        (lambda text: json.dumps(json.loads(text) | {"colour": 1}), "unknown key 'colour'"),
        (lambda text: json.dumps(json.loads(text) | {"seconds": "one"}), "seconds: expected float, got 'one'"),
        (lambda text: text.replace('"val": 5', '"val": "five"'), "result: rows: expected int, got 'five'"),
    ],
)
def test_damaged_meta_is_one_line(tmp_path: Path, damage, message: str):
    make_meta().write(tmp_path)
    path = tmp_path / "meta.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(OscbenchError, match=message) as raised:
        read_meta(tmp_path)
    assert "meta.json" in str(raised.value)


def test_a_folder_of_another_stage_or_unfinished_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"has no meta\.json"):
        read_meta(tmp_path)
    make_meta().write(tmp_path)
    with pytest.raises(UsageError, match="holds stage 'features', expected 'scores'"):
        Meta.read(tmp_path, "scores", Layer, Rows)
