"""Sample tables: which image belongs to which split and label."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oscbench.artifacts import Meta, is_complete
from oscbench.data.loading import DataSplit
from oscbench.data.samples import SampleTable, format_samples, problem_list, read_samples, write_samples
from oscbench.data.splits import TRAIN_SHARE, make_splits
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import NEGATIVE, SPLITS, UNKNOWN, IntArray
from oscbench.protocols.base import ROLES, Protocol
from oscbench.records import sha256_file
from oscbench.stages.images import Images
from oscbench.stages.runner import Session
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class SamplesConfig:
    """What decides the data.

    Attributes:
        classes: By role.
        tables: SHA-256 of each split's table; empty for embedded data, whose images stage decides.
        sizes: SHA-256 over the sizes of each split's images; likewise.
    """

    classes: dict[str, tuple[str, ...]]
    tables: dict[str, str]
    sizes: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class SplitSamples:
    """Samples of one split, in all and by kind, and the checksum of its table."""

    samples: int
    known: int
    negative: int
    unknown: int
    sha256: str

    @classmethod
    def of(cls, labels: IntArray, sha256: str = "") -> SplitSamples:
        """Counts the labels of a table."""
        return cls(
            samples=len(labels),
            known=int(np.sum(labels >= 0)),
            negative=int(np.sum(labels == NEGATIVE)),
            unknown=int(np.sum(labels == UNKNOWN)),
            sha256=sha256,
        )


@dataclass(frozen=True, kw_only=True)
class SamplesResult:
    """What the tables hold, by split."""

    splits: dict[str, SplitSamples]


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples(Stage[SamplesConfig, SamplesResult]):
    """The tables ``train.csv``, ``val.csv`` and ``test.csv``.

    The tables of a user's folder are worked out when the stage is named, because their content is what decides it.

    Attributes:
        protocol: The classes.
        tables: Of a user's folder; ``None`` for embedded data, which may not have been drawn yet.
        image_root: Folder to which the tables' paths are relative.
    """

    name = "samples"
    config_type, result_type = SamplesConfig, SamplesResult

    protocol: Protocol
    image_root: Path
    tables: Mapping[str, SampleTable] | None = None

    @classmethod
    def of(cls, workspace: Workspace) -> Samples:
        """The samples of a workspace; looks at every image of a user's folder."""
        protocol, root = workspace.protocol, workspace.images
        classes = _classes(protocol)
        if root is None:
            images = Images.of(workspace)
            config = SamplesConfig(classes=classes, tables={}, sizes={})
            return cls(
                room=workspace.room,
                config=config,
                inputs={"images": images},
                protocol=protocol,
                image_root=images.root,
            )
        tables = _published_tables(root, protocol)
        if tables is None:
            tables = make_splits(protocol, root)
            _refuse_lost_images(cls.in_use(workspace), tables)
        config = SamplesConfig(
            classes=classes,
            tables={split: _digest(format_samples(table).encode()) for split, table in tables.items()},
            sizes={split: _sizes_digest(root, table.paths) for split, table in tables.items()},
        )
        return cls(room=workspace.room, config=config, protocol=protocol, image_root=root, tables=tables)

    @classmethod
    def in_use(cls, workspace: Workspace) -> Samples | None:
        """The tables last made for these classes, whatever became of the images since; ``None`` without any."""
        folder = workspace.room.in_use(cls.name)
        if folder is None or not is_complete(folder):
            return None
        config = Meta.read(folder, cls.name, SamplesConfig, SamplesResult).config
        if config.classes != _classes(workspace.protocol):
            return None
        images = Images.of(workspace) if workspace.images is None else None
        root = workspace.images if images is None else images.root
        assert root is not None, "images are either drawn or given"
        return cls(
            room=workspace.room,
            config=config,
            inputs={} if images is None else {"images": images},
            protocol=workspace.protocol,
            image_root=root,
        )

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"tables of {self.room.data}, protocol {self.protocol.slug}"

    def make(self, work: Path, session: Session) -> SamplesResult:
        """Splits the images and writes the tables."""
        tables = self.tables or make_splits(self.protocol, self.image_root)
        for split, table in tables.items():
            write_samples(work / f"{split}.csv", table)
        return SamplesResult(
            splits={
                split: SplitSamples.of(table.labels, sha256_file(work / f"{split}.csv"))
                for split, table in tables.items()
            }
        )

    # --- for the stages behind it ------------------------------------------------------------------------------------

    def table(self, split: str) -> SampleTable:
        """The finished table of one split."""
        return read_samples(self.folder / f"{split}.csv", n_known=self.protocol.n_known)

    def data_split(self, split: str, beton: Path | None = None) -> DataSplit:
        """One split as loaders take it; paths mean the same in every process."""
        return DataSplit(self.image_root.absolute(), self.table(split), beton.absolute() if beton is not None else None)

    def n_images(self) -> int:
        """Images of all splits."""
        return sum(counts.samples for counts in self.expected_counts().values())

    def expected_counts(self) -> dict[str, SplitSamples]:
        """How many samples each split has; worked out where the tables are not there yet."""
        if self.state() == "done":
            return self.result.splits
        if self.tables is not None:
            return {split: SplitSamples.of(table.labels) for split, table in self.tables.items()}
        images = self.inputs["images"]
        assert isinstance(images, Images)
        demo, shares = images.config.demo, {"train": TRAIN_SHARE, "val": 1 - TRAIN_SHARE, "test": 1.0}
        counts = {}
        for split, share in shares.items():
            per_class = share * (demo.test_per_class if split == "test" else demo.per_class)
            known, negative, unknown = (round(per_class * len(self.config.classes[role])) for role in ROLES)
            unknown = unknown if split == "test" else 0
            counts[split] = SplitSamples(
                samples=known + negative + unknown, known=known, negative=negative, unknown=unknown, sha256=""
            )
        return counts


def _classes(protocol: Protocol) -> dict[str, tuple[str, ...]]:
    return {role: tuple(member.wnid for member in protocol.role(role)) for role in ROLES}


def _published_tables(root: Path, protocol: Protocol) -> dict[str, SampleTable] | None:
    """The tables that lie ready in the image folder (``p1_train.csv`` …), or ``None`` when there are none."""
    paths = {split: root / f"{protocol.slug}_{split}.csv" for split in SPLITS}
    missing = [path.name for path in paths.values() if not path.exists()]
    if len(missing) == len(paths):
        return None
    if missing:
        raise UsageError(f"{root} has some tables of {protocol.slug} but not {', '.join(missing)}; add or remove them")
    return {split: read_samples(path, n_known=protocol.n_known) for split, path in paths.items()}


def _refuse_lost_images(before: Samples | None, tables: Mapping[str, SampleTable]) -> None:
    """Images that were there when the tables were made may be on a disk that is not mounted: that is for the user."""
    if before is None:
        return
    now = {path for table in tables.values() for path in table.paths}
    lost = [path for split in SPLITS for path in before.table(split).paths if path not in now]
    if lost:
        raise OscbenchError(
            f"{before.image_root}: {problem_list(lost, 'missing image')}; restore them, or remove {before.folder} to "
            "split what is there"
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sizes_digest(root: Path, paths: tuple[str, ...]) -> str:
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
            f"{root}: {problem_list(missing, 'missing image')}; restore them, or remove the tables in the image folder "
            "to split what is there"
        )
    return _digest(sizes.astype("<i8").tobytes())
