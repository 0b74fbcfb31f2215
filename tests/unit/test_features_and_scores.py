from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from oscbench.artifacts import Meta, save_array
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE, UNKNOWN, check_finite
from oscbench.scores import ScoreSet

K = 3
CLASSES = ("a", "b", "c", "n", "u")
LABELS = np.array([0, 1, NEGATIVE, 2, UNKNOWN, 0], np.int64)
CLASS_INDEX = np.array([0, 1, 3, 2, 4, 0], np.int32)


def make_features(**changes) -> FeatureSet:
    rng = np.random.default_rng(0)
    values = {
        "embedding": rng.normal(size=(6, 4)).astype(np.float32),
        "logits": rng.normal(size=(6, K)).astype(np.float32),
        "pooled": rng.normal(size=(6, 5)).astype(np.float32),
        "labels": LABELS,
        "ids": np.array([0, 2, 3, 5, 8, 9], np.int64),
        "class_index": CLASS_INDEX,
        "classes": CLASSES,
        "n_known": K,
        "meta": Meta.create("features", config={}, inputs={}, n_known=K, n_outputs=K, classes=CLASSES),
    }
    return FeatureSet(**(values | changes))


def make_scores(**changes) -> ScoreSet:
    scores = np.random.default_rng(1).normal(size=(6, K))
    meta = Meta.create("scores", config={}, inputs={}, n_known=K, classes=CLASSES, details={"score_kind": "log"})
    features = make_features()
    values = {"scores": scores, "labels": LABELS, "ids": features.ids, "class_index": CLASS_INDEX}
    return ScoreSet(**(values | {"classes": CLASSES, "meta": meta} | changes))


def assert_same(one: object, other: object) -> None:
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right, field.name


@pytest.mark.parametrize("pooled", [True, False])
def test_feature_sets_round_trip_memory_mapped(tmp_path: Path, pooled: bool):
    features = make_features() if pooled else make_features(pooled=None)
    features.save(tmp_path / "val")
    loaded = FeatureSet.load(tmp_path / "val")
    assert_same(features, loaded)
    assert isinstance(loaded.embedding, np.memmap)
    assert loaded.fingerprint == features.fingerprint == features.meta.fingerprint


def test_score_sets_round_trip(tmp_path: Path):
    scores = make_scores()
    scores.save(tmp_path / "val")
    loaded = ScoreSet.load(tmp_path / "val")
    assert_same(scores, loaded)
    assert loaded.n_known == K
    assert loaded.meta is not None
    assert loaded.meta.details == {"score_kind": "log"}


def test_correct_rows_are_known_rows_whose_first_k_logits_agree():
    logits = np.array([[3, 0, 0, 9], [0, 0, 1, 0], [9, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], np.float32)
    features = make_features(logits=logits)  # an extra output does not count; a tie goes to the lowest class
    assert features.correct_mask().tolist() == [True, False, False, True, False, True]
    assert make_features(logits=None).correct_mask().tolist() == [True, True, False, True, False, True]


def test_inputs_hold_no_labels():
    assert {field.name for field in dataclasses.fields(make_features().inputs())} == {
        "embedding",
        "logits",
        "pooled",
        "n_known",
    }


def test_own_features_need_only_embedding_and_labels(tmp_path: Path):
    save_array(tmp_path / "embedding.npy", np.ones((6, 4), np.float32))
    save_array(tmp_path / "labels.npy", LABELS)
    own = FeatureSet.load(tmp_path)
    assert own.n_known == K
    assert own.logits is None
    assert own.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert own.class_index.tolist() == [0, 1, 3, 2, 4, 0]
    assert own.classes == ("0", "1", "2", "negative", "unknown")
    with pytest.raises(UsageError, match="MSS needs logits"):
        own.inputs().require_logits("MSS")
    save_array(tmp_path / "class_index.npy", np.array([0, 1, 7, 2, 9, 0], np.int32))
    assert FeatureSet.load(tmp_path).classes[7:] == ("7", "8", "9")
    before = own.fingerprint
    save_array(tmp_path / "embedding.npy", np.full((6, 4), 2, np.float32))
    assert FeatureSet.load(tmp_path).fingerprint != before


def test_own_scores_need_only_scores_and_labels(tmp_path: Path):
    save_array(tmp_path / "scores.npy", np.ones((6, K)))
    save_array(tmp_path / "labels.npy", LABELS)
    assert ScoreSet.load(tmp_path).class_index.tolist() == [0, 1, 3, 2, 4, 0]


def bad(array: np.ndarray, index: object, value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": bad(LABELS, 3, K)}, "label 3 in row 3 is outside -2..2"),
        ({"labels": bad(LABELS, 1, -3)}, "label -3 in row 1 is outside -2..2"),
        ({"labels": LABELS[:5]}, "embedding has 6 rows, labels have 5"),
        ({"ids": np.array([0, 1, 2, 2, 3, 4])}, "ids must ascend, row 3 has 2 after 2"),
        ({"class_index": bad(CLASS_INDEX, 2, 5)}, r"class_index 5 in row 2 is outside 0\.\.4"),
        ({"logits": np.zeros((6, 5), np.float32)}, "logits have 5 columns; 3 known classes need 3 or 4"),
    ],
)
def test_inconsistent_feature_sets_are_refused(changes: dict[str, np.ndarray], message: str):
    with pytest.raises(UsageError, match=message):
        make_features(**changes)


def test_inconsistent_score_sets_are_refused():
    with pytest.raises(UsageError, match=r"scores have shape \(5, 3\), labels have 6 rows"):
        make_scores(scores=np.ones((5, K)))
    with pytest.raises(UsageError, match="label 2 in row 3 is outside -2..1"):
        make_scores(scores=np.ones((6, 2)))


def test_nan_is_named_by_its_row(tmp_path: Path):
    make_features(embedding=bad(make_features().embedding, (4, 1), np.nan)).save(tmp_path / "x")
    with pytest.raises(UsageError, match=r"embedding\.npy: row 4 holds NaN or infinity \(1 such rows\)"):
        FeatureSet.load(tmp_path / "x")
    with pytest.raises(UsageError, match=r"here: row 1 .* \(2 such rows"):
        check_finite(np.array([[0.0], [np.inf], [np.nan]]), "here")


@pytest.mark.parametrize("name", ["embedding", "labels", "ids", "class_index", "logits"])
def test_a_missing_or_cut_file_is_named(tmp_path: Path, name: str):
    make_features().save(tmp_path / "x")
    path = tmp_path / "x" / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OscbenchError, match=rf"{name}\.npy is damaged"):
        FeatureSet.load(tmp_path / "x")
    path.unlink()
    with pytest.raises(UsageError, match=rf"{name}\.npy is missing"):
        FeatureSet.load(tmp_path / "x")


def test_saving_needs_to_say_what_it_was_made_from(tmp_path: Path):
    with pytest.raises(ValueError, match="without meta"):
        make_features(meta=None).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    for kind in (FeatureSet, ScoreSet):
        with pytest.raises(UsageError, match="nowhere does not exist"):
            kind.load(tmp_path / "nowhere")
