"""Printed beside measured: against printed tables, plain loops, repeated samples and panels made for the purpose."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from runs_factory import make_runs
from scipy.stats import kendalltau, t

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import FPRS, auroc, bootstrap, ccr_at_fpr, closed_set_accuracy, oscr_curve, predict
from oscbench.papers.claims import CLAIMS, Claim, Statistic
from oscbench.papers.panel import ALGORITHMS, MEASURES, RATES, TRAININGS, Panel
from oscbench.papers.tables import printed_networks, printed_results, printed_searches
from oscbench.report.blocks import Section, Table
from oscbench.report.compare.cells import FPRS as CCR_FPRS
from oscbench.report.compare.cells import beside_printed, measured, same_design
from oscbench.report.compare.networks import (
    GONE,
    measured_networks,
    network_figures,
    network_orders,
    networks_beside_printed,
)
from oscbench.report.compare.orders import correlations, kendall, ranks
from oscbench.report.compare.pixels import pixels_said
from oscbench.report.compare.resampled import Draws, resampled_figures, resampled_panel
from oscbench.report.compare.searches import (
    best_beside_printed,
    measured_searches,
    settings_beside_printed,
    with_orders,
)
from oscbench.report.compare.verdicts import Finding, Measured, claims_tables, student_interval, verdict_of
from oscbench.report.results import Results, Work, read_results
from oscbench.report.sections.compare import compare_with_papers
from oscbench.scores import ScoreSet

PROTOCOLS, OWN = ("p1", "p3"), ("mss", "openmax")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the three protocols, two of the five algorithms, two seeds of one training."""
    folder = tmp_path_factory.mktemp("compare") / "runs"
    make_runs(folder, protocols=PROTOCOLS, algorithms=OWN, demo=False, data="mine", epochs=1)
    more: dict[str, Any] = {"protocols": ("p1",), "trainings": ("eos",), "algorithms": ("mss",), "seeds": (1,)}
    return make_runs(folder, **more, demo=False, data="mine", epochs=1)


@pytest.fixture(scope="module")
def results(runs: Path) -> Results:
    return read_results(runs)


def as_demo(results: Results) -> Results:
    """The same, called embedded data."""
    marked = {
        name: tuple(
            dataclasses.replace(each, origin=dataclasses.replace(each.origin, demo=True))
            for each in getattr(results, name)
        )
        for name in ("cells", "searches", "networks")
    }
    return dataclasses.replace(results, **marked)


def tables(section: Section) -> dict[str, Table]:
    return {block.name: block for block in section.blocks if isinstance(block, Table)}


# --- cell by cell ----------------------------------------------------------------------------------------------------


def test_printed_values_are_those_of_the_printed_table(results: Results) -> None:
    frame = tables(compare_with_papers(results, resamples=5))["paper_cells"].frame
    printed = printed_results()
    key = ["protocol", "algorithm", "training", "kind"]
    assert frame[key].equals(printed[key])
    for name in MEASURES:
        assert frame[f"{name}_printed"].equals(printed[name].rename(f"{name}_printed"))
    there = frame["seeds"] != ""
    assert set(zip(frame["protocol"][there], frame["algorithm"][there], strict=True)) == {
        (protocol, algorithm) for protocol in PROTOCOLS for algorithm in OWN
    }
    assert frame.loc[~there, list(MEASURES)].isna().all(axis=None)
    assert set(frame["score_kind"][there]) == {"log"}  # no other kind was scored here, and rows say so


