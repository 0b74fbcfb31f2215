from __future__ import annotations

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
    Meta,
    atomic_file,
    atomic_folder,
    exclusive_lock,
    is_complete,
    load_array,
    save_array,
    write_text,
)
from oscbench.errors import OscbenchError, UsageError


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


def make_meta() -> Meta:
    return Meta.create(
        "features",
        config={"layer": "embedding", "block": 3},
        result_config={"layer": "embedding"},
        inputs={"train": "00ff"},
        seed=1,
        n_known=2,
        n_outputs=3,
        classes=("a", "b", "c"),
        seconds=1.23456,
        details={"rows": 5},
    )


def test_meta_round_trips_and_completes_the_folder(tmp_path: Path):
    meta = make_meta()
    assert not is_complete(tmp_path)
    meta.write(tmp_path)
    assert Meta.read(tmp_path, "features") == meta
    assert is_complete(tmp_path)
    assert is_complete(tmp_path, meta.fingerprint)
    assert not is_complete(tmp_path, "another")
    assert {"python", "numpy", "torch"} <= set(meta.versions)
    assert meta.cpus >= 1


def test_only_deciding_fields_enter_the_fingerprint():
    plain = Meta.create("features", config={"layer": "embedding"}, inputs={"train": "00ff"})
    assert make_meta().fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"schema": 1', '"schema": 0'), "schema 0, this version reads 1"),
        (lambda text: json.dumps(json.loads(text) | {"colour": 1}), "unknown key 'colour'"),
        (lambda text: json.dumps(json.loads(text) | {"seed": "one"}), "seed: expected"),
    ],
)
def test_damaged_meta_is_one_line(tmp_path: Path, damage, message: str):
    make_meta().write(tmp_path)
    path = tmp_path / "meta.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(OscbenchError, match=message) as raised:
        Meta.read(tmp_path)
    assert "meta.json" in str(raised.value)


def test_a_folder_of_another_stage_or_unfinished_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"has no meta\.json"):
        Meta.read(tmp_path)
    make_meta().write(tmp_path)
    with pytest.raises(UsageError, match="holds stage 'features', expected 'scores'"):
        Meta.read(tmp_path, "scores")
