"""Score sets from folders and features, and what tables say about their origin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oscbench.data.synthetic import N_KNOWN, N_NEGATIVE, N_UNKNOWN, demo_features
from oscbench.errors import UsageError
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.runs import (
    load_features,
    load_scores,
    runs_from_features,
    runs_from_scores,
    save_scores,
    title_of,
)
from oscbench.scoring import fit_and_score


def write_own(folder: Path, n_known: int = 3) -> None:
    folder.mkdir(parents=True)
    np.save(folder / "scores.npy", np.eye(n_known))
    np.save(folder / "labels.npy", np.arange(n_known))


def test_demo_features_are_a_whole_task() -> None:
    features = demo_features()
    assert list(features) == ["train", "val", "test"]
    for split, part in features.items():
        kinds = {NEGATIVE: N_NEGATIVE} | ({UNKNOWN: N_UNKNOWN} if split == "test" else {})
        assert {label: len(set(part.class_index[part.labels == label])) for label in kinds} == kinds
        assert set(part.labels[part.labels >= 0]) == set(range(N_KNOWN))
        assert np.mean(part.correct_mask()[part.labels >= 0]) > 0.8
    assert not np.any(features["val"].labels == UNKNOWN)
    again = demo_features()["test"]
    np.testing.assert_array_equal(again.embedding, features["test"].embedding)
    assert not np.array_equal(demo_features(seed=1)["test"].labels, again.labels)


def test_scores_written_and_read_again_are_the_same(tmp_path: Path) -> None:
    runs = runs_from_features("demo", ["mss"], {})
    assert list(runs[0].splits) == ["val", "test"]  # training rows are fitted, not scored
    save_scores(runs, tmp_path)
    (again,) = runs_from_scores([str(tmp_path)])
    assert list(again.splits) == ["val", "test"]
    assert again.title == runs[0].title
    assert again.title.origin.demo
    assert again.title.score_kind == "log"
    assert {"network", "recipe", "train", "demo", "data", "params"} <= set(again.title.document())
    for split, scores in again.splits.items():
        np.testing.assert_array_equal(scores.scores, runs[0].splits[split].scores)
        assert scores.info is not None
        assert scores.info.split == split
    (one,) = runs_from_scores([str(tmp_path / "test")])
    assert list(one.splits) == ["test"]


def test_several_runs_go_to_folders_of_their_own(tmp_path: Path) -> None:
    save_scores(runs_from_features("demo", ["mss", "mls"], {}), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mls", "mss"]
    assert load_scores(str(tmp_path / "mls"))["test"].info.score_kind == "logit"


def test_fingerprints_follow_algorithm_and_kind_and_nothing_else() -> None:
    features = demo_features()

    def fingerprint(algorithm: str, kind: str | None = None) -> str:
        return fit_and_score(features, algorithm, {}, score_kind=kind)["val"].info.fingerprint

    assert fingerprint("mss") == fingerprint("mss", "log")
    assert len({fingerprint("mss"), fingerprint("mss", "probability"), fingerprint("mls")}) == 3


def test_own_scores_are_named_by_their_folder(tmp_path: Path) -> None:
    write_own(tmp_path / "mine")
    scores = load_scores(str(tmp_path / "mine"))
    assert list(scores) == ["scores"]
    title = title_of(scores["scores"], str(tmp_path / "mine"))
    assert title.label == "mine"
    assert title.origin.heading == f"Data: own scores in {tmp_path / 'mine'}"


def test_wrong_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere does not exist"):
        load_scores(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="neither scores.npy nor"):
        load_scores(str(tmp_path))
    write_own(tmp_path / "val")
    write_own(tmp_path / "test", n_known=4)
    with pytest.raises(UsageError, match="val has 3 known classes, test has 4"):
        load_scores(str(tmp_path))
    with pytest.raises(UsageError, match="nowhere"):
        load_features(str(tmp_path / "nowhere"))


def test_wrong_algorithms_and_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'mss'"):
        runs_from_features("demo", ["mmss"], {})
    with pytest.raises(UsageError, match="unknown key 'tail'"):
        runs_from_features("demo", ["mss"], {"tail": 3})
    with pytest.raises(UsageError, match="give one --alg"):
        runs_from_features("demo", ["mss", "mls"], {"tail_size": 3})
    with pytest.raises(UsageError, match="'logit'"):
        runs_from_features("demo", ["mss"], {}, score_kind="logit")
