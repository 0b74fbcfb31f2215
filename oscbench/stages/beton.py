"""FFCV files: the images of each split, resized and stored for fast training."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from oscbench.artifacts import Meta, Request, is_begun
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
from oscbench.errors import OscbenchError
from oscbench.labels import SPLITS
from oscbench.numerics.threads import usable_cpus
from oscbench.progress import duration, show_progress
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace

logger = logging.getLogger(__name__)

DEMO_SECONDS_PER_IMAGE = 0.001
"""Of embedded images, which are too small to be worth a trial conversion."""


@dataclass(frozen=True, kw_only=True)
class BetonResult:
    """The manifest of the conversion, by split."""

    files: dict[str, ConvertedFile]


@dataclass(frozen=True, kw_only=True, eq=False)
class Beton(Stage[ConvertConfig, BetonResult]):
    """``train.beton``, ``val.beton``, ``test.beton``; an interrupted conversion keeps the splits that were done.

    Attributes:
        samples: The tables; the same stage as among the inputs.
        processes: That convert; default: one per usable CPU.
    """

    name = "beton"
    config_type, result_type = ConvertConfig, BetonResult
    resumes = True

    samples: Samples
    processes: int | None = None

    @classmethod
    def of(cls, samples: Samples, config: ConvertConfig, processes: int | None = None) -> Beton:
        """The conversion of these samples with these settings."""
        deciding = config.normalised()
        return cls(
            room=samples.room, config=deciding, inputs={"samples": samples}, samples=samples, processes=processes
        )

    @classmethod
    def in_use(cls, samples: Samples, workspace: Workspace) -> Beton:
        """The conversion of these samples that is in use, where its size is the one training takes; else the usual.

        One made with other settings, ``--mode raw`` say, is thereby what later commands train from.
        """
        found = cls.last_made(samples)
        usual = cls.of(samples, ConvertConfig(side=workspace.stored_side))
        return found if found is not None and found.config.side == workspace.stored_side else usual

    @classmethod
    def last_made(cls, samples: Samples) -> Beton | None:
        """The conversion of these samples that was last made or used, of whatever size."""
        return cls._in_folder(samples, samples.room.in_use(cls.name))

    @classmethod
    def named(cls, samples: Samples, workspace: Workspace, wanted: str) -> Beton:
        """The conversion with this fingerprint, where it is there or is the usual one; else the one in use."""
        found = cls._in_folder(samples, samples.room.root / f"{cls.name}-{wanted[:8]}")
        usual = cls.of(samples, ConvertConfig(side=workspace.stored_side))
        fitting = [beton for beton in (found, usual) if beton is not None and beton.fingerprint == wanted]
        return fitting[0] if fitting else cls.in_use(samples, workspace)

    @classmethod
    def _in_folder(cls, samples: Samples, folder: Path | None) -> Beton | None:
        """The conversion in a folder, where it is one of these samples."""
        if folder is None or not is_begun(folder):
            return None
        found = cls.of(samples, Request.read(folder, cls.name, ConvertConfig).config)
        return found if found.folder == folder else None

    def file(self, split: str) -> Path:
        """The FFCV file of one split."""
        return self.folder / f"{split}.beton"

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{self.samples.n_images()} images, shorter side {self.config.side}, {self.config.mode}"

    def is_whole(self, meta: Meta[ConvertConfig, BetonResult]) -> bool:
        """Whether every file has the size it was written with."""
        files = {self.file(split): file.bytes for split, file in meta.result.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in files.items())

    def seconds(self, session: Session) -> float:
        """By the time that eight images take, for the splits that are left."""
        counts = self.samples.expected_counts()
        n_images = sum(counts[s].samples for s in SPLITS if finished_file(self.file(s), self.fingerprint) is None)
        processes = self.processes or usable_cpus()
        tables = self.samples.tables
        if tables is None:
            return n_images * DEMO_SECONDS_PER_IMAGE / processes
        try:
            return conversion_seconds(self.samples.image_root, tables["train"], n_images, self.config, processes)
        except OscbenchError:  # an image that does not decode is named by the conversion itself
            return n_images * 0.02 / processes

    def make(self, work: Path, session: Session) -> BetonResult:
        """Converts the splits that an earlier run has not finished."""
        require_ffcv()
        processes = self.processes or usable_cpus()
        files: dict[str, ConvertedFile] = {}
        for split in SPLITS:
            beton = work / f"{split}.beton"
            done = finished_file(beton, self.fingerprint)
            if done is None:
                forget_finished(beton)
                table, begun = self.samples.table(split), time.monotonic()
                with show_progress(f"converting {split} ({len(table)} images)") as progress:
                    done = convert_split(
                        self.samples.image_root, table, beton, self.config, processes=processes, progress=progress
                    )
                record_finished(beton, self.fingerprint, done)
                took = duration(time.monotonic() - begun)
                logger.info("beton: wrote %s, %d images, %.1f MB, %s", beton, done.samples, done.bytes / 1e6, took)
            else:
                logger.info("beton: keeping %s", beton)
            files[split] = done
        return BetonResult(files=files)