def test_measured_values_are_read_by_the_papers_rule(results: Results) -> None:
    own, aside = same_design(results)
    assert aside == ""
    frame = measured(own)
    assert len(frame) == 2 * len(own.cells) == 2 * (2 * 3 * 2 + 1)
    for cell in own.cells:
        scores = cell.splits["test"]
        for kind, label in (("negative", NEGATIVE), ("unknown", UNKNOWN)):
            origin = cell.origin
            row = frame[
                (frame["protocol"] == origin.protocol)
                & (frame["training"] == origin.training)
                & (frame["algorithm"] == cell.algorithm)
                & (frame["seed"] == origin.seed)
                & (frame["kind"] == kind)
            ].iloc[0]
            strangers = scores.score[scores.labels == label]
            known, right = scores.labels >= 0, scores.prediction == scores.labels
            for name, fpr in CCR_FPRS.items():
                allowed = [s for s in strangers if np.mean(strangers >= s) < fpr]
                reached = np.sum(right[known] & (scores.score[known] >= min(allowed))) if allowed else math.nan
                assert row[name] == pytest.approx(reached / known.sum(), nan_ok=True)
                above = [s for s in strangers if np.mean(strangers >= s) >= fpr]
                reading = np.sum(right[known] & (scores.score[known] >= max(above))) / known.sum()
                assert row[name + "_equation"] == pytest.approx(reading)
            assert row["accuracy"] == np.mean(right[known])


def test_several_seeds_are_a_mean_with_its_deviation_and_a_rate_one_does_not_reach_is_blank(results: Results) -> None:
    figures = measured(same_design(results)[0])
    both = beside_printed(figures).set_index(["protocol", "algorithm", "training", "kind"])
    row = both.loc[("p1", "mss", "eos", "unknown")]
    own = figures.query("protocol == 'p1' and algorithm == 'mss' and training == 'eos' and kind == 'unknown'")
    assert row["seeds"] == "0, 1"
    assert row["auroc"] == pytest.approx(own["auroc"].mean())
    assert row["auroc_std"] == pytest.approx(own["auroc"].std(ddof=1))
    assert row["auroc_less"] == pytest.approx(own["auroc"].mean() - row["auroc_printed"])
    assert math.isnan(both.loc[("p1", "mss", "softmax", "unknown"), "auroc_std"])
    figures.loc[own.index[0], "ccr_1e-1"] = math.nan
    assert math.isnan(beside_printed(figures).set_index(both.index.names).loc[row.name, "ccr_1e-1"])


def test_of_several_networks_the_one_with_most_cells_is_compared_and_the_others_are_named(results: Results) -> None:
    first = results.cells[0]
    other = dataclasses.replace(first, origin=dataclasses.replace(first.origin, network="resnet50"))
    own, aside = same_design(dataclasses.replace(results, cells=(other, *results.cells)))
    assert {cell.origin.network for cell in own.cells} == {"tiny"}
    assert "left aside: resnet50 / " in aside


# --- resamples -------------------------------------------------------------------------------------------------------


def drawn_scores(seed: int, levels: int = 20) -> ScoreSet:
    """Few levels make many equal scores, many levels scores that a resample does without."""
    rng, n_known, n_negative, n_unknown = np.random.default_rng(seed), 60, 45, 50
    labels = np.concatenate([rng.integers(0, 3, n_known), np.full(n_negative, NEGATIVE), np.full(n_unknown, UNKNOWN)])
    labels = rng.permutation(labels)
    scores = rng.integers(0, levels, (len(labels), 3)) / levels
    scores[np.arange(len(labels)), np.maximum(labels, 0)] += np.where(labels >= 0, 0.4, 0)
    return ScoreSet.from_scores(scores, labels)


@pytest.mark.parametrize("levels", [20, 200, 2000])
def test_resamples_are_those_of_the_plain_bootstrap(levels: int) -> None:
    scores, n = drawn_scores(0, levels), 83
    values = resampled_figures(scores, Draws.of(scores.labels, n, seed=7))
    how: dict[str, Any] = {"n": n, "seed": 7, "unknown_label": NEGATIVE}
    fprs = list(CCR_FPRS.values())
    intervals = bootstrap("ccr", scores.labels, scores.predictions, fprs=fprs, rule="published", **how)
    intervals += bootstrap("auroc", scores.labels, scores.predictions, **how)
    intervals += bootstrap("accuracy", scores.labels, scores.predictions, n=n, seed=7)
    for name, interval in zip([*RATES, "auroc", "accuracy"], intervals, strict=True):
        column = values[:, 0, MEASURES.index(name)]
        ranked = np.where(np.isnan(column), -np.inf, column)
        ends = np.quantile(ranked, [0.025, 0.975], method="inverted_cdf")
        expected = [-np.inf if math.isnan(end) else end for end in (interval.low, interval.high)]
        assert ends == pytest.approx(expected), name
        assert np.isnan(column).mean() == interval.unreachable


