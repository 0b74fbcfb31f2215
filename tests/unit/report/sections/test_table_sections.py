"""The tables of a report, each against cells that are worked out from the folders by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import yaml
from runs_factory import make_runs

from oscbench.artifacts import META
from oscbench.metrics import auroc, ccr_at_fpr, ccr_fpr_sum, oscr_curve
from oscbench.report.blocks import Facts, Section, Table
from oscbench.report.measures import Measures
from oscbench.report.ranks import RankTest
from oscbench.report.results import Cell, Results, read_results
from oscbench.report.sections.base import in_order, marks_of_best
from oscbench.report.sections.confidences import confidences_section
from oscbench.report.sections.costs import costs_section
from oscbench.report.sections.generalisation import generalisation_section
from oscbench.report.sections.left_out import left_out_section
from oscbench.report.sections.ranking import ranking_section
from oscbench.report.sections.rates import rates_section
from oscbench.report.sections.settings import best_settings_section, grids_section
from oscbench.scores import ScoreSet

ALL = (
    rates_section,
    best_settings_section,
    grids_section,
    confidences_section,
    generalisation_section,
    ranking_section,
    costs_section,
    left_out_section,
)


def tables(section: Section) -> dict[str, Table]:
    return {block.name: block for block in section.blocks if isinstance(block, Table)}


def shown(table: Table) -> list[dict[str, str]]:
    """What people see, row by row."""
    rows = table.frame.to_dict("records")
    return [
        {column.title: column.text({str(k): v for k, v in row.items()}) for column in table.columns} for row in rows
    ]


def cells_of(results: Results, **wanted: str) -> list[Cell]:
    def fits(cell: Cell) -> bool:
        found = {"protocol": cell.origin.protocol, "training": cell.origin.training, "algorithm": cell.algorithm}
        return all(found[name] == value for name, value in wanted.items())

    return [cell for cell in results.cells if fits(cell)]


def with_splits(cell: Cell, splits: Mapping[str, ScoreSet]) -> Cell:
    """The cell with other scores than those in its folder."""
    kind = type("OtherScores", (Cell,), {"splits": dict(splits)})
    other: Cell = kind(**{field.name: getattr(cell, field.name) for field in dataclasses.fields(Cell)})
    return other


# --- marks and order ------------------------------------------------------------------------------------------------


def test_the_best_three_of_each_group_are_marked_and_equal_ones_share() -> None:
    frame = pd.DataFrame({"group": list("aaaaabbc"), "x": [0.1, 0.4, 0.4, 0.3, 0.2, 0.5, math.nan, 0.7]})
    assert marks_of_best(frame, ["x"], ["group"]) == {
        (1, "x"): "best",
        (2, "x"): "best",
        (3, "x"): "second",
        (4, "x"): "third",
    }
    smallest = marks_of_best(frame.iloc[5:7].fillna(0.1).reset_index(), ["x"], ["group"], want="smallest")
    assert smallest == {(1, "x"): "best"}


def test_rows_stand_in_the_papers_order_and_numbers_by_value() -> None:
    frame = pd.DataFrame(
        {"training": ["eos", "zebra", "softmax", "softmax"], "n": [1.0, 2.0, 10.0, 9.0], "m": [1, pd.NA, 2, 3]}
    )
    assert in_order(frame, ["training", "n"])["n"].tolist() == [9.0, 10.0, 1.0, 2.0]


# --- test results ---------------------------------------------------------------------------------------------------


def test_test_results_hold_every_system_once(drawn: Results, measures: Measures) -> None:
    table = tables(rates_section(drawn, measures))["test-results"]
    assert len(table.frame) == 2 * 4 + 2 * 3
    first = table.frame.iloc[:8]
    assert first["protocol"].unique().tolist() == ["P1"]
    assert first["algorithm"].unique().tolist() == ["MSS", "OpenMax", "EVM", "PROSER"]
    assert first["training"].tolist() == ["SoftMax", "Garbage"] * 4
    assert not {"network", "recipe"} & {column.key for column in table.columns}  # there is one alone
    (cell,) = cells_of(drawn, protocol="p1", training="garbage", algorithm="evm")
    scores = cell.splits["test"]
    row = first[(first["algorithm"] == "EVM") & (first["training"] == "Garbage")].iloc[0]
    for kind, label in (("negative", -1), ("unknown", -2)):
        curve = oscr_curve(scores.labels, scores.predictions, unknown_label=label)
        assert row[f"{kind}_ccr_1e-1"] == ccr_at_fpr(curve, 0.1)
        assert row[f"{kind}_auroc"] == auroc(scores.labels, scores.predictions, unknown_label=label)
        assert row[f"{kind}_auroc_low"] < row[f"{kind}_auroc"] < row[f"{kind}_auroc_high"]


def test_unreachable_rates_are_blank(drawn: Results) -> None:
    table = tables(rates_section(drawn, Measures.of(drawn, "published")))["test-results"]
    blanks = {"1e-3": 0, "1e-1": 0}  # by this rule one of 60 samples is more than 1e-3
    for row, text in zip(table.frame.to_dict("records"), shown(table), strict=True):
        for kind, words in (("negative", "negatives"), ("unknown", "unknowns")):
            for rate in blanks:
                found = text[f"CCR@{rate}, {words}"]
                assert (found == "") == math.isnan(row[f"{kind}_ccr_{rate}"])
                blanks[rate] += found == ""
    assert (blanks["1e-3"], blanks["1e-1"] < 10) == (2 * 14, True)


def test_intervals_of_one_seed_and_deviations_of_several(drawn: Results, measures: Measures) -> None:
    for row in shown(tables(rates_section(drawn, measures))["test-results"]):
        assert ("[" in row["Accuracy"]) == (row["Protocol"] == "P1")
        assert ("±" in row["Accuracy"]) == (row["Protocol"] == "P2")


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("test-results", ("protocol",)),
        ("test-results-by-algorithm", ("protocol", "algorithm")),
        ("test-results-by-training", ("protocol", "training")),
    ],
)
def test_marks_are_the_largest_of_a_column(
    drawn: Results, measures: Measures, name: str, within: tuple[str, ...]
) -> None:
    table = tables(rates_section(drawn, measures))[name]
    marked = 0
    for column in ("unknown_auroc", "negative_ccr_1e-1", "accuracy"):
        for _, group in table.frame.groupby([*within]):
            best = group[column].max()
            for place, value in group[column].items():
                assert (table.marks.get((int(str(place)), column)) == "best") == (value == best)
                marked += value == best
    assert marked


# --- settings -------------------------------------------------------------------------------------------------------


def test_best_hyperparameters_are_those_of_best_yaml(drawn: Results, measures: Measures) -> None:
    found = tables(best_settings_section(drawn, measures))
    assert list(found) == ["best-settings-openmax", "best-settings-evm", "best-settings-proser"]
    symbols = {"λ": "tail_size", "κ": "distance_multiplier", "α": "alpha", "ω": "cover_threshold", "B": "dummies"}
    compared = 0
    for algorithm, label in (("openmax", "λ κ α"), ("evm", "λ κ ω"), ("proser", "B")):
        table = found[f"best-settings-{algorithm}"]
        for row in shown(table):
            for training in ("softmax", "garbage"):
                searches = [
                    search
                    for search in drawn.searches
                    if search.algorithm == algorithm
                    and search.origin.training == training
                    and search.origin.protocol == row["Protocol"].lower()
                    and search.origin.seed == int(row.get("Seed", "0"))
                ]
                best = yaml.safe_load((searches[0].folder / "best.yaml").read_text())
                words = {"softmax": "SoftMax", "garbage": "Garbage"}[training]
                for symbol in label.split():
                    assert float(row[f"{symbol}, {words}"]) == best["params"][symbols[symbol]]
                assert row[f"Σ, {words}"] == f"{best['sum']:.4f}"
                compared += 1
    assert compared == 2 * (3 + 3 + 1)


def test_grids_hold_every_trial_with_the_best_marked(drawn: Results, measures: Measures) -> None:
    found = tables(grids_section(drawn, measures))
    assert len(found) == 3 + 2 * 2  # p1: three methods; p2: two methods of two seeds
    search = next(s for s in drawn.searches if s.algorithm == "evm" and s.origin.protocol == "p1")
    table = next(table for name, table in found.items() if name.startswith("grid-evm-p1"))
    assert table.folded
    assert len(table.frame) == len(search.trials) == 4
    for trial in search.trials.to_dict("records"):
        rows = table.frame[
            (table.frame["tail_size"] == trial["tail_size"])
            & (table.frame["distance_multiplier"] == trial["distance_multiplier"])
        ]
        assert rows[f"{search.origin.training}:sum"].tolist() == [trial["sum"]]
        assert rows[f"{search.origin.training}:ccr_1e-1"].iloc[0] == pytest.approx(trial["ccr_1e-1"], nan_ok=True)
    key = f"{search.origin.training}:sum"
    best = int(table.frame[key].to_numpy(float).argmax())
    assert table.marks[(best, key)] == "best"


def test_searches_by_another_rule_are_shown_where_there_is_no_other(drawn: Results, measures: Measures) -> None:
    search = next(s for s in drawn.searches if s.algorithm == "evm")
    other = dataclasses.replace(search, config=search.config | {"ccr_rule": "published"}, folder=Path("other"))
    many = dataclasses.replace(drawn, searches=(search, other))
    assert "CCR by the inclusive rule" in tables(best_settings_section(many, measures))["best-settings-evm"].note
    alone = dataclasses.replace(drawn, searches=(other,))
    assert "CCR by the published rule" in tables(best_settings_section(alone, measures))["best-settings-evm"].note


# --- confidence and generalisation ----------------------------------------------------------------------------------


def test_confidence_stands_for_last_and_best_epoch(drawn: Results, measures: Measures) -> None:
    table = tables(confidences_section(drawn, measures))["confidence"]
    assert table.frame[["protocol", "which"]].drop_duplicates().to_numpy().tolist() == [
        ["P1", "last"],
        ["P1", "best"],
        ["P2", "last"],
        ["P2", "best"],
    ]
    for row in table.frame.to_dict("records"):
        own = [
            network
            for network in drawn.networks
            if network.stage == "train"
            and (network.origin.protocol, network.origin.training) == (row["protocol"].lower(), row["training"].lower())
        ]
        assert len(own) == (1 if row["protocol"] == "P1" else 2)
        epochs = [
            log.iloc[-1] if row["which"] == "last" else log.loc[log["gamma"].idxmax()]
            for log in (network.epochs for network in own)
        ]
        assert row["val_gamma_plus"] == pytest.approx(statistics.fmean(epoch["gamma_plus"] for epoch in epochs))
        assert row["val_gamma_minus"] == pytest.approx(statistics.fmean(epoch["gamma_minus"] for epoch in epochs))
        if row["which"] == "best":
            assert math.isnan(row["gamma_plus"])
            continue
        infos = [
            cell.splits["test"].info
            for cell in cells_of(drawn, protocol=row["protocol"].lower(), training=row["training"].lower())
            if cell.algorithm == "mss"
        ]
        recorded = [info.confidence for info in infos if info is not None and info.confidence is not None]
        for column, key in (
            ("gamma_plus", "known"),
            ("negative_gamma_minus", "negative"),
            ("unknown_gamma_minus", "unknown"),
        ):
            values = [float(found[key] or 0.0) for found in recorded]
            assert row[column] == pytest.approx(statistics.fmean(values))
            assert math.isnan(row[f"{column}_std"]) == (len(values) == 1)


def test_networks_of_the_best_epoch_fill_their_row(drawn: Results) -> None:
    (cell,) = cells_of(drawn, protocol="p1", training="softmax", algorithm="mss")
    origin = dataclasses.replace(cell.origin, recipe=f"{cell.origin.recipe}; best epoch", train="f" * 16)
    best = dataclasses.replace(cell, origin=origin, folder=drawn.runs / "best")
    best = with_splits(best, cell.splits)
    results = dataclasses.replace(drawn, cells=(*drawn.cells, best))
    measures = Measures.of(results)
    frame = tables(confidences_section(results, measures))["confidence"].frame
    row = frame[(frame["protocol"] == "P1") & (frame["training"] == "SoftMax") & (frame["which"] == "best")].iloc[0]
    assert cell.splits["test"].info is not None
    assert cell.splits["test"].info.confidence is not None
    assert row["gamma_plus"] == cell.splits["test"].info.confidence["known"]
    left = tables(left_out_section(results, measures))["left-out"].frame
    assert left["folder"].tolist() == ["best"]
    assert "best epoch" in left["reason"].iloc[0]


def test_what_is_lost_is_validation_minus_unknowns_seed_by_seed(drawn: Results, measures: Measures) -> None:
    table = tables(generalisation_section(drawn, measures))["generalisation"]
    assert len(table.frame) == 14
    for row in table.frame.to_dict("records"):
        names = {"SoftMax": "softmax", "Garbage": "garbage"}
        lost = []
        for cell in cells_of(
            drawn,
            protocol=row["protocol"].lower(),
            training=names[row["training"]],
            algorithm=row["algorithm"].lower(),
        ):
            val, test = cell.splits["val"], cell.splits["test"]
            before = ccr_fpr_sum(oscr_curve(val.labels, val.predictions, unknown_label=-1))
            lost.append(before - ccr_fpr_sum(oscr_curve(test.labels, test.predictions, unknown_label=-2)))
        assert row["sum_lost"] == pytest.approx(statistics.fmean(lost))
        if len(lost) > 1:
            assert row["sum_lost_std"] == pytest.approx(statistics.stdev(lost))
        else:
            ends = [row[f"sum_val{end}"] for end in ("_low", "", "_high")]
            others = [row[f"sum_unknown{end}"] for end in ("_low", "", "_high")]
            low = row["sum_lost"] - math.sqrt((ends[1] - ends[0]) ** 2 + (others[2] - others[1]) ** 2)
            assert row["sum_lost_low"] == pytest.approx(low)
            assert row["sum_lost_low"] <= row["sum_lost"] <= row["sum_lost_high"]


# --- ranks ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Nine blocks of two methods without hyperparameters, and a third that is in one block alone."""
    runs = tmp_path_factory.mktemp("many") / "runs"
    make_runs(runs, trainings=("softmax",), algorithms=("mss", "mls"), seeds=(0, 1, 2), epochs=1)
    make_runs(runs, protocols=("p1",), trainings=("softmax",), algorithms=("energy",), epochs=1)
    return read_results(runs)


