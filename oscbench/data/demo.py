"""The embedded data: a small ILSVRC-shaped tree of JPEG files, drawn from the classes' WordNet paths."""

from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from oscbench.artifacts import atomic_folder, write_text
from oscbench.data.looks import GENERATOR, draw_images
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import ProgressFn
from oscbench.numerics.threads import usable_cpus
from oscbench.protocols.base import Protocol
from oscbench.protocols.wordnet import load_tree
from oscbench.records import fingerprint

MARKER = "demo.json"
"""File in the data folder that says with which settings it is drawn."""
QUALITY = 90
FULL_COLOUR = 0
"""JPEG's chroma at the resolution of the luma: colours of parts a few pixels wide tell classes apart."""
BATCH = 64
"""Images of a class drawn at once; bounds the memory of large sizes and counts."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What decides every byte of the embedded data.

    Attributes:
        per_class: Images in ``train/<wnid>/`` of each known and negative class.
        test_per_class: Images in ``val/<wnid>/`` of each class.
        size: Side of the square images, in pixels.
        seed: Another seed gives other looks and other images.
    """

    per_class: int = 150
    test_per_class: int = 40
    size: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("per_class", 2), ("test_per_class", 1), ("size", 16), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"demo data: {name} must be at least {least}, got {getattr(self, name)}")

    @property
    def fingerprint(self) -> str:
        """16 hex digits over the settings and the version of the drawing."""
        return fingerprint("demo", dataclasses.asdict(self) | {"generator": GENERATOR}, {})


@dataclass(frozen=True)
class _Job:
    """One class folder to draw."""

    folder: Path
    split: str
    wnid: str
    count: int
    config: DemoConfig


def draw_demo(
    out: Path, config: DemoConfig, protocol: Protocol, progress: ProgressFn | None = None, *, workers: int | None = None
) -> None:
    """Draws what is missing of a protocol's data below ``out``: ``train/<wnid>/``, ``val/<wnid>/``.

    A class folder appears whole or not at all, so an interrupted run goes on where it stopped, and several protocols
    share one tree. The bytes do not depend on protocol, role, number of workers or order.

    Args:
        out: New, empty, or a folder drawn earlier with the same settings.
        config: Counts, size and seed.
        protocol: Its known and negative classes get training images, all its classes test images.
        progress: Called with images done and images in all.
        workers: Threads; default: one per usable core. Drawing and JPEG coding run outside the interpreter lock.
    """
    jobs = _jobs(out, config, protocol)
    _claim(out, config)
    missing = [job for job in jobs if not _is_drawn(job)]
    total = sum(job.count for job in jobs)
    done = total - sum(job.count for job in missing)
    workers = min(workers or usable_cpus(), max(1, len(missing)))
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(_draw_class, job): job for job in missing}
        try:
            for future in as_completed(waiting):
                future.result()
                done += waiting[future].count
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _claim(out: Path, config: DemoConfig) -> None:
    """Marks ``out`` as ours, or refuses a folder that holds anything else."""
    settings = dataclasses.asdict(config) | {"generator": GENERATOR}
    try:
        present = sorted(os.listdir(out))
    except FileNotFoundError:
        present = []
    except OSError as error:
        raise OscbenchError(f"cannot write demo data to {out}: {error.strerror}; choose another --out") from error
    if MARKER in present:
        try:
            found = json.loads((out / MARKER).read_text(encoding="utf-8"))
        except ValueError as error:
            raise OscbenchError(f"{out / MARKER} is damaged; remove {out} and draw it again") from error
        if found != settings:
            raise UsageError(
                f"{out} holds demo data with other settings ({_differences(found, settings)}); choose another --out"
            )
    elif present:
        raise UsageError(f"{out} is not empty and holds no demo data; choose another --out")
    else:
        write_text(out / MARKER, json.dumps(settings) + "\n")


def _differences(found: dict[str, object], wanted: dict[str, object]) -> str:
    pairs = ((name, found.get(name), value) for name, value in wanted.items())
    return ", ".join(f"{name} {there} there, {value} here" for name, there, value in pairs if there != value)


def _jobs(out: Path, config: DemoConfig, protocol: Protocol) -> list[_Job]:
    tree = load_tree()
    for wnid in protocol.classes:
        if wnid not in tree.synsets:
            raise UsageError(f"class {wnid!r} of protocol {protocol.name} is not in WordNet; demo data cannot draw it")
    parts = (
        ("train", config.per_class, protocol.classes[: protocol.n_known + len(protocol.negative)]),
        ("val", config.test_per_class, protocol.classes),
    )
    return [_Job(out / split / wnid, split, wnid, n, config) for split, n, wnids in parts for wnid in wnids]


def _is_drawn(job: _Job) -> bool:
    return job.folder.is_dir() and len(os.listdir(job.folder)) == job.count


def _draw_class(job: _Job) -> None:
    from PIL import Image

    path, config = load_tree().path(job.wnid), job.config
    with atomic_folder(job.folder) as temporary:
        for start in range(0, job.count, BATCH):
            indices = range(start, min(start + BATCH, job.count))
            for index, pixels in zip(
                indices, draw_images(path, config.seed, job.split, indices, config.size), strict=True
            ):
                Image.fromarray(pixels).save(
                    temporary / f"{job.wnid}_{index:05}.JPEG", quality=QUALITY, subsampling=FULL_COLOUR
                )