def test_each_resample_is_the_metric_on_the_samples_as_often_as_they_were_drawn() -> None:
    for seed, levels in enumerate((20, 200, 2000)):
        scores = drawn_scores(seed, levels)
        draws = Draws.of(scores.labels, 12, seed=seed)
        values = resampled_figures(scores, draws)
        for b in range(12):
            rows = np.concatenate([np.repeat(own, draws.counts[label][b]) for label, own in draws.rows.items()])
            assert len(rows) == len(scores.labels)
            labels, found = scores.labels[rows], predict(np.asarray(scores.scores)[rows])
            for kind, label in enumerate((NEGATIVE, UNKNOWN)):
                curve = oscr_curve(labels, found, unknown_label=label)
                ccr = [ccr_at_fpr(curve, fpr, rule="published") for fpr in CCR_FPRS.values()]
                expected = [*ccr, closed_set_accuracy(labels, found), auroc(labels, found, unknown_label=label)]
                assert values[b, kind] == pytest.approx(expected, nan_ok=True)


def test_cells_of_one_protocol_share_their_resamples(results: Results) -> None:
    cells = [cell for cell in results.cells if cell.origin.seed == 0]
    values = resampled_panel(cells, n=6)
    at = {cell: (PUBLISHED.index(cell.origin.protocol), TRAININGS.index(cell.origin.training)) for cell in cells}
    for cell in cells:
        alone = resampled_panel([cell], n=6)
        place = (slice(None), *at[cell], ALGORITHMS.index(cell.algorithm))
        assert np.array_equal(values[place], alone[place])
        assert not np.isnan(alone[place]).any()  # a rate that is not reached counts as 0
    assert np.isnan(values[:, 1]).all()  # there is no p2


PUBLISHED = ("p1", "p2", "p3")


# --- verdicts --------------------------------------------------------------------------------------------------------

ABOVE = Statistic(name="accuracy of the first cell", of=lambda panel: panel.accuracy[:, 0, 0, 0], above=0.5)


def made_panel(*accuracies: float) -> Panel:
    values = np.zeros((len(accuracies), 3, 3, 5, 2, len(MEASURES)))
    values[..., MEASURES.index("accuracy")] = np.reshape(accuracies, (-1, 1, 1, 1, 1))
    return Panel(values=values)


@pytest.mark.parametrize(
    ("seeds", "resamples", "verdict"),
    [
        ([0.7], [0.6, 0.7, 0.8], "holds"),
        ([0.7], [0.4, 0.7, 0.8], "cannot be told"),
        ([0.3], [0.2, 0.3, 0.4], "does not"),
        ([0.3], [0.2, 0.3, 0.6], "cannot be told"),
        ([0.3], [0.6, 0.7, 0.8], "cannot be told"),  # what was measured lies outside its own interval
        ([0.5], [0.5, 0.5, 0.5], "cannot be told"),  # nobody is better
        ([0.5], [0.4, 0.5, 0.5], "does not"),
        ([math.nan], [0.6, 0.7, 0.8], "cannot be told"),
        ([0.70, 0.71, 0.72], [0.6, 0.7, 0.8], "holds"),
        ([0.9, 0.6, 0.6], [0.6, 0.7, 0.8], "cannot be told"),  # seeds differ too much
        ([0.7, math.nan], [0.6, 0.7, 0.8], "holds"),
    ],
)
def test_a_statistic_holds_does_not_or_cannot_be_told(seeds: list[float], resamples: list[float], verdict: str) -> None:
    measured = Measured(seeds=made_panel(*seeds), resamples=tuple(made_panel(*resamples) for _ in seeds))
    finding = measured.finding(ABOVE)
    assert finding.verdict == verdict
    there = [value for value in seeds if not math.isnan(value)]
    assert finding.seeds == len(there)
    if len(there) > 1:
        expected = t.interval(0.95, len(there) - 1, np.mean(there), np.std(there, ddof=1) / math.sqrt(len(there)))
        assert finding.over_seeds == pytest.approx(expected)