def test_ranks_need_enough_blocks(many: Results, drawn: Results, measures: Measures) -> None:
    found = tables(ranking_section(many, Measures.of(many)))
    table = found["ranks-post-processors-unknown"]
    assert sorted(table.frame["algorithm"]) == ["MLS", "MSS"]
    assert "9 blocks" in table.note
    assert "Left out, in fewer than half of the blocks: energy" in table.note
    assert not any(name.startswith("ranks") for name in tables(ranking_section(drawn, measures)))


def test_ranks_are_those_of_the_sums(many: Results) -> None:
    measures = Measures.of(many)
    table = tables(ranking_section(many, measures))["ranks-post-processors-unknown"]
    frame = measures.frame[(measures.frame["split"] == "test") & (measures.frame["kind"] == "unknown")]
    rows, ranks = [], []
    for protocol in ("p1", "p2", "p3"):
        for seed in range(3):
            block = frame[(frame["protocol"] == protocol) & (frame["seed"] == seed)].set_index("algorithm")["sum"]
            mss, mls = float(block["mss"]), float(block["mls"])
            rows.append([mss, mls])
            ranks.append(1.5 if mss == mls else 1.0 if mss > mls else 2.0)
    row = table.frame[table.frame["algorithm"] == "MSS"].iloc[0]
    assert row["mean_rank"] == pytest.approx(statistics.fmean(ranks))
    assert row["sum"] == pytest.approx(statistics.fmean(mss for mss, _ in rows))
    expected = RankTest.of(pd.DataFrame(rows).to_numpy())
    for method, told, rank in zip(("MSS", "MLS"), expected.told_from_best, expected.mean_ranks, strict=True):
        words = "best" if rank == expected.mean_ranks.min() else "worse" if told else "cannot be told"
        assert table.frame[table.frame["algorithm"] == method]["told"].tolist() == [words]


