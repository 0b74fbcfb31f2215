"""Files and folders that appear whole or not at all, and the ``meta.json`` that completes a stage's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import platform
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import OscbenchError, UsageError
from oscbench.records import SCHEMA, fingerprint, from_mapping

META = "meta.json"
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

    The kernel drops the lock when its holder dies, however it dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise OscbenchError(
                f"{what} is in use by {holder} (lock {path}); wait for it, or choose another --runs folder"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


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


# --- meta.json ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What a stage's folder was made from; see ``Meta.create``. Written last, it marks the folder complete."""

    schema: int
    stage: str
    fingerprint: str
    inputs: dict[str, str]
    config: dict[str, Any]
    seed: int | None = None
    n_known: int | None = None
    n_outputs: int | None = None
    classes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    created: str = ""
    seconds: float = 0.0
    cpus: int = 0
    gpus: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    """What one stage adds: score kind and parameters of a score set, counts and checksums of a conversion."""

    @classmethod
    def create(
        cls,
        stage: str,
        *,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        result_config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        n_known: int | None = None,
        n_outputs: int | None = None,
        classes: tuple[str, ...] = (),
        seconds: float = 0.0,
        gpus: int = 0,
        details: Mapping[str, Any] | None = None,
    ) -> Meta:
        """A record of this machine and moment; ``result_config`` limits what enters the fingerprint."""
        deciding = config if result_config is None else result_config
        return cls(
            schema=SCHEMA,
            stage=stage,
            fingerprint=fingerprint(stage, deciding, inputs),
            inputs=dict(inputs),
            config=dict(config),
            seed=seed,
            n_known=n_known,
            n_outputs=n_outputs,
            classes=tuple(classes),
            versions=installed_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
            cpus=len(os.sched_getaffinity(0)),
            gpus=gpus,
            details=dict(details or {}),
        )

    def write(self, folder: Path) -> None:
        """Writes ``folder/meta.json``."""
        write_text(folder / META, json.dumps(dataclasses.asdict(self), indent=1, default=str) + "\n")

    @classmethod
    def read(cls, folder: Path, stage: str | None = None) -> Meta:
        """Reads and checks ``folder/meta.json``.

        Args:
            folder: A stage's folder.
            stage: The stage it must be of, when given.
        """
        path = folder / META
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{folder} has no {META}: not a finished stage; run the verb that makes it") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise OscbenchError(f"{path} is damaged ({error}); make the folder again") from error
        if not isinstance(raw, dict):
            raise OscbenchError(f"{path} is damaged (no JSON object); make the folder again")
        if raw.get("schema") != SCHEMA:
            raise UsageError(
                f"{path} has schema {raw.get('schema')!r}, this version reads {SCHEMA}; choose another --runs folder"
            )
        meta = from_mapping(cls, raw, str(path))
        if stage is not None and meta.stage != stage:
            raise UsageError(f"{folder} holds stage {meta.stage!r}, expected {stage!r}")
        return meta


def is_complete(folder: Path, expected_fingerprint: str | None = None) -> bool:
    """Whether the folder holds a finished stage (of the expected fingerprint, when given)."""
    if not (folder / META).exists():
        return False
    return expected_fingerprint is None or Meta.read(folder).fingerprint == expected_fingerprint


def installed_versions() -> dict[str, str]:
    """Python and the packages that can change a number, with their versions."""
    versions = {"python": platform.python_version()}
    for name in _RECORDED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