def test_a_claim_holds_if_all_its_statistics_do() -> None:
    holds, fails, opens = (Finding(statistic=ABOVE, value=value, seeds=1) for value in (0.6, 0.4, math.nan))
    assert verdict_of([holds, holds]) == "holds"
    assert verdict_of([holds, opens]) == "cannot be told"
    assert verdict_of([holds, opens, fails]) == "does not"
    assert math.isnan(student_interval(np.array([0.5]))[0])


def test_the_claims_tables_say_what_was_found() -> None:
    claims = (Claim(number=1, text="it is high", statistics=(ABOVE,)),)
    measured = Measured(seeds=made_panel(0.6, 0.8), resamples=(made_panel(*[0.55] * 9), made_panel(*[0.65] * 9)))
    verdicts, statistics = claims_tables(measured, claims)
    row = statistics.frame.iloc[0]
    assert row["measured"] == pytest.approx(0.7)
    assert (row["measured_low"], row["measured_high"]) == pytest.approx((0.6, 0.6))  # of the mean over seeds
    assert row["range"] == "> 0.5"
    assert row["printed"] == printed_results().iloc[0]["accuracy"]
    assert verdicts.frame["verdict"].tolist() == ["cannot be told"]
    assert verdicts.marks == {(0, "verdict"): "open"}


def test_what_lacks_protocols_cannot_be_told(results: Results) -> None:
    found = tables(compare_with_papers(results, resamples=5))
    verdicts = found["claims"].frame
    assert verdicts["claim"].tolist() == [claim.number for claim in CLAIMS]
    assert set(verdicts["verdict"]) == {"cannot be told"}
    statistics = found["claim_statistics"].frame
    alone = statistics[statistics["measured"].notna()]
    assert alone.empty or (alone["seeds"] > 0).all()
    assert set(statistics[statistics["measured"].isna()]["verdict"]) == {"cannot be told"}


def test_nothing_at_all_cannot_be_told_either(results: Results) -> None:
    empty = dataclasses.replace(results, cells=(), searches=(), networks=(), work=())
    found = tables(compare_with_papers(empty, resamples=5))
    assert set(found["claims"].frame["verdict"]) == {"cannot be told"}
    assert (found["paper_cells"].frame["seeds"] == "").all()
    assert found["paper_orders"].frame.empty


# --- embedded data ---------------------------------------------------------------------------------------------------


def test_embedded_data_never_show_differences_of_values(results: Results) -> None:
    section = compare_with_papers(as_demo(results), resamples=5)
    assert "DEMO DATA" in section.text
    found = tables(section)
    assert set(found) == {
        "claims", "claim_statistics", "paper_orders", "paper_ranks", "paper_network_orders", "paper_best_settings",
    }  # fmt: skip
    for name, table in found.items():
        assert not [column for column in table.frame if str(column).endswith("_less")], name
        if name != "claim_statistics":  # the claims' figures are differences themselves, and stand beside the printed
            values = {*MEASURES, *RATES, "sum", "sum_printed", "sum_there"}
            assert not values & set(table.frame), name
    real = compare_with_papers(results, resamples=5)
    assert "DEMO DATA" not in real.text
    assert "auroc_less" in tables(real)["paper_cells"].frame