def test_differences_are_to_the_best_of_the_protocol(drawn: Results, measures: Measures, many: Results) -> None:
    table = tables(ranking_section(drawn, measures))["differences-unknown"]
    assert len(table.frame) == 14
    assert "paired resamples" in table.note
    for _, group in table.frame.groupby("protocol"):
        assert group["lacking"].to_numpy() == pytest.approx((group["sum"].max() - group["sum"]).to_numpy())
        assert (group["told"] == "best").sum() == 1
        for row in group.to_dict("records"):
            if row["told"] != "best":
                assert (row["told"] == "worse") == (row["lacking_low"] > 0)
        for _, own in group.groupby("training"):
            assert own["lacking_here"].to_numpy() == pytest.approx((own["sum"].max() - own["sum"]).to_numpy())
    over_seeds = tables(ranking_section(many, Measures.of(many)))["differences-unknown"]
    assert "Student's t over 3 seeds" in over_seeds.note
    assert "Left out, of other seeds or samples: P1 energy softmax" in over_seeds.note
    for place, told in enumerate(table.frame["told"]):
        expected = {"best": "best", "cannot be told": "open"}.get(told)
        assert table.marks.get((place, "sum")) == expected


# --- cost and what is left out --------------------------------------------------------------------------------------


def test_costs_count_shared_stages_once(drawn: Results, measures: Measures) -> None:
    section = costs_section(drawn, measures)
    table = tables(section)["cost"]
    metas = {path.parent: json.loads(path.read_text()) for path in drawn.runs.glob("*/*/*-*/" + META)}
    (cell,) = cells_of(drawn, protocol="p1", training="softmax", algorithm="evm")
    row = table.frame.query("protocol == 'P1' and training == 'SoftMax' and algorithm == 'EVM'").iloc[0]
    assert cell.search is not None
    assert row["tune_seconds"] == metas[cell.search]["seconds"]
    assert row["shared_by"] == 4
    train = next(n for n in drawn.networks if n.stage == "train" and n.origin.train == cell.origin.train)
    assert row["train_seconds"] == metas[train.folder]["seconds"]
    own = metas[cell.search]["seconds"] + metas[cell.folder]["seconds"]
    share = row["train_seconds"] / 4 + row["features_seconds"] / 3  # PROSER has features of its own
    assert row["seconds"] == pytest.approx(own + share)
    nested = {meta["fingerprint"] for meta in metas.values() if meta["stage"] == "finetune"}
    assert len(nested) == 4
    counted = [
        meta["seconds"]
        for meta in metas.values()
        if meta["stage"] != "finetune" and meta["inputs"].get("train", {}).get("fingerprint") not in nested
    ]
    without_data = sum(counted) - sum(meta["seconds"] for meta in metas.values() if meta["stage"] == "samples")
    assert table.frame["seconds"].sum() == pytest.approx(without_data)
    (total,) = (block for block in section.blocks if isinstance(block, Facts))
    cpus = {meta["cpus"] for meta in metas.values() if meta["stage"] != "train"}
    assert len(cpus) == 1
    shares = {meta["result"]["share"]["cpus"] for meta in metas.values() if meta["stage"] == "train"}
    trained = sum(meta["seconds"] for meta in metas.values() if meta["stage"] == "train")
    hours = ((sum(counted) - trained) * cpus.pop() + trained * shares.pop()) / 3600
    assert float(total.rows["CPU hours"]) == pytest.approx(hours, abs=6e-4)
    assert total.rows["GPU hours"] == "0.000"


