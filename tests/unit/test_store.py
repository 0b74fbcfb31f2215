"""Publishing and fetching finished stages, on the file systems of pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from oscbench.artifacts import META
from oscbench.errors import OscbenchError, UsageError
from oscbench.store import Store, check_local

NAME = "demo/p1/train-1a2b3c4d"


def filesystems(tmp_path: Path) -> dict[str, fs.FileSystem]:
    from fsspec.implementations.memory import MemoryFileSystem

    (tmp_path / "shared").mkdir()
    memory = MemoryFileSystem()
    memory.store.clear()
    return {
        "local": fs.SubTreeFileSystem(str(tmp_path / "shared"), fs.LocalFileSystem()),
        "memory": fs.SubTreeFileSystem("/shared", fs.PyFileSystem(fs.FSSpecHandler(memory))),
    }


@pytest.fixture(params=["local", "memory"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> fs.FileSystem:
    return filesystems(tmp_path)[request.param]


def made(store: Store) -> Path:
    folder = store.folder(NAME)
    (folder / "val").mkdir(parents=True)
    (folder / "last.pth").write_bytes(bytes(range(256)) * 5000)
    (folder / "val" / "scores.npy").write_bytes(b"\x93NUMPY")
    (folder / META).write_text("{}")
    return folder


def test_a_published_folder_is_fetched_elsewhere_byte_by_byte(tmp_path: Path, filesystem: fs.FileSystem) -> None:
    here, there = Store(tmp_path / "here", filesystem), Store(tmp_path / "there", filesystem)
    folder = made(here)
    assert not there.exists(NAME)
    here.publish(NAME)
    assert there.exists(NAME)
    fetched = there.fetch(NAME)
    assert fetched == tmp_path / "there" / NAME
    for path in ("last.pth", "val/scores.npy", META):
        assert (fetched / path).read_bytes() == (folder / path).read_bytes()


class Counting:
    """Passes everything on to a file system and writes down which file is written when."""

    def __init__(self, inner: fs.FileSystem) -> None:
        self.inner, self.written, self.fail_at = inner, list[str](), "nowhere"

    def open_output_stream(self, path: str) -> Any:
        if path.endswith(self.fail_at):
            raise OSError(28, "No space left on device")
        self.written.append(path)
        return self.inner.open_output_stream(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_meta_is_published_last_and_a_failed_publication_does_not_count(tmp_path: Path) -> None:
    shared = filesystems(tmp_path)["local"]
    counting = Counting(shared)
    store = Store(tmp_path / "here", counting)
    made(store)
    store.publish(NAME)
    assert counting.written[-1] == f"{NAME}/{META}"
    assert sorted(counting.written[:-1]) == [f"{NAME}/last.pth", f"{NAME}/val/scores.npy"]

    other = "demo/p1/train-99999999"
    store.folder(NAME).rename(store.folder(other))
    counting.fail_at = "scores.npy"
    with pytest.raises(OscbenchError, match="cannot publish .*train-99999999"):
        store.publish(other)
    assert not Store(tmp_path / "there", shared).exists(other)


def test_a_store_of_a_folder_alone_publishes_and_fetches_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    assert not store.exists(NAME)
    folder = made(store)
    store.publish(NAME)
    assert store.exists(NAME)
    assert store.fetch(NAME) == folder


@pytest.mark.parametrize("address", ["s3://bucket/runs", "gs://x", "hdfs://host:9000/a", "s3:/bucket"])
def test_an_address_as_runs_folder_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"--runs .* is an address, not a folder; give a local path"):
        check_local(Path(address))


@pytest.mark.parametrize("folder", ["runs", "/data/runs", "./a:b", "C", "../x"])
def test_folders_are_taken_as_they_are(folder: str) -> None:
    assert check_local(Path(folder)) == Path(folder)
