"""``oscbench evaluate``, ``threshold`` and ``export`` as a user runs them: output, files, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oscbench.metrics import auroc, ccr_at_fpr, closed_set_accuracy, oscr_curve, threshold_for_fpr
from oscbench.runs import load_scores

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def own_scores(tmp_path: Path) -> Path:
    """A user's own scores: two bare arrays per split."""
    rng = np.random.default_rng(0)
    for split, kinds in (("val", [-1, 0, 1, 2]), ("test", [-2, -1, 0, 1, 2])):
        labels = rng.choice(kinds, size=300)
        scores = rng.normal(size=(300, 3))
        scores[np.arange(300), np.maximum(labels, 0)] += 2.0 * (labels >= 0)
        (tmp_path / "own" / split).mkdir(parents=True)
        np.save(tmp_path / "own" / split / "scores.npy", scores)
        np.save(tmp_path / "own" / split / "labels.npy", labels)
    return tmp_path / "own"


def test_evaluate_prints_what_the_metrics_give(run: Command, own_scores: Path) -> None:
    code, out, _ = run("evaluate", "--scores", str(own_scores), "--json", "--rule", "published")
    assert code == 0
    document = json.loads(out)
    assert document["rule"] == "published"
    (own,) = document["runs"]
    assert not own["demo"]
    assert [part["split"] for part in own["splits"]] == ["val", "test"]
    test = own["splits"][1]
    labels = np.load(own_scores / "test" / "labels.npy")
    scores = np.load(own_scores / "test" / "scores.npy")
    curve = oscr_curve(labels, scores, unknown_label=-2)
    assert test["unknown"]["ccr"]["1e-1"]["value"] == ccr_at_fpr(curve, 0.1, rule="published")
    assert test["unknown"]["ccr"]["1e-3"]["value"] is None  # 60 unknowns cannot show 1e-3
    assert test["negative"]["auroc"]["value"] == auroc(labels, scores, unknown_label=-1)
    assert test["accuracy"]["value"] == closed_set_accuracy(labels, scores)
    assert "unknown" not in own["splits"][0]


def test_evaluate_names_data_rule_kind_and_numbers(run: Command) -> None:
    code, out, _ = run("evaluate", "--scores", "demo", "--bootstrap", "20", "--weights", "class")
    assert code == 0
    assert out.startswith("DEMO DATA")
    for part in (
        "score kind log",
        "network, test: γ⁺ 0.",
        "rule inclusive",
        "weights by class",
        "20 resamples",
        "| test ",
        "| 1000 ",
        "| 750 ",
    ):
        assert part in out
    assert out.count("[") >= 3 * 6  # six intervals a row


def test_networks_of_one_name_are_told_by_what_was_made_of_them(run: Command, tmp_path: Path) -> None:
    """As that of a training and that of its fine-tuning."""
    folders = {algorithm: tmp_path / algorithm for algorithm in ("mss", "mls", "openmax")}
    for algorithm, folder in folders.items():
        run("evaluate", "--features", "demo", "--alg", algorithm, "--out", str(folder))
    for split in ("val", "test"):
        path = folders["openmax"] / split / "set.json"
        document = json.loads(path.read_text())
        document["confidence"]["known"] = 0.125
        path.write_text(json.dumps(document))
    _, out, _ = run("evaluate", *(part for folder in folders.values() for part in ("--scores", str(folder))))
    named = [line.partition(":")[0] for line in out.splitlines() if line.startswith("network ")]
    assert named == [
        "network (mss, mls), val",
        "network (mss, mls), test",
        "network (openmax), val",
        "network (openmax), test",
    ]


