"""Tables: what they hold, and how numbers are written."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from oscbench.labels import UNKNOWN
from oscbench.metrics import Interval, decide, open_set_confusion
from oscbench.report.evaluation import Options, choose_threshold, evaluate_split
from oscbench.report.tables import (
    confusion_table,
    evaluation_table,
    interval_text,
    markdown,
    plain_number,
    rate_name,
    sample_table,
    split_document,
    threshold_document,
    threshold_table,
)
from oscbench.runs import load_scores, title_of

DEMO = load_scores("demo")


def test_numbers_as_people_and_programs_read_them() -> None:
    assert [rate_name(f) for f in (1e-3, 1e-2, 1e-1, 1.0, 0.05)] == ["1e-3", "1e-2", "1e-1", "1", "5e-2"]
    assert interval_text(Interval(0.5, math.nan, 0.75, 0.95, 0.3)) == "0.5000 [-, 0.7500]"
    assert interval_text(Interval(math.nan, math.nan, math.nan, math.nan, math.nan)) == "-"
    assert [plain_number(v) for v in (0.25, math.nan, -math.inf)] == [0.25, None, "-inf"]


def test_markdown_is_aligned_and_escaped() -> None:
    text = markdown(pd.DataFrame({"name": ["a|b", "c"], "rate": [0.5, math.nan]}))
    assert text.splitlines() == ["| name | rate   |", "|------|--------|", "| a\\|b | 0.5000 |", "| c    | -      |"]


def test_evaluation_table_has_a_row_per_run_split_and_kind() -> None:
    figures = [evaluate_split(split, scores, Options()) for split, scores in DEMO.items()]
    title = title_of(DEMO["val"], "demo")
    table = evaluation_table([(title, figures), (dataclasses.replace(title, algorithm="two"), figures)])
    assert table["algorithm"].tolist() == ["mss"] * 3 + ["two"] * 3
    assert "network" not in table  # the synthetic data have none
    origin = dataclasses.replace(title.origin, network="tiny", recipe="demo", train="00ff", training="eos")
    named = evaluation_table([(dataclasses.replace(title, origin=origin), figures)])
    assert named.iloc[0, :4].tolist() == ["mss, eos", "tiny", "demo", "00ff"]
    assert list(table["against"][:3]) == ["negative", "negative", "unknown"]
    first = figures[0].against[0]
    assert table.loc[0, "CCR@1e-2"] == f"{first.ccr[1].estimate:.4f}"
    assert table.loc[0, "CCR@1"] == table.loc[0, "accuracy"]
    assert table.loc[0, "others"] == 400


def test_documents_hold_no_nan() -> None:
    figures = evaluate_split("test", DEMO["test"], Options(resamples=5))
    document = json.loads(json.dumps(split_document(figures), allow_nan=False))
    assert document["unknown"]["ccr"]["1e-1"]["value"] == figures.against[1].ccr[2].estimate
    assert set(document["accuracy"]) == {"value", "low", "high", "level", "unreachable"}
    report = choose_threshold(DEMO, 1.0, resamples=5)
    document = json.loads(json.dumps(threshold_document(report), allow_nan=False))
    assert document["threshold"] == "-inf"
    assert [row["let_in"] for row in document["applied"]] == [500, 750]
    assert list(threshold_table(report)["split"]) == ["val", "test", "test"]


def test_sample_table_decides_as_the_metrics_do() -> None:
    threshold = float(DEMO["test"].scores.max(axis=1)[5])  # met exactly by one sample
    table = sample_table(DEMO, threshold)
    assert len(table) == sum(len(scores.labels) for scores in DEMO.values())
    test = table[table["split"] == "test"].reset_index(drop=True)
    decisions = decide(DEMO["test"].scores, threshold)
    names = [DEMO["test"].classes[d] if d != UNKNOWN else "unknown" for d in decisions]
    assert list(test["decision"]) == names
    assert list(test["id"]) == DEMO["test"].ids.tolist()
    assert list(test["label"]) == DEMO["test"].labels.tolist()
    assert list(test["class"]) == [DEMO["test"].classes[i] for i in DEMO["test"].class_index]
    np.testing.assert_array_equal(test["score"], DEMO["test"].scores.max(axis=1))
    assert set(sample_table(DEMO)["decision"]) == {""}


def test_confusion_table_adds_up() -> None:
    test = DEMO["test"]
    confusion = open_set_confusion(test.labels, test.class_index, test.scores, -0.01)
    table = confusion_table(confusion, test.classes)
    assert table["n"].sum() == len(test.labels)
    assert table.groupby("class")["share"].sum().to_numpy() == pytest.approx(1.0)
    row = table[(table["class"] == "known-03") & (table["decision"] == "known-03")].iloc[0]
    assert row["n"] == confusion.known[3, 3]
    rejected = table[(table["kind"] == "unknown") & (table["decision"] == "unknown")]
    assert rejected["n"].sum() == confusion.rejected[confusion.label == UNKNOWN].sum()
    alone = open_set_confusion([0, 1], [0, 1], np.eye(2), 0.5)
    assert confusion_table(alone, ["a", "b"]).to_numpy().tolist() == [
        ["a", "known", "a", 1, 1.0],
        ["b", "known", "b", 1, 1.0],
    ]
