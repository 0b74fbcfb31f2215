"""Every figure of a runs folder against plain loops over its samples; deviations over seeds, intervals of one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics

import numpy as np
import pytest

from oscbench.features import load_feature_folder
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import bootstrap
from oscbench.report.measures import COLUMNS, FIGURES, Measures
from oscbench.report.results import Cell, Results

LABEL = {"negative": NEGATIVE, "unknown": UNKNOWN}


def counted(cell: Cell, split: str, kind: str) -> dict[str, float]:
    """The figures of a cell by trying every threshold."""
    scores = cell.splits[split]
    known = [(s, p == y) for s, p, y in zip(scores.score, scores.prediction, scores.labels, strict=True) if y >= 0]
    others = [s for s, y in zip(scores.score, scores.labels, strict=True) if y == LABEL[kind]]
    found = {"accuracy": sum(right for _, right in known) / len(known)}
    won = [1.0 if s > other else 0.5 if s == other else 0.0 for (s, _), other in itertools.product(known, others)]
    found["auroc"] = sum(won) / len(won)
    total = 0.0
    for name, rate in (("ccr_1e-3", 1e-3), ("ccr_1e-2", 1e-2), ("ccr_1e-1", 1e-1), ("ccr_1", 1.0)):
        best = math.nan
        for threshold in [*(s for s, right in known if right), *others, -math.inf]:
            if sum(s >= threshold for s in others) / len(others) <= rate:
                reached = sum(right and s >= threshold for s, right in known) / len(known)
                best = reached if math.isnan(best) else max(best, reached)
        found[name] = best
        total += 0.0 if math.isnan(best) else best
    return found | {"sum": total}


def test_there_is_a_row_for_each_cell_split_and_kind(drawn: Results, measures: Measures) -> None:
    frame = measures.frame
    assert list(frame.columns) == list(COLUMNS)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == COLUMNS
    assert len(frame) == 3 * len(drawn.cells) == 3 * 20
    assert set(zip(frame["split"], frame["kind"], strict=True)) == {
        ("val", "negative"),
        ("test", "negative"),
        ("test", "unknown"),
    }
    for cell, row in zip(measures.cells, frame.to_dict("records"), strict=True):
        assert (row["algorithm"], row["training"], row["seed"]) == (
            cell.algorithm,
            cell.origin.training,
            cell.origin.seed,
        )
        assert drawn.runs / row["folder"] == cell.folder
        assert json.loads(row["params"]) == cell.params
    assert frame["preferred"].all()


@pytest.mark.parametrize("place", range(0, 60, 5))
def test_figures_are_those_of_plain_counting(measures: Measures, place: int) -> None:
    row = measures.frame.iloc[place]
    expected = counted(measures.cells[place], row["split"], row["kind"])
    for name in FIGURES:
        assert row[name] == pytest.approx(expected[name], nan_ok=True), name
    labels = measures.cells[place].splits[row["split"]].labels
    assert row["n_known"] == sum(y >= 0 for y in labels)
    assert row["n"] == sum(y == LABEL[row["kind"]] for y in labels)


def test_some_rate_is_out_of_reach(measures: Measures) -> None:
    """So that blanks are tested at all."""
    assert measures.frame["ccr_1e-3"].isna().any()


def test_gammas_are_those_of_the_networks_outputs(drawn: Results, measures: Measures) -> None:
    folders = {work.fingerprint: work.folder for work in drawn.work if work.stage == "features"}
    tested = 0
    for row, cell in zip(measures.frame.to_dict("records"), measures.cells, strict=True):
        work = drawn.work_of(cell.folder)
        assert work is not None
        if "features" not in work.inputs:  # fine-tuned: the features are those of another network
            continue
        part = load_feature_folder(folders[work.inputs["features"]]).split(row["split"])
        assert part.logits is not None
        right, wrong = [], []
        for logits, label in zip(part.logits.astype(float), part.labels, strict=True):
            powers = [math.exp(value - max(logits)) for value in logits]
            if label >= 0:
                right.append(powers[label] / sum(powers))
            elif label == LABEL[row["kind"]]:
                offset = 1 / part.n_known if len(logits) == part.n_known else 0.0
                wrong.append(1 - max(powers[: part.n_known]) / sum(powers) + offset)
        assert row["gamma_plus"] == pytest.approx(statistics.fmean(right), abs=1e-6)
        assert row["gamma_minus"] == pytest.approx(statistics.fmean(wrong), abs=1e-6)
        tested += 1
    assert tested == 3 * 18


def test_several_seeds_become_mean_and_deviation(measures: Measures) -> None:
    summary = measures.summary[measures.summary["protocol"] == "p2"]
    assert len(summary) == 2 * 3 * 3
    for row in summary.to_dict("records"):
        own = measures.frame
        for name in ("protocol", "training", "algorithm", "split", "kind"):
            own = own[own[name] == row[name]]
        assert (row["seeds"], row["n_seeds"]) == ("0, 1", 2)
        for name in FIGURES:
            values = own[name].tolist()
            reached = not any(map(math.isnan, values))
            assert row[name] == pytest.approx(statistics.fmean(values) if reached else math.nan, nan_ok=True)
            assert row[f"{name}_std"] == pytest.approx(statistics.stdev(values) if reached else math.nan, nan_ok=True)
            assert math.isnan(row[f"{name}_low"])


def test_a_single_seed_gets_the_bootstrap_interval(measures: Measures) -> None:
    summary = measures.summary[measures.summary["protocol"] == "p1"]
    row = summary[(summary["algorithm"] == "evm") & (summary["kind"] == "unknown")].iloc[0]
    place = measures.frame.index[
        (measures.frame["protocol"] == "p1")
        & (measures.frame["algorithm"] == "evm")
        & (measures.frame["kind"] == "unknown")
        & (measures.frame["training"] == row["training"])
    ][0]
    scores = measures.cells[place].splits["test"]
    for metric, name in (("auroc", "auroc"), ("ccr_sum", "sum"), ("accuracy", "accuracy")):
        (found,) = bootstrap(
            metric,  # type: ignore[arg-type]
            scores.labels,
            scores.predictions,
            n=measures.resamples,
            unknown_label=UNKNOWN,
        )
        assert (row[f"{name}_low"], row[f"{name}_high"]) == (found.low, found.high)
        assert found.low <= row[name] <= found.high
        assert math.isnan(row[f"{name}_std"])
    assert str(measures.resamples) in measures.note
    assert "standard deviation over seeds" in measures.note


def test_large_data_get_fewer_resamples(measures: Measures) -> None:
    assert measures.resamples == 1000
    large = dataclasses.replace(measures, frame=measures.frame.assign(n_known=10_000))
    samples = 24 * (10_000 + 60)  # one seed of 8 systems, three rows each
    assert large.resamples == 400
    assert large.resamples * samples <= 100_000_000 < (large.resamples + 50) * samples
    assert dataclasses.replace(measures, frame=measures.frame.assign(n_known=10**7)).resamples == 100


def test_networks_recipes_and_other_cells_of_a_system_are_not_mixed(drawn: Results) -> None:
    cell = next(cell for cell in drawn.cells if cell.origin.protocol == "p1" and cell.algorithm == "evm")
    other_recipe = dataclasses.replace(cell, origin=dataclasses.replace(cell.origin, recipe="longer"))
    older = dataclasses.replace(cell, created="2000-01-01T00:00:00+00:00")
    measures = Measures.of(dataclasses.replace(drawn, cells=(cell, other_recipe, older)))
    assert measures.frame["preferred"].tolist() == [True] * 6 + [False] * 3
    assert measures.summary["recipe"].tolist() == [cell.origin.recipe] * 3 + ["longer"] * 3
    assert (measures.summary["n_seeds"] == 1).all()


def test_another_rule_reads_other_rates(drawn: Results, measures: Measures) -> None:
    published = Measures.of(drawn, "published")
    both = published.frame["ccr_1e-1"].notna()
    assert (published.frame["ccr_1e-1"][both] <= measures.frame["ccr_1e-1"][both] + 1e-12).all()
    assert set(published.frame["ccr_rule"]) == {"published"}
    assert np.allclose(published.frame["auroc"], measures.frame["auroc"])


def test_nothing_to_measure_is_an_empty_table(drawn: Results) -> None:
    none = Measures.of(dataclasses.replace(drawn, cells=()))
    assert list(none.frame.columns) == list(COLUMNS)
    assert none.summary.empty
