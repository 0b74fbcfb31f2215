"""Conversion of a split's images into one FFCV file, by several processes, whole or not at all."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from oscbench.artifacts import atomic_file, write_text
from oscbench.data.augment import RAW_SHARE, hashed_bits
from oscbench.data.images import StoredImage, convert_image
from oscbench.data.samples import SampleTable
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import ProgressFn
from oscbench.records import sha256_file

CHUNK = 32
"""Images per task of a process; four tasks per process wait or run at a time, so that memory stays bounded."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """How images are stored.

    Attributes:
        side: Length of the shorter side in pixels.
        quality: JPEG quality, 1..95.
        mode: ``jpeg`` (small), ``raw`` pixels (large, no decoding, no loss) or ``mix``.
        raw_share: Share of images that ``mix`` stores as pixels.
    """

    side: int = 256
    quality: int = 90
    mode: Literal["jpeg", "raw", "mix"] = "jpeg"
    raw_share: float = 0.5

    def __post_init__(self) -> None:
        if not 8 <= self.side <= 1024:
            raise UsageError(f"--side must lie in 8..1024, got {self.side}")
        if not 1 <= self.quality <= 95:
            raise UsageError(f"--quality must lie in 1..95, got {self.quality}")
        if self.mode not in ("jpeg", "raw", "mix"):
            raise UsageError(f"--mode must be jpeg, raw or mix, got {self.mode!r}")
        if not 0 <= self.raw_share <= 1:
            raise UsageError(f"--raw-share must lie in 0..1, got {self.raw_share}")

    def normalised(self) -> ConvertConfig:
        """The same file's settings with the unused ones at their default: quality without JPEG, share without a mix."""
        usual = ConvertConfig()
        return replace(
            self,
            quality=usual.quality if self.mode == "raw" else self.quality,
            raw_share=self.raw_share if self.mode == "mix" else usual.raw_share,
        )

    def qualities(self, n: int) -> list[int | None]:
        """JPEG quality of each of n samples, ``None`` for pixels; in a mix a hash of the sample id decides."""
        if self.mode == "mix":
            raw = hashed_bits(0, 0, np.arange(n), RAW_SHARE) < self.raw_share * 2**32
            return [None if is_raw else self.quality for is_raw in raw.tolist()]
        return [self.quality if self.mode == "jpeg" else None] * n


@dataclass(frozen=True)
class ConvertedFile:
    """What the manifest says about one converted split.

    Attributes:
        samples: Number of samples.
        bytes: Size of the file.
        sha256: Of the file.
        originals_sha256: Of the list of the original images' checksums, kept beside the file.
    """

    samples: int
    bytes: int
    sha256: str
    originals_sha256: str


def require_ffcv() -> None:
    """Raises when FFCV, whose file format this is, does not work here."""
    from oscbench.data.loading import ffcv_problem

    problem = ffcv_problem()
    if problem:
        raise UsageError(
            f"nothing can be converted: {problem}; `oscbench doctor` says how to get it, and training works without "
            "it, more slowly"
        )


def originals_path(beton: Path) -> Path:
    """The list of the original images' checksums beside a converted file, as ``sha256sum`` writes it."""
    return beton.with_suffix(".sha256")


def convert_split(
    root: Path,
    samples: SampleTable,
    beton: Path,
    config: ConvertConfig,
    *,
    processes: int = 1,
    progress: ProgressFn | None = None,
) -> ConvertedFile:
    """Writes one split's FFCV file and the checksums of its originals; equal input gives equal bytes.

    Args:
        root: Folder to which the table's paths are relative.
        samples: The split's table.
        beton: The file to write.
        config: How images are stored.
        processes: Processes that decode, resize and encode.
        progress: Told the number of images done.
    """
    require_ffcv()
    from oscbench.data.ffcv import write_beton

    checksums: list[str] = []

    def written() -> Iterator[StoredImage]:
        for image in _converted(root, samples, config, processes):
            checksums.append(image.source_sha256)
            yield image
            if progress is not None:
                progress(len(checksums), len(samples))

    with atomic_file(beton) as temporary:
        write_beton(temporary, samples.labels, written())
        size, digest = temporary.stat().st_size, sha256_file(temporary)
    listing = "".join(f"{digest}  {path}\n" for digest, path in zip(checksums, samples.paths, strict=True))
    write_text(originals_path(beton), listing)
    return ConvertedFile(len(samples), size, digest, hashlib.sha256(listing.encode()).hexdigest())


