from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from oscbench.artifacts import save_array
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureInfo, FeatureSet, Head
from oscbench.labels import NEGATIVE, UNKNOWN, check_finite
from oscbench.metrics import Predictions
from oscbench.origin import Origin
from oscbench.scores import ScoreInfo, ScoreSet

K = 3
CLASSES = ("a", "b", "c", "n", "u")
LABELS = np.array([0, 1, NEGATIVE, 2, UNKNOWN, 0], np.int64)
CLASS_INDEX = np.array([0, 1, 3, 2, 4, 0], np.int32)
ORIGIN = Origin(
    data="mine", protocol="p1", training="eos", seed=3, network="tiny", recipe="demo", train="ab", demo=True
)
FEATURE_INFO = FeatureInfo(split="val", n_known=K, classes=CLASSES, fingerprint="0123456789abcdef", origin=ORIGIN)
SCORE_INFO = ScoreInfo(
    split="val",
    n_known=K,
    classes=CLASSES,
    fingerprint="00ff",
    origin=ORIGIN,
    algorithm="evm",
    params={"tail_size": 3, "metric": "cosine"},
    score_kind="log",
    confidence={"known": 0.5, "negative": None, "mean": None},
)


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
        "info": FEATURE_INFO,
    }
    return FeatureSet(**(values | changes))


def make_scores(**changes) -> ScoreSet:
    scores = np.random.default_rng(1).normal(size=(6, K))
    values = {
        "prediction": scores.argmax(axis=1).astype(np.int32),
        "score": scores.max(axis=1),
        "scores": scores,
        "labels": LABELS,
        "ids": make_features().ids,
        "class_index": CLASS_INDEX,
        "classes": CLASSES,
        "n_known": K,
        "info": SCORE_INFO,
    }
    return ScoreSet(**(values | changes))


HEAD = Head(np.arange(15, dtype=np.float32).reshape(K, 5), np.ones(K, np.float32))


def assert_same(one: object, other: object) -> None:
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right)
        elif isinstance(left, Head):
            assert_same(left, right)
        else:
            assert left == right, field.name


@pytest.mark.parametrize("changes", [{}, {"pooled": None}, {"head": HEAD}])
def test_feature_sets_round_trip_memory_mapped(tmp_path: Path, changes: dict[str, object]):
    features = make_features(**changes)
    features.save(tmp_path / "val")
    assert not (tmp_path / "val" / "meta.json").exists()
    loaded = FeatureSet.load(tmp_path / "val")
    assert_same(features, loaded)
    assert isinstance(loaded.embedding, np.memmap)
    assert loaded.fingerprint == features.fingerprint == FEATURE_INFO.fingerprint


@pytest.mark.parametrize("changes", [{}, {"scores": None}])
def test_score_sets_round_trip(tmp_path: Path, changes: dict[str, object]):
    scores = make_scores(**changes)
    scores.save(tmp_path / "val")
    assert (tmp_path / "val" / "scores.npy").exists() == (scores.scores is not None)
    loaded = ScoreSet.load(tmp_path / "val")
    assert_same(scores, loaded)
    assert loaded.predictions.label is loaded.prediction
    assert loaded.predictions.score is loaded.score
    with pytest.raises(ValueError, match="without info"):
        make_scores(info=None).save(tmp_path / "x")


@pytest.mark.parametrize(("kind", "made"), [(FeatureSet, make_features), (ScoreSet, make_scores)])
def test_a_damaged_or_older_record_is_named_with_the_way_out(tmp_path: Path, kind: type, made: object):
    made().save(tmp_path / "x")
    path = tmp_path / "x" / "set.json"
    document = json.loads(path.read_text())
    for changes, message in [
        ({"schema": 7}, r"set\.json has schema 7, this version reads 2"),
        ({"origin": document["origin"] | {"datum": 1}}, r"origin: unknown key 'datum', did you mean 'data'"),
        ({"n_known": "3"}, "n_known: expected int, got '3'"),
        ({"fingerprint": None, "classes": "abc"}, r"classes: expected a list, got 'abc'; fingerprint: expected str"),
    ]:
        path.write_text(json.dumps(document | changes))
        with pytest.raises(UsageError, match=message):
            kind.load(tmp_path / "x")
    path.write_text("{")
    with pytest.raises(OscbenchError, match=r"set\.json is damaged"):
        kind.load(tmp_path / "x")
    path.rename(tmp_path / "x" / "meta.json")
    with pytest.raises(UsageError, match=r"x was written by an older version .* again, or delete meta\.json to use"):
        kind.load(tmp_path / "x")
    (tmp_path / "x" / "meta.json").unlink()
    assert kind.load(tmp_path / "x").info is None


