"""The stages before training: images, sample tables, FFCV files; each runs when missing and is re-used otherwise."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oscbench.artifacts import META, Meta, atomic_folder, exclusive_lock
from oscbench.data.convert import (
    ConvertConfig,
    ConvertedFile,
    conversion_seconds,
    convert_split,
    finished_file,
    forget_finished,
    record_finished,
    require_ffcv,
)
from oscbench.data.demo import DemoConfig, draw_demo
from oscbench.data.samples import SampleTable, listed, read_samples, write_samples
from oscbench.data.splits import make_splits
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import NEGATIVE, SPLITS, UNKNOWN
from oscbench.progress import duration, show_progress
from oscbench.protocols.base import ROLES, Protocol, load_protocol
from oscbench.records import fingerprint, sha256_file
from oscbench.rundir import RunDir

if TYPE_CHECKING:
    from oscbench.data.loading import DataSplit

logger = logging.getLogger(__name__)

DEMO = "demo"
"""What ``--data`` says for the embedded data."""


@dataclass(frozen=True)
class Workspace:
    """One data set under one protocol: where its images are and where its results go.

    Attributes:
        run: Folder of the results.
        protocol: The classes.
        images: Folder with ``train/<wnid>/`` and ``val/<wnid>/``.
        demo: Settings of the embedded data; ``None`` for a folder of the user's.
    """

    run: RunDir
    protocol: Protocol
    images: Path
    demo: DemoConfig | None = None

    @property
    def stored_side(self) -> int:
        """Shorter side of stored images where nothing else is asked for."""
        return 64 if self.demo is not None else 256

    @property
    def crop(self) -> int:
        """Side of the network's input where nothing else is asked for."""
        return 56 if self.demo is not None else 224

    @property
    def title(self) -> str:
        """Data and protocol in words, for messages."""
        return f"{self.run.data}, protocol {self.protocol.slug}"


def open_workspace(
    *, runs: Path, data: str, protocol: str, name: str | None = None, demo: DemoConfig | None = None
) -> Workspace:
    """The workspace that ``--runs``, ``--data``, ``--protocol`` and ``--name`` mean; makes nothing yet.

    Args:
        runs: Folder of all results.
        data: ``demo``, or an image folder.
        protocol: 1, 2, 3 or a protocol file.
        name: Name of the data below ``runs``; default: ``demo-<8 hex>`` or the folder's name.
        demo: Settings of the embedded data, when not the usual ones.
    """
    loaded = load_protocol(protocol)
    if data == DEMO:
        demo = demo or DemoConfig()
        name = name or f"demo-{demo.fingerprint[:8]}"
        return Workspace(RunDir(runs, name, loaded.slug), loaded, runs / name / "images", demo)
    root = Path(data)
    if not root.is_dir():
        raise UsageError(f"data folder {data} does not exist; give an image folder, or 'demo' for the embedded data")
    return Workspace(RunDir(runs, name or root.resolve().name, loaded.slug), loaded, root)


# --- images ------------------------------------------------------------------------------------------------------


def ensure_images(workspace: Workspace) -> Path:
    """The folder of images; draws what is missing of the embedded data and leaves a user's folder alone."""
    if workspace.demo is None:
        return workspace.images
    drawn = False
    with show_progress("drawing demo images") as show:

        def progress(done: int, total: int) -> None:
            nonlocal drawn
            drawn = True
            show(done, total)

        draw_demo(workspace.images, workspace.demo, workspace.protocol, progress)
    logger.info("images: %s %s", "drew" if drawn else "re-using", workspace.images)
    return workspace.images


# --- sample tables -----------------------------------------------------------------------------------------------


def ensure_samples(workspace: Workspace) -> Meta:
    """The record of the sample tables ``train``, ``val`` and ``test``; made when missing or when images changed."""
    root, folder = ensure_images(workspace), workspace.run.samples
    reason = _samples_outdated(workspace)
    if not reason:
        logger.info("samples: re-using %s", folder)
        return Meta.read(folder, "samples")
    logger.info("samples: making the tables of %s (%s)", workspace.title, reason)
    started = time.monotonic()
    tables = _published_tables(workspace) or make_splits(workspace.protocol, root)
    with atomic_folder(folder) as temporary:
        for split, table in tables.items():
            write_samples(temporary / f"{split}.csv", table)
        meta = _samples_meta(workspace, temporary, tables, time.monotonic() - started)
        meta.write(temporary)
    return meta