def test_what_was_left_out_is_named(drawn: Results, measures: Measures) -> None:
    assert left_out_section(drawn, measures).blocks == ()
    (cell,) = cells_of(drawn, protocol="p1", training="softmax", algorithm="evm")
    other = dataclasses.replace(cell, ccr_rule="published", folder=drawn.runs / "d/p1/scores-0")
    other = with_splits(other, cell.splits)
    damaged = (drawn.runs / "d" / "p1" / "scores-1", "is damaged")
    results = dataclasses.replace(drawn, cells=(*drawn.cells, other), left_out=(damaged,))
    frame = tables(left_out_section(results, Measures.of(results)))["left-out"].frame
    assert frame["folder"].tolist() == ["d/p1/scores-1", "d/p1/scores-0"]
    assert frame["reason"].iloc[0] == "is damaged"
    assert frame["reason"].iloc[1].startswith(f"best by the published rule, log score; {cell.folder.name} is shown")


# --- several networks of one loss -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_recipes(drawn: Results) -> Results:
    """Everything of one seed twice: the second time as if trained by another recipe, and a little better."""
    cells = [cell for cell in drawn.cells if cell.origin.protocol == "p1" and cell.algorithm != "proser"]
    searches = [search for search in drawn.searches if search.origin.protocol == "p1"]
    others, tried = [], []
    for cell in cells:
        origin = dataclasses.replace(cell.origin, recipe="longer", train=cell.origin.train[::-1])
        other = dataclasses.replace(cell, origin=origin)
        better = {
            split: dataclasses.replace(scores, score=scores.score + (scores.labels >= 0))
            for split, scores in cell.splits.items()
        }
        others.append(with_splits(other, better))
    for search in searches:
        origin = dataclasses.replace(search.origin, recipe="longer", train=search.origin.train[::-1])
        tried.append(dataclasses.replace(search, origin=origin, trials=search.trials.assign(sum=4.0)))
    return dataclasses.replace(drawn, cells=(*cells, *others), searches=(*searches, *tried), networks=())


