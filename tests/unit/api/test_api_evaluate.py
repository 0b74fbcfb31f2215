"""``evaluate`` and ``threshold`` as functions: the numbers are those of the metrics and of the commands."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oscbench import evaluate, load_scores, open_session, threshold, tune
from oscbench.api.evaluation import Evaluation
from oscbench.errors import UsageError
from oscbench.metrics import FPRS, auroc, ccr_at_fpr, closed_set_accuracy, operating_point, oscr_curve

FEW = {"tail_size": [5, 20], "distance_multiplier": [0.5], "cover_threshold": [1.0]}

Printed = Callable[..., Any]


def test_the_table_holds_what_the_metrics_give() -> None:
    found = evaluate("demo", rule="published")
    assert isinstance(found, Evaluation)
    scores = load_scores("demo")
    kinds = [("val", "negative", -1), ("test", "negative", -1), ("test", "unknown", -2)]
    assert found.table[["split", "against"]].values.tolist() == [[split, kind] for split, kind, _ in kinds]
    for (_, row), (split, _, label) in zip(found.table.iterrows(), kinds, strict=True):
        labels, predictions = scores[split].labels, scores[split].predictions
        curve = oscr_curve(labels, predictions, unknown_label=label)
        expected = [ccr_at_fpr(curve, fpr, rule="published") for fpr in FPRS]
        np.testing.assert_array_equal(row[["CCR@1e-3", "CCR@1e-2", "CCR@1e-1", "CCR@1"]].astype(float), expected)
        assert row["sum"] == sum(0 if math.isnan(rate) else rate for rate in expected)
        assert row["AUROC"] == auroc(labels, predictions, unknown_label=label)
        assert row["accuracy"] == closed_set_accuracy(labels, predictions)
        assert (row["known"], row["others"]) == (np.sum(labels >= 0), np.sum(labels == label))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"scores": ["demo", "demo"], "bootstrap": 10, "seed": 3}, ("--scores", "demo", "--scores", "demo")),
        ({"features": "demo", "alg": ["mss", "gen"]}, ("--features", "demo", "--alg", "mss,gen")),
        (
            {"features": "demo", "alg": "openmax", "settings": {"alpha": 3}, "weights": "class"},
            ("--features", "demo", "--alg", "openmax", "--set", "alpha=3", "--weights", "class"),
        ),
    ],
)
def test_the_command_says_the_same(
    printed: Printed, as_printed: Printed, arguments: dict[str, Any], options: tuple[str, ...]
) -> None:
    more = ("--bootstrap", 10, "--seed", 3) if "bootstrap" in arguments else ()
    found, document = evaluate(**arguments), printed("evaluate", *options, *more)
    assert as_printed(found.document()) == document
    table = found.table
    assert list(table["algorithm"].unique()) == list(dict.fromkeys(run["algorithm"] for run in document["runs"]))
    splits = [part for run in document["runs"] for part in run["splits"]]
    parts = [part[kind] for part in splits for kind in ("negative", "unknown") if kind in part]
    assert table["sum"].tolist() == [part["sum"]["value"] for part in parts]
    assert table["AUROC"].tolist() == [part["auroc"]["value"] for part in parts]
    assert ("sum_low" in table) == ("bootstrap" in arguments)
    if "sum_low" in table:
        assert table["sum_low"].tolist() == [part["sum"]["low"] for part in parts]
        assert (table["AUROC_low"] <= table["AUROC"]).all()
        assert (table["AUROC"] <= table["AUROC_high"]).all()


def test_a_group_is_ranked_and_says_whom_it_left_out(printed: Printed, as_printed: Printed, features: Path) -> None:
    for path in features.glob("*/logits.npy"):
        path.unlink()
    found = evaluate(features=features, alg="posthoc")
    document = printed("evaluate", "--features", features, "--alg", "posthoc")
    assert found.ranked
    assert as_printed(found.document()) == document
    assert as_printed(found.left_out) == document["left_out"] != []
    ranking = found.ranking
    assert ranking["algorithm"].tolist() == [row["algorithm"] for row in document["ranking"]]
    assert ranking["rank"].tolist() == list(range(1, len(ranking) + 1))
    for title, name in (("test unknown", "unknown"), ("val negative", "validation"), ("accuracy", "accuracy")):
        assert ranking[title].tolist() == [row[name]["value"] for row in document["ranking"]]
    assert ranking["test unknown"].is_monotonic_decreasing
    assert {"ranking", "oscr_val_log", "oscr_test_log", "oscr_test_linear"} <= set(found.figures())


def test_figures_show_the_curves_and_plots_are_the_command_s_files(tmp_path: Path) -> None:
    found = evaluate(features="demo", alg=["mss", "mls"])
    figures = found.figures()
    assert set(figures) == {f"oscr_{split}_{scale}" for split in ("val", "test") for scale in ("log", "linear")}
    axes = figures["oscr_test_linear"].axes
    assert [axis.get_title() for axis in axes] == ["test: 1000 known, 500 negative", "test: 1000 known, 750 unknown"]
    for axis, kind in zip(axes, ("negative", "unknown"), strict=True):
        rows = found.table[(found.table["split"] == "test") & (found.table["against"] == kind)]
        assert [max(line.get_ydata()) for line in axis.lines] == pytest.approx(rows["CCR@1"].tolist())
    written = found.plots(tmp_path / "plots", fpr=0.05)
    assert sorted(written) == sorted((tmp_path / "plots").iterdir())
    assert tmp_path / "plots" / "oscr_test_log.png" in written


def test_scores_that_are_kept_can_be_evaluated_again(tmp_path: Path) -> None:
    first = evaluate(features="demo", alg=["mss", "mls"], out=tmp_path / "scores")
    assert [*first.folders] == [tmp_path / "scores" / "mss", tmp_path / "scores" / "mls"]
    again = evaluate(first.folders)
    pd.testing.assert_frame_equal(first.table, again.table)
    assert not evaluate("demo").folders


def test_one_session_serves_a_search_its_evaluation_and_a_threshold(
    printed: Printed, as_printed: Printed, features: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with open_session(local=True) as session:
        executor = session.runner
        found = tune("evm", features=features, settings=FEW, runs=runs, session=session)
        best = found.folders[0] / "best.yaml"
        evaluated = evaluate(features=features, alg="evm", params=best, runs=runs, session=session)
        assert session.runner is executor  # nobody has ended it
    (validation,) = [
        row for _, row in evaluated.table.iterrows() if (row["split"], row["against"]) == ("val", "negative")
    ]
    assert validation["sum"] == pytest.approx(found.best["sum"].item(), abs=1e-9)
    command = ("evaluate", "--features", features, "--alg", "evm", "--params", best, "--runs", runs, "--local")
    assert printed(*command) == as_printed(evaluated.document())
    (folder,) = evaluated.folders
    chosen = threshold(folder, 0.1, bootstrap=20)
    assert printed("threshold", "--scores", folder, "--fpr", 0.1, "--bootstrap", 20) == as_printed(chosen.document())
    with pytest.raises(UsageError, match="a session says itself where stages run; leave out address and local"):
        evaluate(features=features, alg="evm", params=best, runs=runs, session=session, local=True)


def test_a_dry_run_plans_and_makes_nothing(tmp_path: Path, printed: Printed) -> None:
    how: Any = {"protocol": 2, "alg": ["mss", "openmax"], "loader": "pil", "runs": tmp_path / "runs", "local": True}
    found = evaluate(**how, seeds=[0, 1], dry_run=True)
    options = ("-p", 2, "--alg", "mss,openmax", "--loader", "pil", "--runs", tmp_path / "runs", "--local", "--dry-run")
    steps = printed("evaluate", *options, "--seeds", "0,1")
    assert [(step.stage.name, step.stage.fingerprint) for step in found.plan] == [
        (step["stage"], step["fingerprint"]) for step in steps
    ]
    assert not (tmp_path / "runs").exists()


def test_a_threshold_does_on_each_split_what_its_table_says() -> None:
    chosen = threshold("demo", 0.05, bootstrap=10)
    scores = load_scores("demo")
    labels = {"negative": -1, "unknown": -2}
    assert [*zip(chosen.table["split"], chosen.table["against"], strict=True)] == [
        ("val", "negative"),
        ("test", "negative"),
        ("test", "unknown"),
    ]
    for row in chosen.table.to_dict("records"):
        rows, label = scores[row["split"]], labels[row["against"]]
        others, known = rows.labels == label, rows.labels >= 0
        accepted = rows.score >= chosen.value
        assert row["let in"] == np.sum(accepted & others)
        assert row["FPR"] == np.mean(accepted[others])
        assert row["CCR"] == np.mean((accepted & (rows.prediction == rows.labels))[known])
        point = operating_point(rows.labels, rows.predictions, chosen.value, unknown_label=label)
        assert row["CCR"] == point.ccr
    assert chosen.table["FPR"][0] <= 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate(), "give either --scores DIR"),
        (lambda: evaluate("demo", features="demo", alg="mss"), "give either --scores DIR"),
        (lambda: evaluate([]), "give either --scores DIR"),
        (lambda: evaluate("demo", alg="mss"), "go with --features, not with --scores"),
        (lambda: evaluate("demo", dry_run=True), "--dry-run shows the stages"),
        (lambda: evaluate("demo", seeds=[1]), "--seeds names trainings"),
        (lambda: evaluate("demo", bootstrap=-1), "bootstrap is at least 0"),
        (lambda: evaluate(features="demo", alg="mms"), "did you mean 'mss'"),
        (lambda: evaluate(features="demo", alg="openmax", settings=["alpha"]), "expected NAME=VALUE"),
        (lambda: evaluate(protocol=1), "go with --alg NAME"),
        (lambda: evaluate(protocol=1, alg="mss", runs="s3://bucket/runs", dry_run=True), "is an address"),
        (lambda: threshold("demo", 1.5), "fpr lies in"),
        (lambda: threshold("nowhere", 0.1), "nowhere does not exist"),
    ],
)
def test_wrong_use(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()