def _converted(root: Path, samples: SampleTable, config: ConvertConfig, processes: int) -> Iterator[StoredImage]:
    """The images in order; at most a few chunks per process are under way."""
    tasks = list(zip([root / path for path in samples.paths], config.qualities(len(samples)), strict=True))
    chunks = [tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK)]
    if processes == 1:
        yield from itertools.chain.from_iterable(_convert_chunk(chunk, config.side) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of torch's and numba's threads
    pool = ProcessPoolExecutor(min(processes, len(chunks)), mp_context=context, initializer=_start_process)
    ahead: deque[Future[list[StoredImage]]] = deque()
    try:
        for chunk in chunks:
            ahead.append(pool.submit(_convert_chunk, chunk, config.side))
            if len(ahead) > 4 * processes:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()
    except BrokenProcessPool as error:
        raise OscbenchError("a conversion process died (out of memory?); try fewer --processes") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _convert_chunk(tasks: Sequence[tuple[Path, int | None]], side: int) -> list[StoredImage]:
    return [convert_image(path, side, quality) for path, quality in tasks]


def _start_process() -> None:
    """Ctrl-C reaches the whole process group, the parent alone answers it; and no process outlives a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def conversion_seconds(root: Path, samples: SampleTable, n_images: int, config: ConvertConfig, processes: int) -> float:
    """About how long the conversion of ``n_images`` takes, by the time that eight of the table's take."""
    rows = np.linspace(0, len(samples) - 1, min(8, len(samples)), dtype=np.int64).tolist()
    started = time.perf_counter()
    _convert_chunk([(root / samples.paths[row], config.qualities(1)[0]) for row in rows], config.side)
    return (time.perf_counter() - started) / len(rows) * n_images / processes


# --- resuming ----------------------------------------------------------------------------------------------------


def finished_file(beton: Path, fingerprint: str) -> ConvertedFile | None:
    """The record of a split that an earlier, perhaps interrupted, conversion with this fingerprint finished."""
    try:
        record = json.loads(_record_path(beton).read_text(encoding="utf-8"))
        file = ConvertedFile(**record["file"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None
    whole = beton.is_file() and beton.stat().st_size == file.bytes and originals_path(beton).is_file()
    return file if whole and record.get("fingerprint") == fingerprint else None


def record_finished(beton: Path, fingerprint: str, file: ConvertedFile) -> None:
    """Notes that a split is done, so that an interrupted conversion, or one with a damaged file, keeps it."""
    write_text(_record_path(beton), json.dumps({"fingerprint": fingerprint, "file": asdict(file)}))


def forget_finished(beton: Path) -> None:
    """Removes the note of ``record_finished``."""
    _record_path(beton).unlink(missing_ok=True)


def _record_path(beton: Path) -> Path:
    return beton.with_suffix(".done.json")


# --- verifying ---------------------------------------------------------------------------------------------------


def beton_problem(beton: Path, file: ConvertedFile) -> str:
    """Why a converted file is not the one that was written, or ``""``."""
    if not beton.is_file():
        return f"{beton} is missing"
    size = beton.stat().st_size
    if size != file.bytes:
        return f"{beton} has {size} bytes instead of {file.bytes}"
    return f"{beton} was altered: its SHA-256 differs" if sha256_file(beton) != file.sha256 else ""


def image_problems(root: Path, listing: Path, progress: ProgressFn | None = None) -> list[str]:
    """Original images that are missing or altered since the conversion, by their list of checksums."""
    rows = [line.split("  ", 1) for line in listing.read_text(encoding="utf-8").splitlines()]
    problems = []
    with ThreadPoolExecutor() as pool:  # hashing runs outside the interpreter lock
        answers = pool.map(lambda row: _image_problem(root / row[1], row[0]), rows)
        for done, problem in enumerate(answers, start=1):
            if problem:
                problems.append(problem)
            if progress is not None:
                progress(done, len(rows))
    return problems


def _image_problem(path: Path, digest: str) -> str:
    try:
        return "" if sha256_file(path) == digest else f"{path} was altered: its SHA-256 differs"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