def test_networks_of_one_loss_are_named_and_never_mixed(two_recipes: Results) -> None:
    measures = Measures.of(two_recipes)
    for make, name, rows in (
        (rates_section, "test-results", 12),
        (generalisation_section, "generalisation", 12),
        (ranking_section, "differences-unknown", 12),
        (costs_section, "cost", 12),
        (confidences_section, "confidence", 4),
        (best_settings_section, "best-settings-evm", 2),
    ):
        table = tables(make(two_recipes, measures))[name]
        assert len(table.frame) == rows, name
        found = [row["Recipe"] for row in shown(table)]
        assert found.count("longer") == rows // 2, name
        assert "Network" not in {column.title for column in table.columns}  # they differ in their recipe alone
    best = tables(best_settings_section(two_recipes, measures))["best-settings-evm"]
    sums = [(row["Recipe"], row["Σ, SoftMax"]) for row in shown(best)]
    assert dict(sums)["longer"] == "4.0000" != dict(sums)["demo, epochs=2"]
    grids = tables(grids_section(two_recipes, measures))
    assert {table.title for table in grids.values()} == {
        f"{method}, P1, tiny, {recipe}, seed 0"
        for method in ("OpenMax", "EVM", "PROSER")
        for recipe in ("longer", "demo, epochs=2")
    }
    rates = tables(rates_section(two_recipes, measures))["test-results"].frame
    assert (
        rates[rates["recipe"] == "longer"]["unknown_auroc"] >= rates[rates["recipe"] != "longer"]["unknown_auroc"].max()
    ).any()