def read_split_samples(workspace: Workspace, split: str) -> SampleTable:
    """The sample table of one split."""
    return read_samples(workspace.run.samples / f"{split}.csv", n_known=workspace.protocol.n_known)


def _published_tables(workspace: Workspace) -> dict[str, SampleTable] | None:
    """The tables that lie ready in the image folder (``p1_train.csv`` …), or ``None`` when there are none."""
    slug = workspace.protocol.slug
    paths = {split: workspace.images / f"{slug}_{split}.csv" for split in SPLITS}
    missing = [path.name for path in paths.values() if not path.exists()]
    if len(missing) == len(paths):
        return None
    if missing:
        raise UsageError(
            f"{workspace.images} has some tables of {slug} but not {', '.join(missing)}; add or remove them"
        )
    return {split: read_samples(path, n_known=workspace.protocol.n_known) for split, path in paths.items()}


def _samples_outdated(workspace: Workspace) -> str:
    """Why the tables must be made, or ``""`` when they fit the protocol and the images."""
    folder = workspace.run.samples
    if not (folder / META).exists():
        return "not there yet"
    meta = Meta.read(folder, "samples")
    if (meta.classes, meta.n_known) != (workspace.protocol.classes, workspace.protocol.n_known):
        return "the protocol changed"
    tables = {split: read_split_samples(workspace, split) for split in SPLITS}
    found = fingerprint("samples", _samples_config(workspace, folder, tables), {})
    return "" if found == meta.fingerprint else "tables or images changed"


def _samples_meta(workspace: Workspace, folder: Path, tables: Mapping[str, SampleTable], seconds: float) -> Meta:
    deciding = _samples_config(workspace, folder, tables)
    files = {
        split: {
            "samples": len(table),
            "known": int(np.sum(table.labels >= 0)),
            "negative": int(np.sum(table.labels == NEGATIVE)),
            "unknown": int(np.sum(table.labels == UNKNOWN)),
            "sha256": deciding["tables"][split],
        }
        for split, table in tables.items()
    }
    return Meta.create(
        "samples",
        config={"data": workspace.run.data, "protocol": workspace.protocol.slug},
        result_config=deciding,
        inputs={},
        n_known=workspace.protocol.n_known,
        classes=workspace.protocol.classes,
        seconds=seconds,
        details={"files": files},
    )


def _samples_config(workspace: Workspace, folder: Path, tables: Mapping[str, SampleTable]) -> dict[str, Any]:
    """What decides the data: the classes, the bytes of the tables and the size of every image."""
    roles = {role: [member.wnid for member in workspace.protocol.role(role)] for role in ROLES}
    checksums = {split: sha256_file(folder / f"{split}.csv") for split in tables}
    sizes = {split: _sizes_digest(workspace, table.paths) for split, table in tables.items()}
    return {"classes": roles, "tables": checksums, "sizes": sizes}


def _sizes_digest(workspace: Workspace, paths: tuple[str, ...]) -> str:
    root = workspace.images

    def size(path: str) -> int:
        try:
            return os.stat(root / path).st_size
        except OSError:
            return -1

    with ThreadPoolExecutor(16) as pool:  # network file systems answer many questions at a time
        sizes = np.fromiter(pool.map(size, paths), np.int64, len(paths))
    missing = [paths[row] for row in np.flatnonzero(sizes < 0)]
    if missing:
        raise OscbenchError(
            f"{root}: {listed(missing, 'missing image')}; restore them, or delete {workspace.run.samples} "
            "and the tables in the image folder, if any, to split what is there"
        )
    return hashlib.sha256(sizes.astype("<i8").tobytes()).hexdigest()


# --- FFCV files --------------------------------------------------------------------------------------------------


def ensure_beton(
    workspace: Workspace,
    config: ConvertConfig | None = None,
    *,
    processes: int | None = None,
    ask_above_seconds: float | None = None,
) -> Meta | None:
    """The record of the FFCV files of the three splits; converts the splits that are missing or outdated.

    Args:
        workspace: Which data.
        config: How to store images; ``None`` takes whatever conversion is there (one of another size is refused),
            converts with the defaults when there is none, and returns ``None`` where FFCV is not installed.
        processes: Processes that convert; default: one per usable CPU.
        ask_above_seconds: A conversion that would take longer is refused with the way out; default: never.
    """
    samples = ensure_samples(workspace)
    meta = _usable_beton(workspace, samples, config)
    if meta is not None:
        logger.info("beton: re-using %s", workspace.run.beton)
        return meta
    from oscbench.data.loading import ffcv_problem  # imports torch, which takes a while

    if config is None and ffcv_problem():
        logger.info("beton: not made, %s: images are read with PIL", ffcv_problem())
        return None
    require_ffcv()
    config, processes = config or ConvertConfig(side=workspace.stored_side), processes or len(os.sched_getaffinity(0))
    if ask_above_seconds is not None:
        _refuse_long(workspace, samples, config, processes, ask_above_seconds)
    with exclusive_lock(workspace.run.root / ".convert.lock", f"the conversion of {workspace.title}"):
        return _convert(workspace, samples, config, processes)


