"""Features: what a network says about the rows of a split, in memory and as a folder of arrays."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import META, atomic_folder, is_complete, load_array, save_array, write_text
from oscbench.errors import OscbenchError, UsageError
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
from oscbench.notes import Note
from oscbench.origin import Origin
from oscbench.records import SCHEMA, from_mapping

if TYPE_CHECKING:
    from oscbench.scores import ScoreInfo, ScoreSet

SET: Final = "set.json"
"""What a folder of arrays says about itself; a folder without it holds a user's own arrays."""

HEAD_ERROR: Final = 1e-3
"""A recovered head may miss the logits of rows it has not seen by this share of their standard deviation."""

_BLOCK_ROWS: Final = 8192

T = TypeVar("T")


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

    @property
    def nbytes(self) -> int:
        """Bytes of the network outputs, by far the most of a set."""
        return sum(array.nbytes for array in (self.embedding, self.logits, self.pooled) if array is not None)

    @property
    def penultimate(self) -> FloatArray:
        """(N, P) the layer that the papers call penultimate: pooled where it was kept, else the embedding."""
        return self.embedding if self.pooled is None else self.pooled

    def require_logits(self, who: str) -> FloatArray:
        """The logits, or a clear refusal that names who needs them."""
        if self.logits is None:
            raise UsageError(f"{who} needs logits, and these features have none; add logits.npy")
        return self.logits


