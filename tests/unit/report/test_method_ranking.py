"""Rankings: the order, means over seeds, what is lost from validation to test, and the plots of it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from scipy import stats

from oscbench.metrics import Interval
from oscbench.origin import Origin
from oscbench.report.evaluation import Options, SplitFigures, evaluate_split
from oscbench.report.evaluation_plots import write_ranking
from oscbench.report.ranking import mean_interval, ranking, ranking_document, ranking_table
from oscbench.runs import Run, RunTitle, load_scores, title_of

DEMO = load_scores("demo")
FIGURES = [evaluate_split(split, scores, Options()) for split, scores in DEMO.items()]


def titled(algorithm: str, training: str = "eos", seed: int = 0, network: str = "tiny") -> RunTitle:
    origin = Origin(data="d", protocol="p1", training=training, seed=seed, network=network, recipe="demo")
    return RunTitle(origin=origin, algorithm=algorithm, params={}, score_kind="log")


def with_sums(**sums: float) -> list[SplitFigures]:
    """Figures whose sums are those given as ``val_negative``, ``test_negative``, ``test_unknown``; others are gone."""
    parts = []
    for part in FIGURES:
        kept = [
            dataclasses.replace(against, ccr_sum=Interval(sums[key], math.nan, math.nan, math.nan, math.nan))
            for against in part.against
            if (key := f"{part.split}_{against.kind}") in sums
        ]
        parts.append(dataclasses.replace(part, against=tuple(kept)))
    return parts


def test_the_interval_of_a_mean_is_that_of_students_t() -> None:
    values = [2.0, 2.5, 2.25, 1.0]
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = mean_interval(values)
    assert found[:4] == pytest.approx((1.9375, low, high, 0.95))
    assert math.isnan(mean_interval([1.0, math.nan]).estimate)


def test_methods_stand_in_the_order_of_their_mean_on_test_unknowns() -> None:
    runs = [
        (titled("first", seed=seed), with_sums(val_negative=2.0, test_negative=1.0, test_unknown=unknown))
        for seed, unknown in ((0, 1.0), (1, 2.0))
    ]
    runs += [(titled("second"), with_sums(val_negative=3.0, test_negative=3.0, test_unknown=1.4))]
    runs += [(titled("first", training="softmax"), with_sums(val_negative=3.0, test_unknown=1.6))]
    found = ranking(runs)
    assert [(s.algorithm, s.training, s.seeds) for s in found] == [
        ("first", "softmax", (0,)),
        ("first", "eos", (0, 1)),
        ("second", "eos", (0,)),
    ]
    assert found[1].unknown == mean_interval([1.0, 2.0])
    assert found[1].lost == mean_interval([1.0, 0.0])  # seed by seed
    assert found[2].lost.estimate == pytest.approx(1.6)
    assert math.isnan(found[0].negative.estimate)


def test_only_seeds_of_one_thing_count_together() -> None:
    figures = with_sums(test_unknown=1.0)
    one = titled("a")
    elsewhere = dataclasses.replace(one, origin=dataclasses.replace(one.origin, data="e"))
    unnamed = dataclasses.replace(one, origin=Origin(data="own", protocol="", training=""))
    runs = [one, one, titled("a", seed=1), elsewhere, unnamed, unnamed]
    found = ranking((title, figures) for title in runs)
    assert sorted(standing.seeds for standing in found) == [(0,)] * 4 + [(0, 1)]
    assert list(ranking_table(found)["seeds"]) != []


def test_without_unknowns_negatives_decide_and_without_a_test_validation() -> None:
    runs = [
        (titled("validated"), with_sums(val_negative=1.5)),
        (titled("nothing"), with_sums()),
        (titled("negatives"), with_sums(val_negative=0.5, test_negative=2.0)),
    ]
    found = ranking(runs)
    assert [s.algorithm for s in found] == ["negatives", "validated", "nothing"]
    assert [s.ranked_by for s in found] == ["negative", "validation", "validation"]


def test_the_table_writes_figures_with_what_is_known_of_them() -> None:
    runs = [
        (titled("a", seed=seed), with_sums(val_negative=2.0, test_unknown=unknown))
        for seed, unknown in ((0, 1.0), (1, 2.0))
    ]
    bootstrapped = [evaluate_split(split, scores, Options(resamples=20)) for split, scores in DEMO.items()]
    table = ranking_table(ranking([*runs, (titled("b"), bootstrapped)]))
    by_name = table.set_index("algorithm")
    assert by_name.loc["a", "test unknown"] == "1.500 ± 6.353"
    assert by_name.loc["a", "val negative"] == "2.000 ± 0.000"
    assert by_name.loc["a", "test negative"] == "-"
    unknown = bootstrapped[1].against[1].ccr_sum
    assert by_name.loc["b", "test unknown"] == f"{unknown.estimate:.3f} [{unknown.low:.3f}, {unknown.high:.3f}]"
    assert table["rank"].tolist() == [1, 2]
    assert sorted(table["seeds"]) == ["0", "0, 1"]
    own = ranking_table(ranking([(title_of(DEMO["val"], "demo"), FIGURES)]))
    assert "training" not in own
    assert "network" not in own
    assert "seeds" not in own


def test_the_document_holds_no_nan() -> None:
    found = ranking([(titled("a"), with_sums(val_negative=2.0))])
    (document,) = json.loads(json.dumps(ranking_document(found), allow_nan=False))
    assert document["algorithm"] == "a"
    assert document["validation"] == {"value": 2.0}
    assert document["unknown"] == {"value": None}


def test_plots_show_the_ranking_and_the_curves_of_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str]] = []
    write = "oscbench.report.evaluation_plots.write_oscr"
    monkeypatch.setattr(write, lambda runs, figures, folder: drawn.append([run.title.label for run in runs]) or [])
    runs = [Run(title=titled(f"m{place:02}", seed=seed), splits={}) for place in range(14) for seed in (0, 1)]
    figures = [with_sums(val_negative=1.0, test_unknown=2.0 - int(run.title.algorithm[1:]) / 10) for run in runs]
    paths = write_ranking(runs, figures, tmp_path)
    assert [path.name for path in paths] == ["ranking.png", "ranking.pdf"]
    assert all(path.stat().st_size > 5000 for path in paths)
    assert drawn == [[f"m{place:02}, eos" for place in range(12)]]  # each once, of its first seed
