"""What figures show, against figures computed another way."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import FPRS, auroc, ccr_at_fpr, oscr_curve
from oscbench.metrics.oscr import step_points
from oscbench.protocols.imagenet import published_protocol
from oscbench.protocols.wordnet import load_tree
from oscbench.report.blocks import Chart, Table
from oscbench.report.charts.accuracy import accuracy_charts, correlation
from oscbench.report.charts.base import chart_of, make_document, rounded
from oscbench.report.charts.class_map import ROLES, class_tree
from oscbench.report.charts.cost import cost_charts
from oscbench.report.charts.epochs import epoch_charts
from oscbench.report.charts.oscr import kept_points, oscr_charts
from oscbench.report.charts.ranks import rank_charts
from oscbench.report.charts.scores import BINS, histogram, score_charts, values_of
from oscbench.report.charts.settings import heat_charts, line_charts
from oscbench.report.measures import Measures
from oscbench.report.page.build import plain
from oscbench.report.results import Cell, Results
from oscbench.report.sections.ranking import ranking_section

KINDS = {"negative": NEGATIVE, "unknown": UNKNOWN}


def cell_of(results: Results, keys: dict[str, str]) -> Cell:
    """The one cell that a series is about."""
    (found,) = (
        cell
        for cell in results.cells
        if (cell.origin.protocol, cell.origin.training, str(cell.origin.seed), cell.algorithm)
        == tuple(keys[name] for name in ("protocol", "training", "seed", "algorithm"))
    )
    return found


def series_of(charts: list[Chart]) -> list[dict[str, Any]]:
    (chart,) = charts
    assert chart.document is not None
    return list(chart.document["series"])


@pytest.fixture(scope="module")
def chosen(drawn: Results) -> Results:
    return drawn.preferred()


# --- documents -----------------------------------------------------------------------------------------------------


def all_charts(drawn: Results, measures: Measures) -> list[Chart]:
    chosen = drawn.preferred()
    return [
        *oscr_charts(chosen),
        *score_charts(chosen),
        *accuracy_charts(chosen, measures),
        *heat_charts(drawn),
        *line_charts(drawn),
        *epoch_charts(drawn),
        *cost_charts(chosen),
    ]


def test_documents_are_whole(drawn: Results, measures: Measures) -> None:
    """Every series has a value of every key, every key an entry, and all of it is JSON."""
    charts = all_charts(drawn, measures)
    assert len({chart.name for chart in charts}) == len(charts) >= 8
    for chart in charts:
        document = chart.document
        assert document is not None
        assert json.loads(json.dumps(plain(document), allow_nan=False)) == plain(document)
        for one in document["series"]:
            assert set(one["keys"]) == set(document["keys"])
            assert all(value in document["keys"][key]["values"] for key, value in one["keys"].items())
        named = {key for how in document["arrangements"] for key in (*how["panels"], how["colour"], how["line"])}
        assert named - {None} <= set(document["keys"])
        assert set(document["choose"]) <= set(document["keys"])
        assert len({tuple(one["keys"].items()) for one in document["series"]}) == len(document["series"])


def test_every_file_of_a_figure_can_be_drawn(drawn: Results, measures: Measures) -> None:
    for chart in all_charts(drawn, measures):
        assert chart.files
        for name, draw in itertools.islice(chart.files.items(), 2):
            assert name.startswith(chart.name)
            figure = draw()
            assert "DEMO DATA" in figure.get_suptitle()
            assert any(axis.has_data() or axis.patches or axis.texts for axis in figure.axes)


def test_names_of_files_differ(drawn: Results, measures: Measures) -> None:
    names = [name for chart in all_charts(drawn, measures) for name in chart.files]
    assert len(names) == len(set(names))
    assert {"oscr-log", "oscr-linear", "oscr-all-log", "oscr-protocols-linear", "scores-p1-correct"} <= set(names)


# --- curves --------------------------------------------------------------------------------------------------------


def test_curves_are_those_of_the_metrics(chosen: Results) -> None:
    found = series_of(oscr_charts(chosen))
    expected = 0
    for cell in chosen.cells:
        expected += sum(bool(np.any(s.labels == label)) for s in cell.splits.values() for label in KINDS.values())
    assert len(found) == expected
    for one in found:
        scores = cell_of(chosen, one["keys"]).splits[one["keys"]["split"]]
        curve = oscr_curve(scores.labels, scores.predictions, unknown_label=KINDS[one["keys"]["kind"]])
        fpr, ccr = step_points(curve)  # few enough samples that none is left out
        np.testing.assert_allclose(one["x"], fpr, rtol=1e-5)
        np.testing.assert_allclose(one["y"], ccr, rtol=1e-5)


def test_a_thinned_curve_tells_the_tables_figures_and_no_others() -> None:
    generator = np.random.default_rng(0)
    labels = np.concatenate((np.arange(30_000) % 3, np.full(19_937, NEGATIVE)))
    scores = generator.normal(size=(49_937, 3))
    scores[np.arange(30_000), labels[:30_000]] += 1.5
    curve = oscr_curve(labels, scores, unknown_label=NEGATIVE)
    fpr, ccr = step_points(curve)
    kept = kept_points(fpr, 400)
    assert 200 <= np.count_nonzero(kept) <= 420
    for rate in FPRS:
        read = ccr[kept][np.flatnonzero(fpr[kept] <= rate)[-1]]
        assert read == ccr_at_fpr(curve, rate)
    drawn = np.flatnonzero(kept)
    # between two kept points nothing lies farther than a hundredth of a decade and of the linear axis
    for before, after in itertools.pairwise(drawn):
        if after - before > 1:
            assert math.log10(fpr[after - 1] / fpr[before]) < 0.0201
            assert fpr[after - 1] - fpr[before] < 0.0051


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300, unique=True), st.integers(8, 200))
def test_first_and_last_points_stay(rates: list[float], most: int) -> None:
    fpr = np.sort(np.array([*rates, 1.0]))
    fpr = np.unique(fpr)
    kept = kept_points(fpr, most)
    assert kept[0]
    assert kept[-1]


# --- scores --------------------------------------------------------------------------------------------------------


def test_bins_count_as_a_loop_does() -> None:
    generator = np.random.default_rng(1)
    values = {"known": generator.normal(2, 1, 500), "negative": generator.normal(0, 1, 300)}
    edges, counts = histogram(values)
    assert len(edges) == BINS + 1
    for role, part in values.items():
        expected = [0] * BINS
        for value in part:
            place = 0
            while place < BINS - 1 and value >= edges[place + 1]:
                place += 1
            expected[place] += 1
        assert counts[role].tolist() == expected
        assert counts[role].sum() == len(part)


def test_scores_of_the_correct_class(chosen: Results) -> None:
    shown = 0
    for cell in chosen.cells:
        scores = cell.splits["test"]
        found, highest = values_of(scores, "correct"), values_of(scores, "highest")
        assert highest is not None
        expected = Counter(
            round(float(scores.score[row]), 9) for row in range(len(scores.labels)) if scores.labels[row] >= 0
        )
        assert Counter(np.round(highest["known"], 9).tolist()) == expected
        if scores.scores is None:
            assert found is None
            continue
        shown += 1
        assert found is not None
        own = [float(scores.scores[row, label]) for row, label in enumerate(scores.labels) if label >= 0]
        np.testing.assert_array_equal(found["known"], own)
        np.testing.assert_array_equal(found["unknown"], scores.score[scores.labels == UNKNOWN])
    assert shown


def test_histograms_hold_every_sample(chosen: Results) -> None:
    for one in series_of(score_charts(chosen)):
        labels = cell_of(chosen, one["keys"]).splits[one["keys"]["split"]].labels
        masks = {"known": labels >= 0, "negative": labels == NEGATIVE, "unknown": labels == UNKNOWN}
        assert sum(one["y"]) == np.count_nonzero(masks[one["keys"]["role"]])
        assert len(one["x"]) == len(one["y"]) + 1


# --- accuracy and AUROC --------------------------------------------------------------------------------------------


def test_dots_are_those_of_the_metrics(chosen: Results, measures: Measures) -> None:
    found = series_of(accuracy_charts(chosen, measures))
    assert found
    for one in found:
        scores = cell_of(chosen, one["keys"]).splits[one["keys"]["split"]]
        known = scores.labels >= 0
        assert one["x"] == rounded([np.mean(scores.prediction[known] == scores.labels[known])])
        assert one["y"] == rounded([auroc(scores.labels, scores.predictions, unknown_label=KINDS[one["keys"]["kind"]])])


def test_correlation_is_pearsons_or_nothing() -> None:
    rows = pd.DataFrame({"accuracy": [0.1, 0.2, 0.4, 0.8], "auroc": [0.5, 0.4, 0.9, 0.7]})
    x, y = (rows[name] - rows[name].mean() for name in rows)
    assert correlation(rows) == pytest.approx(sum(x * y) / math.sqrt(sum(x * x) * sum(y * y)))
    assert math.isnan(correlation(rows.iloc[:2]))
    assert math.isnan(correlation(rows.assign(auroc=0.5)))


# --- ranks ---------------------------------------------------------------------------------------------------------


def test_dots_of_differences_are_those_of_the_tables(drawn: Results, measures: Measures) -> None:
    tables = {block.name: block for block in ranking_section(drawn, measures).blocks if isinstance(block, Table)}
    (chart,) = (c for c in rank_charts(tables.values(), "Data: mine") if c.name == "behind-the-best")
    assert chart.document is not None
    shown = 0
    for one in chart.document["series"]:
        frame = tables[f"differences-{one['keys']['kind']}"].frame
        for place, *found in zip(one["y"], one["x"], one["low"], one["high"], strict=True):
            algorithm, training = chart.document["y"]["names"][place].split(", ")
            own = (frame["algorithm"] == algorithm) & (frame["training"] == training)
            ((_, row),) = frame[own & (frame["protocol"] == one["keys"]["protocol"])].iterrows()
            assert row["told"] == one["keys"]["told"]
            assert found == rounded([row["lacking"], row["lacking_low"], row["lacking_high"]])
            shown += 1
    assert shown == sum(len(tables[f"differences-{kind}"].frame) for kind in KINDS)
    assert set(chart.files) == {"behind-the-best-unknown", "behind-the-best-negative"}


def test_bars_of_ranks_are_as_wide_as_the_critical_difference() -> None:
    """So that two of them touch if and only if their methods cannot be told apart; none where all are equal."""
    frame = pd.DataFrame({"algorithm": ["MSS", "EVM", "MLS"], "mean_rank": [1.25, 2.0, 2.75]})
    frame = frame.assign(told=["best", "cannot be told", "worse"], critical_difference=1.0)
    found = rank_charts([Table(name="ranks-systems-unknown", title="", frame=frame, columns=())], "Data: mine")
    (document,) = (chart.document for chart in found)
    assert document is not None
    names = document["y"]["names"]
    ends = {names[one["y"][0]]: (one["low"][0], one["high"][0]) for one in document["series"]}
    assert ends == {"MSS": (0.75, 1.75), "EVM": (1.5, 2.5), "MLS": (2.25, 3.25)}
    assert names[::-1] == ["MSS", "EVM", "MLS"]
    blind = Table(name="ranks-systems-unknown", title="", frame=frame.assign(critical_difference=math.inf), columns=())
    ((document,),) = ([chart.document for chart in rank_charts([blind], "")],)
    assert document is not None
    assert all(one["low"] == [None] for one in document["series"])


# --- settings ------------------------------------------------------------------------------------------------------


def test_maps_hold_the_best_over_the_others(drawn: Results) -> None:
    """Each number is the largest sum of the trials that have the two values, found trial by trial."""
    checked = 0
    for chart in heat_charts(drawn):
        algorithm = chart.name.removeprefix("settings-")
        for one in chart.document["series"]:  # type: ignore[index]
            (search,) = (
                search
                for search in drawn.searches
                if (search.algorithm, search.origin.protocol, search.origin.training, str(search.origin.seed))
                == (algorithm, *(one["keys"][name] for name in ("protocol", "training", "seed")))
            )
            across, up = (name.replace(" ", "_") for name in one["axes"])
            name, _, value = one["keys"]["facet"].rpartition(" ")
            for j, level in enumerate(one["y"]):
                for i, column in enumerate(one["x"]):
                    best = math.nan
                    for _, trial in search.trials.iterrows():
                        same = f"{trial[across]:g}" == column and (not up or f"{trial[up]:g}" == level)
                        if one["keys"]["form"] == "each":
                            same = same and f"{trial[name.replace(' ', '_')]:g}" == value
                        if same and not best >= trial["sum"]:
                            best = trial["sum"]
                    assert one["z"][j][i] == rounded([best], 4)[0]
                    checked += 1
    assert checked > 20


def test_maps_of_each_value_stand_in_the_order_of_values(drawn: Results) -> None:
    (chart,) = (chart for chart in heat_charts(drawn) if chart.name == "settings-openmax")
    assert chart.document is not None
    named = [facet.rsplit(" ", 1) for facet in chart.document["keys"]["facet"]["values"]]
    tails = [value for name, value in named if name == "tail size"]
    assert tails == ["5", "20"]


def test_the_best_setting_is_framed(drawn: Results) -> None:
    for chart in heat_charts(drawn):
        for one in chart.document["series"]:  # type: ignore[index]
            marked = [(i, j) for i, j, text, _ in one["marks"] if text == "best setting"]
            if one["keys"]["form"] == "best":
                ((i, j),) = marked
                assert one["z"][j][i] == max(value for row in one["z"] for value in row if value is not None)


def test_lines_pass_through_their_values(drawn: Results) -> None:
    for one in series_of(line_charts(drawn)):
        assert len(one["lines"]) == len(one["values"]) == len(one["names"])
        best = max(range(len(one["values"])), key=lambda i: one["values"][i])
        assert one["lines"][best][-1] == 1
        for line, name in zip(one["lines"], one["names"], strict=True):
            for axis, share, part in zip(one["axes"], line, name.split(", "), strict=False):
                ticks = {text: place for place, text in axis["ticks"]}
                assert ticks[part.rpartition(" ")[2]] == pytest.approx(share, abs=1e-3)
                assert part.startswith(axis["label"])


# --- the rest ------------------------------------------------------------------------------------------------------


def test_confidence_is_the_logs(drawn: Results) -> None:
    found = series_of(epoch_charts(drawn))
    trained = [network for network in drawn.networks if network.stage == "train"]
    assert len(found) == 3 * len(trained)
    first = trained[0]
    (one,) = (
        one
        for one in found
        if (one["keys"]["protocol"], one["keys"]["training"], one["keys"]["seed"], one["keys"]["measure"])
        == (first.origin.protocol, first.origin.training, str(first.origin.seed), "gamma_plus")
    )
    assert one["y"] == rounded(first.epochs["gamma_plus"])


def test_bars_add_up_to_all_that_a_cell_stands_on(chosen: Results) -> None:
    (chart,) = cost_charts(chosen)
    assert chart.document is not None
    names = chart.document["y"]["names"]
    assert len(names) == len({(cell.origin.training, cell.algorithm) for cell in chosen.cells})
    cell = next(cell for cell in chosen.cells if cell.search is not None)
    seconds = cell.seconds
    waiting = [work for work in chosen.work if work.folder == cell.folder]
    stages = {"scores"}
    while waiting:
        inputs = waiting.pop().inputs.values()
        for work in chosen.work:
            if work.protocol == cell.origin.protocol and work.fingerprint in inputs and work.stage not in stages:
                stages.add(work.stage)
                waiting.append(work)
                seconds += work.seconds if work.stage not in ("samples", "images", "beton") else 0
    row = [text for text in names if text.lower() == f"{cell.algorithm}, {cell.origin.training}"]
    place = names.index(row[0])
    own = [
        (base, value)
        for one in chart.document["series"]
        if (one["keys"]["unit"], one["keys"]["protocol"], one["keys"]["seed"])
        == ("seconds", cell.origin.protocol, str(cell.origin.seed))
        for base, value, y in zip(one["base"], one["x"], one["y"], strict=True)
        if y == place
    ]
    assert sum(value for _, value in own) == pytest.approx(seconds, rel=1e-3)
    ends = sorted(own)
    for (base, value), (following, _) in itertools.pairwise(ends):
        assert base + value == pytest.approx(following, rel=1e-3)


@pytest.mark.parametrize("name", ["p1", "p2", "p3"])
def test_the_map_holds_every_class_below_its_group(name: str) -> None:
    protocol = published_protocol(name)
    roles = {role: tuple(member.wnid for member in protocol.role(role)) for role in ROLES}
    nodes = class_tree(roles)
    tree = load_tree()
    rim = [node for node in nodes if node.is_class]
    assert Counter((tree[w].name, role) for role in ROLES for w in roles[role]) == Counter(
        (n.name, n.role) for n in rim
    )
    assert sorted(node.place for node in rim) == [i / len(rim) for i in range(len(rim))]
    assert nodes[0].classes == len(protocol.classes)
    assert nodes[0].parent is None
    for number, node in enumerate(nodes[1:], start=1):
        assert node.parent is not None
        above = nodes[node.parent]
        assert node.parent < number
        assert above.depth == node.depth - 1
        assert above.classes > node.classes
        if above.role:
            assert node.role == above.role


def test_files_show_what_there_is_where_protocols_have_other_networks() -> None:
    """The first network of all need not be one of each protocol's."""

    def curve(protocol: str, network: str) -> dict[str, Any]:
        keys = {"protocol": protocol, "network": network}
        return {"keys": keys, "mark": "line", "x": [0.0, 1.0], "y": [0.0, 1.0]}

    axis = {"label": "x", "scales": {"linear": [0, 1]}}
    document = make_document(
        "xy",
        [curve("p1", "a"), curve("p2", "b"), curve("p2", "c")],
        choose=("network", "protocol"),
        arrangements=[("alone", ("protocol",), "network", None)],
        x=axis,
        y=axis,
    )
    chart = chart_of("some", "Some", document, apart=("protocol",))
    assert set(chart.files) == {"some-p1", "some-p2"}
    for draw in chart.files.values():
        (axes,) = draw().axes
        assert len(axes.get_lines()) == 1
