"""The published split of an ILSVRC-2012 folder into training, validation and test tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from oscbench.data.samples import SampleTable, problem_list
from oscbench.errors import UsageError
from oscbench.labels import SPLITS
from oscbench.protocols.base import Protocol, ProtocolClass

SPLIT_SEED = 42
"""Random state of the published tables."""
TRAIN_SHARE = 0.8
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


def make_splits(protocol: Protocol, root: Path, *, seed: int = SPLIT_SEED) -> dict[str, SampleTable]:
    """Sample tables ``train``, ``val`` and ``test`` of a folder with ``train/<wnid>/`` and ``val/<wnid>/``.

    As published: the images of known then negative classes, each by wnid and file name, go through scikit-learn's
    ``train_test_split(train_size=0.8, stratify=classes)`` and stay in its order. The folder ``val`` is the test: known,
    negative, unknown classes in this order.
    """
    from sklearn.model_selection import train_test_split

    training_classes = (*protocol.known, *protocol.negative)
    folders = {"train": training_classes, "val": (*training_classes, *protocol.unknown)}
    images = {part: list_images(root, part, members) for part, members in folders.items()}
    problems = [p for part, members in folders.items() for p in _short_classes(images[part], part, members)]
    if problems:
        raise UsageError(
            f"{root}: too few images in {problem_list(problems, 'class folder')}; 'protocol verify' lists all"
        )

    pairs = [(path, member.wnid) for member in training_classes for path in images["train"][member.wnid]]
    paths, classes = zip(*pairs, strict=True)
    try:
        parts = train_test_split(paths, train_size=TRAIN_SHARE, stratify=classes, random_state=seed)
    except ValueError as error:  # fewer validation rows than classes
        raise UsageError(
            f"{root}: {len(paths)} images of {len(training_classes)} classes are too few for an 80:20 split; "
            "give each class at least 5"
        ) from error
    test = [path for member in folders["val"] for path in images["val"][member.wnid]]
    return {split: _table(protocol, rows) for split, rows in zip(SPLITS, (*parts, test), strict=True)}


def list_images(root: Path, part: str, members: Iterable[ProtocolClass]) -> dict[str, list[str]]:
    """Image paths relative to ``root`` by wnid, sorted by name; a missing class folder has none."""
    if not root.is_dir():
        raise UsageError(f"data folder {root} does not exist; make demo data with 'oscbench data demo --out {root}'")
    if not (root / part).is_dir():
        raise UsageError(f"{root} has no folder {part}/; expected train/<wnid>/*.JPEG and val/<wnid>/*.JPEG")
    return {member.wnid: _images_in(root / part / member.wnid, part) for member in members}


def _images_in(folder: Path, part: str) -> list[str]:
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(IMAGE_SUFFIXES))
    return [f"{part}/{folder.name}/{name}" for name in names if not name.startswith(".")]


def _short_classes(images: dict[str, list[str]], part: str, members: Iterable[ProtocolClass]) -> list[str]:
    """Classes without the images a split needs: two in ``train`` (one for each side), one in ``val``."""
    least = 2 if part == "train" else 1
    return [
        f"{part}/{member.wnid} ({member.name}) has {len(images[member.wnid])} images, needs {least}"
        for member in members
        if len(images[member.wnid]) < least
    ]


def _table(protocol: Protocol, paths: Iterable[str]) -> SampleTable:
    rows = tuple(paths)
    labels = np.array([protocol.label_of(path.split("/")[1]) for path in rows], np.int64)
    return SampleTable(rows, labels)