def _refuse_long(workspace: Workspace, samples: Meta, config: ConvertConfig, processes: int, limit: float) -> None:
    n_images = sum(file["samples"] for file in samples.details["files"].values())
    table = read_split_samples(workspace, "train")
    seconds = conversion_seconds(workspace.images, table, n_images, config, processes)
    if seconds > limit:
        raise UsageError(
            f"converting {n_images} images of {workspace.title} on {processes} CPUs would take about "
            f"{duration(seconds)}; add --yes to start it, or run `oscbench data convert` first"
        )


def _usable_beton(workspace: Workspace, samples: Meta, config: ConvertConfig | None) -> Meta | None:
    """The finished conversion of these samples, when it is as asked for and its files have their size."""
    folder = workspace.run.beton
    if not (folder / META).exists():
        return None
    meta = Meta.read(folder, "beton")
    if meta.inputs != {"samples": samples.fingerprint} or not _files_have_their_size(folder, meta):
        return None
    stored = ConvertConfig(**meta.config)
    if config is not None:
        return meta if stored.deciding() == config.deciding() else None
    if stored.side != workspace.stored_side:
        raise UsageError(
            f"{folder} stores images of shorter side {stored.side}, training takes {workspace.stored_side}; "
            f"run `oscbench data convert --side {workspace.stored_side}`, or choose another --runs folder"
        )
    return meta


def _files_have_their_size(folder: Path, meta: Meta) -> bool:
    files = {folder / f"{split}.beton": file.bytes for split, file in converted_files(meta).items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in files.items())


def converted_files(meta: Meta) -> dict[str, ConvertedFile]:
    """The manifest of a conversion by split."""
    return {split: ConvertedFile(**file) for split, file in meta.details["files"].items()}


def _convert(workspace: Workspace, samples: Meta, config: ConvertConfig, processes: int) -> Meta:
    folder, started = workspace.run.beton, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / META).unlink(missing_ok=True)  # until it is written again, the folder counts as unfinished
    inputs = {"samples": samples.fingerprint}
    wanted = fingerprint("beton", config.deciding(), inputs)
    files: dict[str, ConvertedFile] = {}
    for split in SPLITS:
        beton = folder / f"{split}.beton"
        done = finished_file(beton, wanted)
        if done is None:
            forget_finished(beton)
            table, begun = read_split_samples(workspace, split), time.monotonic()
            with show_progress(f"converting {split} ({len(table)} images)") as progress:
                done = convert_split(workspace.images, table, beton, config, processes=processes, progress=progress)
            record_finished(beton, wanted, done)
            took = duration(time.monotonic() - begun)
            logger.info("beton: wrote %s, %d images, %.1f MB, %s", beton, done.samples, done.bytes / 1e6, took)
        else:
            logger.info("beton: keeping %s", beton)
        files[split] = done
    meta = Meta.create(
        "beton",
        config=asdict(config),
        result_config=config.deciding(),
        inputs=inputs,
        n_known=workspace.protocol.n_known,
        classes=workspace.protocol.classes,
        seconds=time.monotonic() - started,
        details={"files": {split: asdict(file) for split, file in files.items()}},
    )
    meta.write(folder)
    for split in SPLITS:
        forget_finished(folder / f"{split}.beton")
    return meta


def data_split(workspace: Workspace, split: str) -> DataSplit:
    """One split as loaders take it: images, table and, when a conversion of these samples is there, its FFCV file."""
    from oscbench.data.loading import DataSplit

    samples = Meta.read(workspace.run.samples, "samples")
    meta = _usable_beton(workspace, samples, None)
    beton = workspace.run.beton / f"{split}.beton" if meta is not None else None
    return DataSplit(workspace.images, read_split_samples(workspace, split), beton)