def test_features_to_scores_to_the_same_figures(run: Command, tmp_path: Path) -> None:
    out_folder, plots = tmp_path / "scores", tmp_path / "plots"
    arguments = ["--features", "demo", "--alg", "mss", "--score-kind", "probability"]
    code, out, err = run("evaluate", *arguments, "--out", str(out_folder), "--plots", str(plots), "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["runs"][0]["score_kind"] == "probability"
    code, out, _ = run("evaluate", "--scores", str(out_folder), "--json")
    assert json.loads(out) == first
    assert sorted(path.name for path in plots.iterdir()) == sorted(
        [f"{name}.{suffix}" for name in ("scores", "confusion") for suffix in ("png", "pdf")]
        + [f"oscr_{s}_{a}.{suffix}" for s in ("val", "test") for a in ("log", "linear") for suffix in ("png", "pdf")]
        + ["confusion.csv"]
    )
    assert pd.read_csv(plots / "confusion.csv")["n"].sum() == 1000 + 500 + 750


def test_parameters_reach_the_algorithm(run: Command) -> None:
    code, out, err = run(
        "evaluate", "--features", "demo", "--alg", "openmax", "--set", "tail_size=20", "--set", "alpha=3", "--json"
    )
    assert code == 0, err
    params = json.loads(out)["runs"][0]["params"]
    assert (params["tail_size"], params["alpha"]) == (20, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--scores DIR"),
        (["--scores", "demo", "--features", "demo"], "--features"),
        (["--scores", "nowhere"], "nowhere does not exist"),
        (["--scores", "demo", "--alg", "mss"], "go with --features"),
        (["--features", "demo"], "needs --alg"),
        (["--features", "demo", "--alg", "mms"], "did you mean 'mss'"),
        (["--features", "demo", "--alg", "mss", "--set", "tail_size"], "expected NAME=VALUE"),
        (["--features", "demo", "--alg", "openmax", "--set", "alpha=2", "--set", "alpha=3"], "given twice"),
        (["--features", "demo", "--alg", "openmax", "--set", "alhpa=2"], "did you mean 'alpha'"),
        (["--scores", "demo", "--rule", "strict"], "strict"),
        (["--scores", "demo", "--fpr", "2"], "--fpr"),
    ],
)
def test_wrong_use_of_evaluate_is_one_line(run: Command, arguments: list[str], message: str) -> None:
    code, out, err = run("evaluate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("error: ") == 1


def test_damaged_scores_name_file_and_row(run: Command, own_scores: Path) -> None:
    scores = np.load(own_scores / "val" / "scores.npy")
    scores[17, 1] = np.nan
    np.save(own_scores / "val" / "scores.npy", scores)
    code, _, err = run("evaluate", "--scores", str(own_scores))
    assert code == 2
    assert "scores.npy: row 17" in err


def test_threshold_is_that_of_the_metrics(run: Command) -> None:
    code, out, _ = run("threshold", "--scores", "demo", "--fpr", "0.05", "--bootstrap", "50", "--json")
    assert code == 0
    document = json.loads(out)
    val = load_scores("demo")["val"]
    expected = threshold_for_fpr(val.labels, val.scores, 0.05, n=50)
    assert document["threshold"] == expected.value
    assert document["demo"]
    assert (document["chosen_on"], document["wanted_fpr"]) == ("val", 0.05)
    assert document["ccr"]["low"] == expected.interval.low
    assert [row["against"] for row in document["applied"]] == ["negative", "unknown"]
    code, out, _ = run("threshold", "--scores", "demo", "--fpr", "0.05", "--bootstrap", "50")
    assert repr(expected.value) in out
    assert out.startswith("DEMO DATA")


def test_threshold_that_cannot_be_kept_fails(run: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.array([[0.2], [0.9]]))
    np.save(tmp_path / "labels.npy", np.array([0, -1]))
    code, out, err = run("threshold", "--scores", str(tmp_path), "--fpr", "0.1")
    assert (code, out) == (1, "")
    assert "no threshold keeps the false positive rate at or below 0.1" in err


def test_export_round_trips_and_decides(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "new" / "samples.csv"
    code, out, _ = run("export", "--per-sample", "--scores", "demo", "--out", str(file), "--threshold", "-0.01")
    assert (code, out) == (0, "")
    table = pd.read_csv(file)
    assert list(table.columns) == ["split", "id", "label", "class", "predicted", "score", "decision"]
    test = load_scores("demo")["test"]
    rows = table[table["split"] == "test"]
    np.testing.assert_array_equal(rows["score"], test.scores.max(axis=1))  # every digit survives the file
    accepted = rows["score"].to_numpy() >= -0.01
    assert list(rows["decision"]) == [p if a else "unknown" for p, a in zip(rows["predicted"], accepted, strict=True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scores", "demo"], "say what to export"),
        (["--per-sample"], "--scores DIR"),
        (["--per-sample", "--scores", "demo", "--threshold", "nan"], "give a number"),
    ],
)
def test_wrong_use_of_export_leaves_nothing(run: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    code, out, err = run("export", "--out", str(tmp_path / "x.csv"), *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []
