"""Labels and the two kinds of array folders in which the parts of the package meet: features and scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import META, Meta, atomic_folder, load_array, save_array
from oscbench.errors import UsageError

NEGATIVE: Final = -1
"""Label of samples from classes seen in training as "none of the known"; known classes are 0..K-1."""
UNKNOWN: Final = -2
"""Label of samples from classes never seen before the test."""

SPLITS: Final = ("train", "val", "test")

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.signedinteger[Any]]
BoolArray = NDArray[np.bool_]

ProgressFn = Callable[[int, int], None]
"""Called as ``progress(done, total)`` from inside long work; whoever shows it decides how."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """What a post-processor may look at: network outputs without labels.

    Attributes:
        embedding: (N, D) output of the layer before the logits.
        logits: (N, C), C = K or K + 1; ``None`` for own features without a classifier.
        pooled: (N, P) trunk output, where it was kept.
        n_known: K, the number of known classes; the first K logits belong to them.
    """

    embedding: FloatArray
    logits: FloatArray | None
    pooled: FloatArray | None = None
    n_known: int

    def __len__(self) -> int:
        return len(self.embedding)

    def require_logits(self, who: str) -> FloatArray:
        """The logits, or a clear refusal that names who needs them."""
        if self.logits is None:
            raise UsageError(f"{who} needs logits, and these features have none; add logits.npy or use --alg evm")
        return self.logits


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSet(Inputs):
    """Inputs of one split with what is known about each row, in sample order.

    Attributes:
        labels: (N,) int64, known 0..K-1, negative -1, unknown -2.
        ids: (N,) int64 ascending, the row of each sample in its split's table.
        class_index: (N,) int32 into ``classes``.
        classes: Names (wnids) of all classes, known ones first in label order.
        meta: What it was made from; ``None`` for arrays made by hand.
    """

    labels: IntArray
    ids: IntArray
    class_index: IntArray
    classes: tuple[str, ...]
    meta: Meta | None = None

    def __post_init__(self) -> None:
        n = len(self.labels)
        for name in ("embedding", "logits", "pooled", "ids", "class_index"):
            array = getattr(self, name)
            if array is not None and len(array) != n:
                raise UsageError(f"{name} has {len(array)} rows, labels have {n}")
        if self.logits is not None and self.logits.shape[1] not in (self.n_known, self.n_known + 1):
            raise UsageError(
                f"logits have {self.logits.shape[1]} columns; {self.n_known} known classes need {self.n_known} "
                f"or {self.n_known + 1}"
            )
        _check_rows(self.labels, self.ids, self.class_index, self.classes, self.n_known)

    @classmethod
    def from_arrays(
        cls,
        *,
        embedding: FloatArray,
        labels: IntArray,
        n_known: int,
        logits: FloatArray | None = None,
        pooled: FloatArray | None = None,
        ids: IntArray | None = None,
        class_index: IntArray | None = None,
        classes: tuple[str, ...] | None = None,
        meta: Meta | None = None,
    ) -> FeatureSet:
        """A feature set from bare arrays; ids default to the row, classes to the labels.

        Without ``classes`` the known classes are named by their label, and all negatives and all unknowns are one
        class each (``negative``, ``unknown``).
        """
        if class_index is None:
            class_index, classes = classes_of_labels(labels, n_known)
        elif classes is None:
            classes = tuple(map(str, range(int(class_index.max(initial=-1)) + 1)))
        return cls(
            embedding=embedding,
            logits=logits,
            pooled=pooled,
            n_known=n_known,
            labels=labels,
            ids=np.arange(len(labels), dtype=np.int64) if ids is None else ids,
            class_index=class_index,
            classes=classes,
            meta=meta,
        )

    def inputs(self) -> Inputs:
        """The same rows without labels, for scoring."""
        return Inputs(embedding=self.embedding, logits=self.logits, pooled=self.pooled, n_known=self.n_known)

    def correct_mask(self) -> BoolArray:
        """(N,) which known rows the classifier gets right: the largest of the first K logits is the label's.

        Without logits every known row counts.
        """
        known: BoolArray = np.asarray(self.labels >= 0)
        if self.logits is None:
            return known
        mask: BoolArray = known & (np.argmax(self.logits[:, : self.n_known], axis=1) == self.labels)
        return mask

    @property
    def fingerprint(self) -> str:
        """That of the stage which made it; for own arrays, of their bytes."""
        return self.meta.fingerprint if self.meta is not None else self.content_fingerprint()

    def content_fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 over the arrays that decide a result."""
        digest = hashlib.sha256(str(self.n_known).encode())
        for array in (self.embedding, self.labels, self.logits, self.pooled):
            if array is not None:
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Writes the feature set folder whole or not at all; needs ``meta``."""
        arrays = {
            "embedding": np.asarray(self.embedding, np.float32),
            "logits": None if self.logits is None else np.asarray(self.logits, np.float32),
            "pooled": None if self.pooled is None else np.asarray(self.pooled, np.float32),
        }
        _save_folder(folder, self, arrays)

    @classmethod
    def load(cls, folder: Path, *, n_known: int | None = None) -> FeatureSet:
        """Reads and checks a feature set folder, memory-mapped.

        A folder without ``meta.json`` holds a user's own features: it needs ``embedding.npy`` and ``labels.npy``.

        Args:
            folder: One split's folder.
            n_known: Number of known classes of own features; default: the largest label plus one.
        """
        if not folder.is_dir():
            raise UsageError(f"feature folder {folder} does not exist")
        meta = Meta.read(folder, "features") if (folder / META).exists() else None
        labels = load_array(folder / "labels.npy", np.int64, 1)
        if meta is not None and meta.n_known is not None:
            n_known = meta.n_known
        elif n_known is None:
            n_known = int(labels.max(initial=-1)) + 1

        def optional(name: str, dtype: type[np.generic], ndim: int) -> NDArray[Any] | None:
            path = folder / f"{name}.npy"
            return load_array(path, dtype, ndim) if meta is not None or path.exists() else None

        has_pooled = (folder / "pooled.npy").exists()
        loaded = cls.from_arrays(
            embedding=load_array(folder / "embedding.npy", np.float32, 2),
            labels=labels,
            n_known=n_known,
            logits=optional("logits", np.float32, 2),
            pooled=load_array(folder / "pooled.npy", np.float32, 2) if has_pooled else None,
            ids=optional("ids", np.int64, 1),
            class_index=optional("class_index", np.int32, 1),
            classes=meta.classes if meta is not None else None,
            meta=meta,
        )
        for name in ("embedding", "logits"):
            array = getattr(loaded, name)
            if array is not None:
                check_finite(array, str(folder / f"{name}.npy"))
        return loaded


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
        _check_rows(self.labels, self.ids, self.class_index, self.classes, self.n_known)

    @property
    def n_known(self) -> int:
        """K, the number of known classes."""
        return int(self.scores.shape[1])

    def save(self, folder: Path) -> None:
        """Writes the score set folder whole or not at all; needs ``meta``."""
        _save_folder(folder, self, {"scores": np.asarray(self.scores, np.float64)})

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


def classes_of_labels(labels: IntArray, n_known: int) -> tuple[IntArray, tuple[str, ...]]:
    """Class index (N,) and names for rows of which only the labels are known: all negatives are one class.

    >>> classes_of_labels(np.array([1, -1, -2]), 2)
    (array([1, 2, 3], dtype=int32), ('0', '1', 'negative', 'unknown'))
    """
    index = np.where(labels >= 0, labels, n_known - 1 - labels).astype(np.int32)
    return index, (*map(str, range(n_known)), "negative", "unknown")


def check_finite(array: FloatArray, where: str) -> None:
    """Raises when a row holds NaN or infinity, naming the first such row and how many there are."""
    step = max(1, (1 << 24) // max(1, array.shape[-1]))
    bad: list[int] = []
    for start in range(0, len(array), step):
        block = array[start : start + step]
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        bad.extend((start + np.flatnonzero(~finite)).tolist())
    if bad:
        raise UsageError(f"{where}: row {bad[0]} holds NaN or infinity ({len(bad)} such rows); remove or repair them")


def _save_folder(folder: Path, rows: FeatureSet | ScoreSet, arrays: Mapping[str, NDArray[Any] | None]) -> None:
    """Writes what both kinds of folder share beside the ``arrays`` of one kind; ``None`` is left out."""
    if rows.meta is None:
        raise ValueError(f"cannot write {folder} without meta: a stage's folder says what it was made from")
    with atomic_folder(folder) as temporary:
        for name, array in arrays.items():
            if array is not None:
                save_array(temporary / f"{name}.npy", array)
        save_array(temporary / "labels.npy", np.asarray(rows.labels, np.int64))
        save_array(temporary / "ids.npy", np.asarray(rows.ids, np.int64))
        save_array(temporary / "class_index.npy", np.asarray(rows.class_index, np.int32))
        rows.meta.write(temporary)


def _check_rows(labels: IntArray, ids: IntArray, class_index: IntArray, classes: tuple[str, ...], n_known: int) -> None:
    n = len(labels)
    if len(ids) != n or len(class_index) != n:
        raise UsageError(f"labels have {n} rows, ids {len(ids)}, class_index {len(class_index)}: they must agree")
    if n == 0:
        raise UsageError("the set has no rows")
    bad = np.flatnonzero((labels < UNKNOWN) | (labels >= n_known))
    if len(bad):
        raise UsageError(f"label {labels[bad[0]]} in row {bad[0]} is outside -2..{n_known - 1} ({len(bad)} such rows)")
    disorder = np.flatnonzero(np.diff(ids) <= 0)
    if len(disorder):
        raise UsageError(f"ids must ascend, row {disorder[0] + 1} has {ids[disorder[0] + 1]} after {ids[disorder[0]]}")
    bad = np.flatnonzero((class_index < 0) | (class_index >= len(classes)))
    if len(bad):
        raise UsageError(f"class_index {class_index[bad[0]]} in row {bad[0]} is outside 0..{len(classes) - 1}")
