"""Files and folders that appear whole or not at all, and the typed ``meta.json`` that completes a stage's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import platform
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import BusyError, OscbenchError, UsageError
from oscbench.numerics.threads import usable_cpus
from oscbench.records import SCHEMA, from_mapping, plain

META, REQUEST = "meta.json", "request.json"
ASIDE = "aside"
"""Folder in which stages that were set aside are kept; nothing there is ever used."""

C = TypeVar("C")
R = TypeVar("R")
_RECORDED_PACKAGES = (
    "oscbench",
    "numpy",
    "torch",
    "torchvision",
    "ray",
    "optuna",
    "numba",
    "ffcv",
    "pillow",
    "scikit-learn",
)


# --- writing -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it is synced and renamed, on any error removed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, atomic_file(Path(folder) / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole or not at all")
    """
    with _writing(path):
        temporary = _temporary_sibling(path)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside ``path`` that replaces it on success and vanishes on any error.

    A reader sees the old folder, then for the moment between two renames none, then the new one: never a mixture.
    """
    with _writing(path):
        temporary = _temporary_sibling(path)
        temporary.mkdir()
        try:
            yield temporary
            for file in sorted(temporary.rglob("*"), reverse=True):
                _sync(file)
            _sync(temporary)
            replaced = _temporary_sibling(path)
            if path.exists():
                os.rename(path, replaced)
            os.rename(temporary, path)
            _sync(path.parent)
            shutil.rmtree(replaced, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Makes the parent folder, clears what killed writers left there, and turns OS errors into one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f".{path.name}.{socket.gethostname()}-*"):
            if not _alive(leftover.name.rsplit("-", 2)[1]):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OscbenchError(f"cannot write {path}: {reason}; free space there or choose another folder") from error


def _temporary_sibling(path: Path) -> Path:
    return path.parent / f".{path.name}.{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _alive(pid: str) -> bool:
    return pid.isdigit() and Path(f"/proc/{pid}").exists() if Path("/proc").exists() else True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Holds ``path`` as a lock file; when another process has it, says who instead of waiting.

    The kernel drops the lock when its holder dies, however it dies. Who holds it stands in a file beside it, because
    trying to lock a file empties it.
    """
    import filelock  # readers of tables need none

    path.parent.mkdir(parents=True, exist_ok=True)
    holder = path.with_name(f"{path.name}-holder")
    try:
        lock = filelock.FileLock(path, blocking=False)
        lock.acquire()
    except filelock.Timeout as error:
        who = holder.read_text(encoding="utf-8").strip() if holder.exists() else "another process"
        raise BusyError(
            f"{what} is in use by {who} (lock {path}); wait for it, or choose another --runs folder"
        ) from error
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


# --- arrays ------------------------------------------------------------------------------------------------------


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Writes a ``.npy`` file: C order, little endian, no pickle."""
    contiguous = np.ascontiguousarray(array)
    np.save(path, contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False), allow_pickle=False)


def load_array(path: Path, dtype: type[np.generic], ndim: int) -> NDArray[Any]:
    """A memory-mapped ``.npy`` file, checked for type and number of dimensions; damage names the file."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing") from error
    except (ValueError, EOFError, OSError) as error:
        raise OscbenchError(f"{path} is damaged ({error}); make it again") from error
    if array.dtype != np.dtype(dtype) or array.ndim != ndim:
        raise UsageError(
            f"{path} holds {array.dtype} with {array.ndim} dimensions, expected {np.dtype(dtype)} with {ndim}"
        )
    return array


