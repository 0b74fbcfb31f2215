"""Own and extracted feature folders: what is accepted and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oscbench.errors import UsageError
from oscbench.features import FeatureInfo, FeatureSet, load_feature_folder
from oscbench.origin import Origin


def write_own(folder: Path, labels: list[int], *, width: int = 4, logits: int | None = 3) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(len(labels))
    np.save(folder / "labels.npy", np.array(labels, dtype=np.int64))
    np.save(folder / "embedding.npy", rng.normal(size=(len(labels), width)).astype(np.float32))
    if logits is not None:
        np.save(folder / "logits.npy", rng.normal(size=(len(labels), logits)).astype(np.float32))


def write_extracted(folder: Path, *, network: str = "n1", classes: tuple[str, ...] = ("a", "b", "c")) -> None:
    origin = Origin(data="d", protocol="p1", training="eos", train=network)
    info = FeatureInfo(split=folder.name, n_known=2, classes=classes, fingerprint="0", origin=origin)
    rows = np.arange(3)
    FeatureSet(
        embedding=np.ones((3, 2), np.float32),
        logits=np.ones((3, 2), np.float32),
        pooled=np.ones((3, 5), np.float32),
        n_known=2,
        labels=np.array([0, 1, -1]),
        ids=rows,
        class_index=rows.astype(np.int32),
        classes=classes,
        info=info,
    ).save(folder)


def test_own_features_are_read_with_the_training_set_deciding_the_classes(tmp_path: Path) -> None:
    write_own(tmp_path / "train", [0, 1, 2, -1])
    write_own(tmp_path / "val", [1, 0, -1])  # class 2 does not occur here
    splits = load_feature_folder(tmp_path)
    assert (splits.train.n_known, splits.val.n_known, splits.test) == (3, 3, None)
    np.testing.assert_array_equal(splits.split("val").labels, [1, 0, -1])
    with pytest.raises(UsageError, match="no 'test' split"):
        splits.split("test")


def test_extracted_features_of_one_network_are_read_whole(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_extracted(tmp_path / split)
    splits = load_feature_folder(tmp_path)
    assert splits.split("test").classes == ("a", "b", "c")
    assert isinstance(splits.train.embedding, np.memmap)


@pytest.mark.parametrize(
    ("val", "words"),
    [
        ({"labels": [0, 1], "width": 5}, ["embedding", "4 columns", "5 columns"]),
        ({"labels": [0, 1], "logits": None}, ["logits", "3 columns", "no array"]),
        ({"labels": [0, 1], "logits": 4}, ["logits", "3 columns", "4 columns"]),
        ({"labels": [0, 7]}, ["val", "label 7", "row 1"]),
        ({"labels": [0, -2]}, ["val", "row 1", "-2", "test"]),
    ],
)
def test_disagreeing_own_splits_are_refused_with_both_values(tmp_path: Path, val: dict, words: list[str]) -> None:
    write_own(tmp_path / "train", [0, 1, 2, -1])
    write_own(tmp_path / "val", **val)
    with pytest.raises(UsageError) as refusal:
        load_feature_folder(tmp_path)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("other", "words"),
    [({"network": "n2"}, ["n1", "n2"]), ({"classes": ("a", "b", "d")}, ["different classes"])],
)
def test_splits_of_different_networks_are_refused(tmp_path: Path, other: dict, words: list[str]) -> None:
    write_extracted(tmp_path / "train")
    write_extracted(tmp_path / "val", **other)
    with pytest.raises(UsageError) as refusal:
        load_feature_folder(tmp_path)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_missing_folders_and_missing_knowns_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_feature_folder(tmp_path / "nowhere")
    write_own(tmp_path / "train", [0, 1, 2])
    with pytest.raises(UsageError, match="val does not exist"):
        load_feature_folder(tmp_path)
    write_own(tmp_path / "b" / "train", [-1, -1], logits=None)
    write_own(tmp_path / "b" / "val", [-1, -1], logits=None)
    with pytest.raises(UsageError, match="no row of a known class"):
        load_feature_folder(tmp_path / "b")
