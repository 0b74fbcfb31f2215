"""The feature sets of a folder ``DIR/{train,val,test}``, own or extracted, checked on entry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oscbench.errors import UsageError
from oscbench.types import SPLITS, UNKNOWN, FeatureSet


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