def test_a_newer_training_of_equal_name_replaces_the_older_ones_searches(drawn: Results, measures: Measures) -> None:
    search = next(s for s in drawn.searches if s.algorithm == "evm")
    newer = dataclasses.replace(
        search,
        origin=dataclasses.replace(search.origin, train="0" * 16),
        created="2100-01-01T00:00:00+00:00",
        trials=search.trials.assign(sum=0.5),
    )
    table = tables(best_settings_section(dataclasses.replace(drawn, searches=(search, newer)), measures))[
        "best-settings-evm"
    ]
    assert table.frame[f"{search.origin.training}:sum"].tolist() == [0.5]


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_every_section_does_without_results(drawn: Results, make: object) -> None:
    none = dataclasses.replace(drawn, cells=(), searches=(), networks=(), work=(), left_out=())
    assert callable(make)
    section = make(none, Measures.of(none))
    assert not tables(section)
    assert section.text or section.blocks


def test_tables_need_neither_torch_nor_ray_nor_numba(drawn_runs: Path, tmp_path: Path) -> None:
    modules = {make.__module__: make.__name__ for make in ALL} | {
        grids_section.__module__: "best_settings_section, grids_section"
    }
    code = "\n".join(
        [
            "import sys; from pathlib import Path",
            "from oscbench.report.results import read_results",
            "from oscbench.report.measures import Measures",
            "from oscbench.report.formats import write_table",
            *(f"from {module} import {names}" for module, names in modules.items()),
            f"found = read_results(Path({str(drawn_runs)!r})); measures = Measures.of(found)",
            f"sections = [make(found, measures) for make in ({', '.join(make.__name__ for make in ALL)})]",
            "tables = [block for section in sections for block in section.blocks if hasattr(block, 'frame')]",
            f"paths = [path for table in tables for path in write_table(table, Path({str(tmp_path)!r}))]",
            "print(len(paths), sorted({'torch', 'ray', 'numba', 'matplotlib'} & set(sys.modules)))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == f"{len(list(tmp_path.iterdir()))} []"


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("splits", [("val",), ("test",)])
def test_every_section_does_without_a_split_a_seed_or_a_plugin(
    drawn: Results, make: object, splits: tuple[str, ...]
) -> None:
    def changed(cell: Cell) -> Cell:
        name = "uninstalled" if cell.algorithm == "evm" else cell.algorithm
        origin = dataclasses.replace(cell.origin, seed=None, network="", recipe="", protocol="own", training="secret")
        other = dataclasses.replace(cell, algorithm=name, origin=origin)
        other = with_splits(other, {split: cell.splits[split] for split in splits})
        return other

    cells = tuple(changed(cell) for cell in cells_of(drawn, protocol="p1", training="softmax"))
    searches = tuple(
        dataclasses.replace(search, algorithm="uninstalled") for search in drawn.searches if search.algorithm == "evm"
    )
    own = dataclasses.replace(drawn, cells=cells, searches=searches)
    assert callable(make)
    for table in tables(make(own, Measures.of(own))).values():
        shown(table)


@pytest.mark.parametrize("make", ALL)
def test_every_section_shows_columns_that_are_there(drawn: Results, measures: Measures, make: object) -> None:
    assert callable(make)
    for table in tables(make(drawn, measures)).values():
        shown(table)
        assert table.title
        keys = {column.key for column in table.columns}
        assert all(row < len(table.frame) and key in keys for row, key in table.marks)