def test_every_column_that_people_see_is_there(results: Results) -> None:
    for data in (results, as_demo(results)):
        for table in tables(compare_with_papers(data, resamples=5)).values():
            assert {column.key for column in table.columns} <= set(table.frame), table.name
            for row in table.frame.head(3).to_dict("records"):
                assert all(isinstance(column.text(row), str) for column in table.columns)
            assert all(0 <= row < len(table.frame) and key in table.frame for row, key in table.marks)


def test_orders_are_those_of_scipy(results: Results) -> None:
    both = beside_printed(measured(same_design(results)[0]))
    found = correlations(both).set_index(["protocol", "kind", "measure"])["tau"]
    own = both[(both["protocol"] == "p3") & (both["kind"] == "unknown") & (both["seeds"] != "")]
    assert len(own) == 6
    expected = kendalltau(own["auroc_printed"], own["auroc"]).statistic
    assert found["p3", "unknown", "AUROC"] == pytest.approx(expected)
    expected = kendalltau(own["ccr_1e-1_printed"].fillna(0), own["ccr_1e-1"].fillna(0)).statistic
    assert found["p3", "unknown", "CCR@1e-1"] == pytest.approx(expected, nan_ok=True)
    places = ranks(both).query("protocol == 'p3' and kind == 'unknown'")
    assert sorted(places["auroc_printed_rank"]) == [1, 2, 3, 4, 5, 6]
    best = places.loc[places["auroc_rank"].idxmin()]
    assert own.set_index(["algorithm", "training"])["auroc"].idxmax() == (best["algorithm"], best["training"])
    assert math.isnan(kendall([1, 2], [1, 2]))
    assert math.isnan(kendall([1, 1, 1], [1, 2, 3]))


# --- networks --------------------------------------------------------------------------------------------------------


def plain_figures(labels: list[int], logits: list[list[float]], n_known: int) -> dict[str, float]:
    """The protocols paper's Table 2 by its wording, sample by sample."""
    probabilities = []
    for row in logits:
        powers = [math.exp(value) for value in row]
        probabilities.append([power / sum(powers) for power in powers])
    pairs = list(zip(labels, probabilities, strict=True))
    knowns, strangers = [(y, p) for y, p in pairs if y >= 0], [p for y, p in pairs if y == UNKNOWN]
    offset = 0 if len(logits[0]) > n_known else 1 / n_known
    figures = {
        "gamma_plus": sum(p[y] for y, p in knowns) / len(knowns),
        "gamma_minus": sum(1 - max(p[:n_known]) + offset for p in strangers) / len(strangers),
    }
    thresholds = sorted({p[y] for y, p in knowns})[:-1]
    for name, fpr in zip(("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"), FPRS, strict=True):
        points = []
        for threshold in thresholds:
            rate = sum(max(p) > threshold for p in strangers) / len(strangers)
            right = sum(p.index(max(p)) == y and p[y] > threshold for y, p in knowns) / len(knowns)
            points.append((abs(rate - fpr), -rate, -right))
        off, _, right = min(points)
        figures[name] = -right if off < 0.1 * fpr else math.nan
    return figures


@pytest.mark.parametrize("extra", [0, 1])
def test_networks_are_read_as_the_protocols_paper_reads_them(extra: int) -> None:
    rng = np.random.default_rng(5)
    labels = rng.permutation([*[0, 1, 2] * 100, *[NEGATIVE] * 20, *[UNKNOWN] * 200])
    logits = rng.normal(size=(len(labels), 3 + extra))
    logits[np.arange(len(labels)), np.maximum(labels, 0)] += np.where(labels >= 0, 2.0, 0.0)
    logits[:, 3:] += np.where(labels >= 0, 0.5, 2.0)[:, None]
    found = network_figures(labels, logits, 3)
    expected = plain_figures(labels.tolist(), logits.tolist(), 3)
    assert found == pytest.approx(expected, nan_ok=True)
    assert not math.isnan(found["ccr_1e-1"])
    if extra:  # the output for negatives is in the maximum: without it others get in
        assert network_figures(labels, logits[:, :3], 3)["ccr_1"] > found["ccr_1"]