# --- what a stage's folder was made from ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Input:
    """A finished stage that another one was made from.

    Attributes:
        fingerprint: What it was to be.
        content: What it was: its ``Meta.content``; empty where it was gone already.
    """

    fingerprint: str
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class Request(Generic[C]):
    """What a stage's folder is to hold; ``request.json``, written first, makes an unfinished folder readable."""

    schema: int
    stage: str
    fingerprint: str
    inputs: dict[str, Input]
    config: C

    def write(self, folder: Path) -> None:
        """Writes ``folder/request.json``."""
        write_text(folder / REQUEST, _document(self))

    @classmethod
    def read(cls, folder: Path, stage: str, config: type[C]) -> Request[C]:
        """Reads and checks ``folder/request.json``; ``config`` is the type of the stage's record."""
        found: Request[C] = _read(folder, REQUEST, Request[config], stage)  # type: ignore[valid-type]
        return found


@dataclass(frozen=True, kw_only=True)
class Meta(Generic[C, R]):
    """What a stage's folder was made from and what came out; ``meta.json``, written last, marks it complete.

    Attributes:
        content: Digest of what came out. A stage that was made again to the same has the same; a search that was made
            longer, or a network trained anew on a GPU, has another one.
        config: The record that decides the stage.
        result: What it found out, as the stage's own record.
        seconds: How long it took.
    """

    schema: int
    stage: str
    fingerprint: str
    content: str
    inputs: dict[str, Input]
    config: C
    result: R
    versions: dict[str, str]
    created: str
    seconds: float
    cpus: int

    @classmethod
    def create(
        cls,
        *,
        stage: str,
        fingerprint: str,
        content: str,
        inputs: Mapping[str, Input],
        config: C,
        result: R,
        seconds: float,
    ) -> Meta[C, R]:
        """A record of this machine and moment."""
        return cls(
            schema=SCHEMA,
            stage=stage,
            fingerprint=fingerprint,
            content=content,
            inputs=dict(inputs),
            config=config,
            result=result,
            versions=installed_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
            cpus=usable_cpus(),
        )

    def write(self, folder: Path) -> None:
        """Writes ``folder/meta.json``."""
        write_text(folder / META, _document(self))

    @classmethod
    def read(cls, folder: Path, stage: str, config: type[C], result: type[R]) -> Meta[C, R]:
        """Reads and checks ``folder/meta.json``; ``config`` and ``result`` are the types of the stage's records.

        A graph of stages asks for the same records over and over: a file that has not changed is not read again.
        """
        try:
            state = (folder / META).stat()
            version = (state.st_ino, state.st_mtime_ns, state.st_size)
        except OSError:  # reading it says what is wrong
            version = (0, 0, 0)
        kinds: Any = (config, result)
        found: Meta[C, R] = _read_version(folder, stage, kinds, version)
        return found


@functools.lru_cache(maxsize=10_000)
def _read_version(folder: Path, stage: str, kinds: tuple[Any, Any], version: tuple[int, int, int]) -> Any:
    config, result = kinds
    return _read(folder, META, Meta[config, result], stage)  # type: ignore[valid-type]


def is_complete(folder: Path) -> bool:
    """Whether the folder holds a finished stage: the one place that knows what makes it one."""
    return (folder / META).exists()


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a stage that was begun, finished or not."""
    return (folder / REQUEST).exists()


def _document(record: Any) -> str:
    return json.dumps(dataclasses.asdict(record), indent=1, default=plain, allow_nan=False) + "\n"


def _read(folder: Path, name: str, kind: Any, stage: str) -> Any:
    path = folder / name
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{folder} has no {name}: not a finished stage; run the verb that makes it") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise OscbenchError(f"{path} is damaged ({error}); remove {folder} and make it again") from error
    if not isinstance(raw, dict):
        raise OscbenchError(f"{path} is damaged (no JSON object); remove {folder} and make it again")
    if raw.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} has schema {raw.get('schema')!r}, this version reads {SCHEMA}; choose another --runs folder"
        )
    if raw.get("stage") != stage:
        raise UsageError(f"{folder} holds stage {raw.get('stage')!r}, expected {stage!r}")
    return from_mapping(kind, raw, str(path))


def installed_versions() -> dict[str, str]:
    """Python and the packages that can change a number, with their versions."""
    versions = {"python": platform.python_version()}
    for name in _RECORDED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
