"""Where everything lies below the runs folder: the only place that builds output paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """Folder of one (data, protocol) below ``--runs``.

    >>> RunDir(Path("runs"), "demo-1a2b3c4d", "p1").features("eos", 0, "val").as_posix()
    'runs/demo-1a2b3c4d/p1/eos/s0/features/val'
    """

    runs: Path
    data: str
    protocol: str

    @property
    def root(self) -> Path:
        """Everything of this data and protocol."""
        return self.runs / self.data / self.protocol

    @property
    def samples(self) -> Path:
        """Folder of the sample tables ``train.csv``, ``val.csv``, ``test.csv``."""
        return self.root / "samples"

    @property
    def beton(self) -> Path:
        """Folder of the FFCV files ``train.beton``, ``val.beton``, ``test.beton``."""
        return self.root / "beton"

    def training(self, loss: str, seed: int) -> Path:
        """Folder of one training: ``last.pth``, ``best.pth``, ``epochs.csv``."""
        return self.root / loss / f"s{seed}" / "train"

    def features(self, loss: str, seed: int, split: str | None = None) -> Path:
        """Folder of the feature sets, or of one split."""
        folder = self.root / loss / f"s{seed}" / "features"
        return folder / split if split else folder

    def tuning(self, loss: str, seed: int, algorithm: str, run: str) -> Path:
        """Folder of one search; ``run`` is the first 8 hex digits of its fingerprint."""
        return self.root / loss / f"s{seed}" / algorithm / f"tune-{run[:8]}"

    def scores(self, loss: str, seed: int, algorithm: str, run: str, split: str | None = None) -> Path:
        """Folder of the score sets of one setting, or of one split."""
        folder = self.root / loss / f"s{seed}" / algorithm / f"scores-{run[:8]}"
        return folder / split if split else folder