@dataclass(frozen=True, eq=False)
class Head:
    """The logits as one linear map of the penultimate layer: ``penultimate @ weight.T + bias``.

    Attributes:
        weight: (C, P) float32.
        bias: (C,) float32.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise UsageError(
                f"a head has weights (C, P) and biases (C,), got shapes {self.weight.shape} and {self.bias.shape}"
            )
        check_finite(self.weight, "head_weight")
        check_finite(self.bias[:, None], "head_bias")

    @classmethod
    def compose(cls, fc_weight: FloatArray, fc_bias: FloatArray, logit_weight: FloatArray) -> Head:
        """The head of a network with two linear layers and nothing between them, multiplied in float64.

        Args:
            fc_weight: (D, P) from the penultimate layer to the embedding.
            fc_bias: (D,).
            logit_weight: (C, D) from the embedding to the logits, without bias.
        """
        last = np.asarray(logit_weight, np.float64)
        weight, bias = last @ np.asarray(fc_weight, np.float64), last @ np.asarray(fc_bias, np.float64)
        return cls(weight.astype(np.float32), bias.astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class FeatureInfo:
    """What a split's features were made from, as ``set.json`` keeps it beside the arrays.

    Attributes:
        split: ``train``, ``val`` or ``test``.
        n_known: K.
        classes: Names of all classes, known ones first in label order.
        fingerprint: Of these features.
        origin: The training behind them.
    """

    split: str
    n_known: int
    classes: tuple[str, ...]
    fingerprint: str
    origin: Origin


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSet(Inputs):
    """Inputs of one split with what is known about each row, in sample order.

    Attributes:
        labels: (N,) int64, known 0..K-1, negative -1, unknown -2.
        ids: (N,) int64 ascending, the row of each sample in its split's table.
        class_index: (N,) int32 into ``classes``.
        classes: Names (wnids) of all classes, known ones first in label order.
        head: How the logits follow from the penultimate layer; kept with the training rows only, ``None`` elsewhere.
        info: What it was made from; ``None`` for arrays made by hand.
    """

    labels: IntArray
    ids: IntArray
    class_index: IntArray
    classes: tuple[str, ...]
    head: Head | None = None
    info: FeatureInfo | None = None

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
        if self.head is not None:
            self._check_head(self.head)

    def _check_head(self, head: Head) -> None:
        n_outputs, width = head.weight.shape
        wanted = self.penultimate.shape[1]
        allowed = (self.n_known, self.n_known + 1) if self.logits is None else (self.logits.shape[1],)
        if width != wanted or n_outputs not in allowed:
            layer, rows = "embedding" if self.pooled is None else "pooled", " or ".join(map(str, allowed))
            raise UsageError(
                f"head_weight has shape {head.weight.shape}; it needs {rows} rows, one per logit, and {wanted} "
                f"columns, as {layer} has"
            )

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
        head: Head | None = None,
        info: FeatureInfo | None = None,
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
            head=head,
            info=info,
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
        return self.info.fingerprint if self.info is not None else self.content_fingerprint()

    def content_fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 over the arrays that decide a result."""
        digest = hashlib.sha256(str(self.n_known).encode())
        head = () if self.head is None else (self.head.weight, self.head.bias)
        for array in (self.embedding, self.labels, self.logits, self.pooled, *head):
            if array is not None:
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def require_head(self, who: str) -> tuple[Head, tuple[Note, ...]]:
        """The stored head, else the one that the logits reveal, with notes on how; refused where they do not.

        The head is recovered by least squares from a column of ones beside the penultimate layer to the logits. With
        too few rows any logits can be fitted, and a column that never fires in training gets weight 0 whatever its
        true weight is: the first is refused, the second noted.

        Args:
            who: Named in messages and notes.
        """
        if self.head is not None:
            return self.head, ()
        logits, features = self.require_logits(who), self.penultimate
        n, width = features.shape
        if n < 2 * (width + 1):
            raise _no_head(who, f"{n} training rows cannot tell: {width} columns need {2 * (width + 1)}")
        check_finite(features, "training features")
        blocks = [slice(first, first + _BLOCK_ROWS) for first in range(0, n, _BLOCK_ROWS)]  # the rows may lie on disk
        unseen = np.arange(n) % 10 == 9
        fires = np.any([np.any(features[block], axis=0) for block in blocks], axis=0)
        fires_seen = np.any([np.any(features[block][~unseen[block]], axis=0) for block in blocks], axis=0)
        for block in blocks:  # a column must fire in some row of the fit
            unseen[block] &= ~np.any(features[block][:, fires & ~fires_seen], axis=1)
        live = np.flatnonzero(fires)
        found = _solve_head(features, logits, np.flatnonzero(~unseen), live)
        if found is None:
            raise _no_head(who, "their columns depend on each other")
        weight, bias = found
        error = np.abs(features[unseen][:, live] @ weight.T + bias - logits[unseen]).max()
        if not error <= HEAD_ERROR * np.std(logits, dtype=np.float64):
            raise _no_head(who, f"rows left out of the fit are missed by up to {error:.3g}")
        whole = np.zeros((logits.shape[1], width), np.float32)
        whole[:, live] = weight
        notes = [Note(f"{who}: the head was recovered from the logits of {{}} training rows", (n,))]
        if dead := sorted(set(range(width)) - set(live.tolist())):
            names = ", ".join(map(str, dead[:5])) + (", …" if len(dead) > 5 else "")
            form = f"{who}: {{}} of {{}} columns are 0 in all training rows and have weight 0 in the recovered head: "
            notes.append(Note(form + names, (len(dead), width)))
        return Head(whole, bias.astype(np.float32)), tuple(notes)

    def save(self, folder: Path) -> None:
        """Writes the feature set folder whole or not at all; needs ``info``."""
        arrays = {
            "embedding": np.asarray(self.embedding, np.float32),
            "logits": None if self.logits is None else np.asarray(self.logits, np.float32),
            "pooled": None if self.pooled is None else np.asarray(self.pooled, np.float32),
            "head_weight": None if self.head is None else np.asarray(self.head.weight, np.float32),
            "head_bias": None if self.head is None else np.asarray(self.head.bias, np.float32),
        }
        save_rows(folder, self, arrays)

    @classmethod
    def load(cls, folder: Path, *, n_known: int | None = None) -> FeatureSet:
        """Reads and checks a feature set folder, memory-mapped.

        A folder without ``set.json`` holds a user's own features: it needs ``embedding.npy`` and ``labels.npy``.

        Args:
            folder: One split's folder.
            n_known: Number of known classes of own features; default: the largest label plus one.
        """
        if not folder.is_dir():
            raise UsageError(f"feature folder {folder} does not exist")
        info = read_info(FeatureInfo, folder, "extract the features again")
        labels = load_array(folder / "labels.npy", np.int64, 1)
        if info is not None:
            n_known = info.n_known
        elif n_known is None:
            n_known = int(labels.max(initial=-1)) + 1

        def optional(name: str, dtype: type[np.generic], ndim: int) -> NDArray[Any] | None:
            path = folder / f"{name}.npy"
            return load_array(path, dtype, ndim) if info is not None or path.exists() else None

        has_pooled = (folder / "pooled.npy").exists()
        loaded = cls.from_arrays(
            embedding=load_array(folder / "embedding.npy", np.float32, 2),
            labels=labels,
            n_known=n_known,
            logits=optional("logits", np.float32, 2),
            pooled=load_array(folder / "pooled.npy", np.float32, 2) if has_pooled else None,
            ids=optional("ids", np.int64, 1),
            class_index=optional("class_index", np.int32, 1),
            classes=info.classes if info is not None else None,
            head=_load_head(folder),
            info=info,
        )
        for name in ("embedding", "logits"):
            array = getattr(loaded, name)
            if array is not None:
                check_finite(array, str(folder / f"{name}.npy"))
        return loaded


