"""Features: what a network says about the rows of a split, in memory and as a folder of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import META, Meta, atomic_folder, load_array, save_array
from oscbench.errors import UsageError
from oscbench.labels import (
    SPLITS,
    UNKNOWN,
    BoolArray,
    FloatArray,
    IntArray,
    check_finite,
    check_rows,
    classes_of_labels,
)

if TYPE_CHECKING:
    from oscbench.scores import ScoreSet


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
        check_rows(self.labels, self.ids, self.class_index, self.classes, self.n_known)

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
        save_rows(folder, self, arrays)

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


def save_rows(folder: Path, rows: FeatureSet | ScoreSet, arrays: Mapping[str, NDArray[Any] | None]) -> None:
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


# --- a folder with train/, val/ and test/ ------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureSplits:
    """Feature sets of one network and protocol; ``test`` is ``None`` where the folder has none."""

    train: FeatureSet
    val: FeatureSet
    test: FeatureSet | None

    def split(self, name: str) -> FeatureSet:
        """The feature set called ``name``; a missing one is refused."""
        found: FeatureSet | None = getattr(self, name)
        if found is None:
            raise UsageError(f"these features have no {name!r} split; add a folder {name}/ beside train/")
        return found


def load_feature_folder(folder: Path) -> FeatureSplits:
    """Reads and checks ``folder/train``, ``folder/val`` and, where it exists, ``folder/test``; memory-mapped.

    The splits must come from one network: equal widths, equal known classes and, for extracted features,
    equal classes and the same training. In own features (without ``meta.json``) the training labels say how
    many known classes there are. Training and validation rows must not be unknowns (-2): those exist for the
    test alone.
    """
    if not folder.is_dir():
        raise UsageError(f"feature folder {folder} does not exist; give a folder with train/, val/ and test/")
    train = _load(folder, "train", None)
    val = _load(folder, "val", train.n_known)
    test = _load(folder, "test", train.n_known) if (folder / "test").is_dir() else None
    for name, other in (("val", val), ("test", test)):
        if other is not None:
            _check_agreement(folder, train, other, name)
    for name, features in (("train", train), ("val", val)):
        _refuse_unknowns(folder / name, features)
    if not np.any(train.labels >= 0):
        raise UsageError(f"{folder / 'train'} has no row of a known class (label 0 or above)")
    return FeatureSplits(train, val, test)


def _load(folder: Path, split: str, n_known: int | None) -> FeatureSet:
    try:
        return FeatureSet.load(folder / split, n_known=n_known)
    except UsageError as error:
        where = str(folder / split)
        raise (error if where in str(error) else UsageError(f"{where}: {error}")) from error


def _check_agreement(folder: Path, train: FeatureSet, other: FeatureSet, name: str) -> None:
    for what in ("embedding", "logits", "pooled"):
        first, second = _width(train, what), _width(other, what)
        if first != second:
            raise UsageError(
                f"{folder}: {what} has {_columns(first)} in train and {_columns(second)} in {name}; "
                f"all of {', '.join(SPLITS)} must come from the same network"
            )
    if train.n_known != other.n_known:
        raise UsageError(f"{folder}: train has {train.n_known} known classes, {name} has {other.n_known}")
    if train.classes != other.classes:
        raise UsageError(f"{folder}: train and {name} name different classes; extract both from one protocol")
    first_network, second_network = _network(train), _network(other)
    if first_network != second_network:
        raise UsageError(
            f"{folder}: train comes from network {first_network}, {name} from {second_network}; extract again"
        )


def _refuse_unknowns(folder: Path, features: FeatureSet) -> None:
    rows = np.flatnonzero(features.labels == UNKNOWN)
    if len(rows):
        raise UsageError(
            f"{folder}: row {rows[0]} has label {UNKNOWN} (unknown; {len(rows)} such rows), which only the "
            f"test split may hold; use -1 for negatives"
        )


def _width(features: FeatureSet, what: str) -> int | None:
    array = getattr(features, what)
    return None if array is None else int(array.shape[1])


def _columns(width: int | None) -> str:
    return "no array" if width is None else f"{width} columns"


def _network(features: FeatureSet) -> str:
    """Fingerprint of the training behind extracted features; own features have none."""
    return "of one's own" if features.meta is None else features.meta.inputs.get("train", "unnamed")