def test_networks_are_read_from_their_features_and_lost_ones_are_named(runs: Path, tmp_path: Path) -> None:
    results = read_results(runs)
    frame = measured_networks(same_design(results)[0])
    assert len(frame) == 2 * 3 + 1
    assert set(frame["note"]) == {""}
    (work,) = (w for w in results.work if w.stage == "features" and w.protocol == "p3" and "garbage" in _training(w))
    labels, logits = (np.load(work.folder / "test" / f"{name}.npy") for name in ("labels", "logits"))
    assert logits.shape[1] == 6
    row = frame.query("protocol == 'p3' and training == 'garbage'").iloc[0].to_dict()
    expected = plain_figures(labels.tolist(), logits.astype(float).tolist(), 5)
    assert {name: row[name] for name in expected} == pytest.approx(expected, nan_ok=True)

    shutil.copytree(runs, tmp_path / "runs", symlinks=True)
    shutil.rmtree(tmp_path / "runs" / work.folder.relative_to(runs))
    lost = measured_networks(same_design(read_results(tmp_path / "runs"))[0])
    assert lost.query("note != ''")[["protocol", "training", "note"]].values.tolist() == [["p3", "garbage", GONE]]
    both = networks_beside_printed(lost)
    printed = printed_networks()
    assert both["gamma_plus_printed"].tolist() == printed["gamma_plus"].tolist()
    notes = both.set_index(["epoch_selection", "protocol", "training"])["note"]
    assert notes["last", "p3", "garbage"] == GONE
    assert notes["best", "p1", "eos"] == notes["last", "p2", "eos"] == "not there"
    orders = network_orders(both).set_index(["epoch_selection", "protocol", "measure"])
    assert orders.loc[("last", "p1", "γ⁻"), "printed"] == "eos > garbage > softmax"
    assert "garbage" not in orders.loc[("last", "p3", "γ⁻"), "printed"]


def _training(work: Work) -> str:
    return (work.folder / "test" / "set.json").read_text()


# --- searches --------------------------------------------------------------------------------------------------------


def searched(results: Results, **changes: Any) -> pd.DataFrame:
    """What searches reached, as if they had tried printed settings."""
    moved = []
    for search in results.searches:
        tails = search.trials["tail_size"].replace({5: 10, 20: 250})
        moved.append(dataclasses.replace(search, trials=search.trials.assign(tail_size=tails, **changes)))
    return measured_searches(dataclasses.replace(results, searches=tuple(moved)))


def test_each_printed_setting_stands_beside_the_same_one(results: Results) -> None:
    own = same_design(results)[0]
    found = searched(own)
    both = settings_beside_printed(found)
    printed = printed_searches()
    for name in ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1", "sum"):
        assert both[f"{name}_printed"].equals(printed[name].rename(f"{name}_printed"))
    assert both[["ok", "note"]].equals(printed[["ok", "note"]])
    there = both[both["sum"].notna()]
    wanted = printed.query("algorithm == 'openmax' and protocol in ('p1', 'p3') and tail_size in (10, 250)")
    wanted = wanted.query("distance_multiplier in (1.5, 2.0) and alpha in (2, 3)")
    assert len(there) == len(wanted) == 2 * 3 * 8
    row = there.iloc[0]
    (search,) = (s for s in own.searches if (s.origin.protocol, s.origin.training) == ("p1", row["training"]))
    same = search.trials.query("tail_size == 5 and distance_multiplier == 1.5 and alpha == 2")
    assert row["sum"] == same["sum"].item()
    assert there["sum_less"].isna().all()  # sums by another rule and score are no comparison
    for changes in ({"ccr_rule": "published"}, {"score_kind": "published"}):
        assert settings_beside_printed(searched(own, **changes))["sum_less"].isna().all()
    other = settings_beside_printed(searched(own, ccr_rule="published", score_kind="published"))
    assert other["sum_less"].notna().any()
    assert other["sum_less"].equals((other["sum"] - other["sum_printed"]).rename("sum_less"))
    damaged = tables(compare_with_papers(results, resamples=5))["paper_settings"]
    assert {row for row, _ in damaged.marks} == set(np.flatnonzero(printed["ok"] == 0))