def test_own_data_may_be_called_as_they_like():
    own = Origin(data="demographics", protocol="p1", training="eos")
    assert own.heading == "Data: demographics p1"
    assert dataclasses.replace(own, demo=True).heading.startswith("DEMO DATA, not a result about real images: demog")


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
    scores = np.array([[0, 1, 2], [5, 5, 0], [0, 7, 3], [1, 0, 0], [0, 0, 4], [9, 8, 7]], np.float64)
    save_array(tmp_path / "scores.npy", scores)
    save_array(tmp_path / "labels.npy", LABELS)
    own = ScoreSet.load(tmp_path)
    assert own.class_index.tolist() == [0, 1, 3, 2, 4, 0]
    assert own.prediction.tolist() == [2, 0, 1, 0, 2, 0]
    assert own.score.tolist() == [2, 5, 7, 1, 4, 9]
    assert own.prediction.dtype == np.int32
    (tmp_path / "scores.npy").unlink()
    with pytest.raises(UsageError, match=r"scores\.npy is missing"):
        ScoreSet.load(tmp_path)


def test_own_scores_may_be_predictions(tmp_path: Path):
    save_array(tmp_path / "prediction.npy", np.array([0, 1, 3, 2, 0, 0], np.int32))
    save_array(tmp_path / "labels.npy", LABELS)
    with pytest.raises(UsageError, match=r"[/\\]score\.npy is missing"):
        ScoreSet.load(tmp_path)
    save_array(tmp_path / "score.npy", np.arange(6.0))
    own = ScoreSet.load(tmp_path)
    assert (own.n_known, own.scores) == (4, None)  # as many as are predicted or labelled
    save_array(tmp_path / "scores.npy", np.zeros((6, 5)))
    assert ScoreSet.load(tmp_path).n_known == 5
    save_array(tmp_path / "score.npy", np.array([0, 1, np.nan, 3, 4, 5]))
    with pytest.raises(UsageError, match=r"score\.npy: row 2 holds NaN"):
        ScoreSet.load(tmp_path)


def test_a_score_set_from_a_matrix_or_predictions():
    scores = make_scores().scores
    rows = {"ids": make_features().ids, "class_index": CLASS_INDEX, "classes": CLASSES, "info": SCORE_INFO}
    assert_same(ScoreSet.from_scores(scores, LABELS, **rows), make_scores())
    found = Predictions(scores.argmax(axis=1), scores.max(axis=1))
    assert_same(ScoreSet.from_scores(found, LABELS, n_known=K, **rows), make_scores(scores=None))
    with pytest.raises(UsageError, match="row 1: nan"):
        ScoreSet.from_scores(Predictions(np.zeros(6, int), np.array([0, np.nan, 0, 0, 0, 0])), LABELS)


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
    with pytest.raises(UsageError, match=r"scores have shape \(5, 3\), labels have 6 rows and 3 known classes"):
        make_scores(scores=np.ones((5, K)))
    with pytest.raises(UsageError, match=r"score has shape \(5,\), labels have 6 rows"):
        make_scores(score=np.ones(5))
    with pytest.raises(UsageError, match="label 2 in row 3 is outside -2..1"):
        make_scores(scores=None, n_known=2)
    with pytest.raises(UsageError, match=r"prediction 3 in row 4 is outside 0\.\.2 \(1 such rows\)"):
        make_scores(prediction=bad(make_scores().prediction, 4, 3))


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
    with pytest.raises(ValueError, match="without info"):
        make_features(info=None).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    for kind in (FeatureSet, ScoreSet):
        with pytest.raises(UsageError, match="nowhere does not exist"):
            kind.load(tmp_path / "nowhere")
