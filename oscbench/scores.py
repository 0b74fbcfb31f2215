"""Scores: what a post-processor says about the rows of a split, in memory and as a folder of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import META, Meta, load_array
from oscbench.errors import UsageError
from oscbench.features import save_rows
from oscbench.labels import IntArray, check_finite, check_rows, classes_of_labels


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreSet:
    """Scores of one split, (N, K) float64, higher = more known; argmax is the class, max goes to the threshold."""

    scores: NDArray[np.float64]
    labels: IntArray
    ids: IntArray
    class_index: IntArray
    classes: tuple[str, ...]
    meta: Meta | None = None

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or len(self.scores) != len(self.labels):
            raise UsageError(f"scores have shape {self.scores.shape}, labels have {len(self.labels)} rows")
        check_rows(self.labels, self.ids, self.class_index, self.classes, self.n_known)

    @property
    def n_known(self) -> int:
        """K, the number of known classes."""
        return int(self.scores.shape[1])

    def save(self, folder: Path) -> None:
        """Writes the score set folder whole or not at all; needs ``meta``."""
        save_rows(folder, self, {"scores": np.asarray(self.scores, np.float64)})

    @classmethod
    def load(cls, folder: Path) -> ScoreSet:
        """Reads and checks a score set folder, memory-mapped.

        Own scores (no ``meta.json``) need ``scores.npy`` and ``labels.npy``; ids and classes default as for features.
        """
        if not folder.is_dir():
            raise UsageError(f"score folder {folder} does not exist")
        meta = Meta.read(folder, "scores") if (folder / META).exists() else None
        scores = load_array(folder / "scores.npy", np.float64, 2)
        labels = load_array(folder / "labels.npy", np.int64, 1)
        check_finite(scores, str(folder / "scores.npy"))
        n_known = scores.shape[1]
        if meta is not None:
            ids = load_array(folder / "ids.npy", np.int64, 1)
            class_index = load_array(folder / "class_index.npy", np.int32, 1)
            classes = meta.classes
        else:
            has_ids = (folder / "ids.npy").exists()
            ids = load_array(folder / "ids.npy", np.int64, 1) if has_ids else np.arange(len(labels), dtype=np.int64)
            class_index, classes = classes_of_labels(labels, n_known)
        return cls(scores=scores, labels=labels, ids=ids, class_index=class_index, classes=classes, meta=meta)