def _load_head(folder: Path) -> Head | None:
    if not (folder / "head_weight.npy").exists():
        return None
    weight = load_array(folder / "head_weight.npy", np.float32, 2)
    has_bias = (folder / "head_bias.npy").exists()
    bias = load_array(folder / "head_bias.npy", np.float32, 1) if has_bias else np.zeros(len(weight), np.float32)
    try:
        return Head(weight, bias)
    except UsageError as error:
        raise UsageError(f"{folder}: {error}") from error


def read_info(cls: type[T], folder: Path, remake: str) -> T | None:
    """The record in ``folder/set.json``, read strictly; ``None`` for a user's own arrays, which have none.

    Args:
        cls: ``FeatureInfo`` or ``ScoreInfo``.
        folder: One split's folder.
        remake: What to do about a folder that an older version has written.
    """
    path = folder / SET
    if not path.exists():
        if is_complete(folder):
            raise UsageError(
                f"{folder} was written by an older version ({META} instead of {SET}): {remake}, or delete {META} to "
                "use the arrays as your own"
            )
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise OscbenchError(f"{path} is damaged ({error}); make the folder again") from error
    if not isinstance(document, dict):
        raise OscbenchError(f"{path} is damaged (no JSON object); make the folder again")
    schema = document.pop("schema", None)
    if schema != SCHEMA:
        raise UsageError(f"{path} has schema {schema!r}, this version reads {SCHEMA}; {remake}")
    return from_mapping(cls, document, str(path))


def save_rows(folder: Path, rows: FeatureSet | ScoreSet, arrays: Mapping[str, NDArray[Any] | None]) -> None:
    """Writes what both kinds of folder share beside the ``arrays`` of one kind; ``None`` is left out."""
    info: FeatureInfo | ScoreInfo | None = rows.info
    if info is None:
        raise ValueError(f"cannot write {folder} without info: a split's folder says what it was made from")
    with atomic_folder(folder) as temporary:
        for name, array in arrays.items():
            if array is not None:
                save_array(temporary / f"{name}.npy", array)
        save_array(temporary / "labels.npy", np.asarray(rows.labels, np.int64))
        save_array(temporary / "ids.npy", np.asarray(rows.ids, np.int64))
        save_array(temporary / "class_index.npy", np.asarray(rows.class_index, np.int32))
        document = {"schema": SCHEMA} | dataclasses.asdict(info)
        write_text(temporary / SET, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _no_head(who: str, reason: str) -> UsageError:
    return UsageError(
        f"{who} needs the head: logits are no linear function of these features; add head_weight.npy ({reason})"
    )


def _solve_head(
    features: FloatArray, logits: FloatArray, rows: IntArray, columns: IntArray
) -> tuple[FloatArray, FloatArray] | None:
    """Weights (C, columns) and biases (C,) of the least squares fit; ``None`` where the columns are not independent.

    From the Gram matrix in float64, with columns of unit length so that their scales do not count as dependence.
    """
    width = len(columns)
    gram, moments = np.zeros((width + 1, width + 1)), np.zeros((width + 1, logits.shape[1]))
    for first in range(0, len(rows), _BLOCK_ROWS):
        some = rows[first : first + _BLOCK_ROWS]
        block = np.ones((len(some), width + 1))
        block[:, :width] = features[some][:, columns]
        gram += block.T @ block
        moments += block.T @ logits[some].astype(np.float64)
    length = np.sqrt(np.diag(gram))
    eigenvalues, vectors = np.linalg.eigh(gram / np.outer(length, length))
    if eigenvalues[0] <= len(gram) * np.finfo(np.float64).eps * eigenvalues[-1]:
        return None
    solution = (vectors / eigenvalues @ (vectors.T @ (moments / length[:, None]))) / length[:, None]
    return solution[:width].T, solution[width]


# --- a folder with train/, val/ and test/ ------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureSplits:
    """Feature sets of one network and protocol; ``test`` is ``None`` where the folder has none."""

    train: FeatureSet
    val: FeatureSet
    test: FeatureSet | None

    def by_name(self) -> dict[str, FeatureSet]:
        """The feature sets that are there, by split."""
        return {"train": self.train, "val": self.val} | ({"test": self.test} if self.test is not None else {})

    def split(self, name: str) -> FeatureSet:
        """The feature set called ``name``; a missing one is refused."""
        found: FeatureSet | None = getattr(self, name)
        if found is None:
            raise UsageError(f"these features have no {name!r} split; add a folder {name}/ beside train/")
        return found


def load_feature_folder(folder: Path) -> FeatureSplits:
    """Reads and checks ``folder/train``, ``folder/val`` and, where it exists, ``folder/test``; memory-mapped.

    The splits must come from one network: equal widths, equal known classes and, for extracted features,
    equal classes and the same training. In own features (without ``set.json``) the training labels say how
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
    return "of one's own" if features.info is None else features.info.origin.train or "unnamed"