def test_best_settings_and_the_place_of_the_printed_one(results: Results) -> None:
    found = searched(same_design(results)[0])
    found = found.assign(tail_size=found["tail_size"].replace({10: 1000}), alpha=found["alpha"].replace({2: 10, 3: 5}))
    best = best_beside_printed(found).set_index(["protocol", "algorithm", "training"])
    row = best.loc[("p1", "openmax", "softmax")]  # printed: 1000, 2, 10
    own = found.query("protocol == 'p1' and training == 'softmax'")
    there = own.query("tail_size == 1000 and distance_multiplier == 2 and alpha == 10")["sum"].item()
    assert (row["sum_printed"], row["sum_there"], row["sum"]) == (1.5823, there, own["sum"].max())
    assert row["place"] == 1 + (own["sum"] > there).sum()
    assert (best.loc[("p2", "evm", "eos"), "setting"], best.loc[("p2", "evm", "eos"), "settings"]) == ("", 0)
    settings = settings_beside_printed(found)
    taus = with_orders(best.reset_index(), settings).set_index(best.index.names)["tau"]
    same = settings.query("algorithm == 'openmax' and protocol == 'p1' and training == 'eos' and ok == 1")
    same = same[same["sum"].notna()]
    assert len(same) > 2
    expected = kendalltau(same["sum_printed"], same["sum"]).statistic
    assert taus["p1", "openmax", "eos"] == pytest.approx(expected)


def test_settings_that_differ_in_other_parameters_count_at_their_defaults(results: Results) -> None:
    own = same_design(results)[0]
    search = own.searches[0]
    twice = pd.concat([search.trials.assign(metric="cosine"), search.trials.assign(metric="euclidean", sum=9.0)])
    found = measured_searches(dataclasses.replace(own, searches=(dataclasses.replace(search, trials=twice),)))
    assert len(found) == 0  # OpenMax has no such parameter, so neither is its default
    named = dataclasses.replace(search, algorithm="evm", trials=twice.assign(algorithm="evm"))
    found = measured_searches(dataclasses.replace(own, searches=(named,)))
    assert len(found) == len(search.trials)
    assert found["sum"].max() < 9


# --- pixels ----------------------------------------------------------------------------------------------------------


def test_pixels_that_are_not_the_images_own_are_named(results: Results) -> None:
    assert pixels_said(results) == ""  # read by PIL
    features = [work for work in results.work if work.stage == "features"]
    read = [dataclasses.replace(work, inputs=work.inputs | {"beton": "b" * 16}) for work in features[:2]]

    def said(*betons: Work) -> str:
        return pixels_said(dataclasses.replace(results, work=(*read, *features[2:], *betons)))

    def beton(mode: str) -> Work:
        config = {"side": 64, "quality": 90, "mode": mode}
        return dataclasses.replace(features[0], stage="beton", fingerprint="b" * 16, config=config, inputs={})

    assert said(beton("raw")) == ""
    assert said(beton("jpeg")).startswith(
        f"2 of {len(features)} feature sets come from FFCV files that hold JPEG of qu"
    )
    assert "quality 90" in said(beton("mix"))
    assert "files that are gone" in said()
    everything = dataclasses.replace(results, work=(*read, *features[2:], beton("jpeg")))
    assert "JPEG of quality 90: not the pixels" in compare_with_papers(everything, resamples=5).text
