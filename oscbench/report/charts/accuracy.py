"""Whether a good closed-set classifier is a good open-set one: accuracy against AUROC, a dot for each cell."""

from __future__ import annotations

import math

import pandas as pd

from oscbench.report.blocks import Chart
from oscbench.report.charts.base import chart_of, heading_of, label_of, make_document, origin_keys, rounded
from oscbench.report.measures import Measures
from oscbench.report.results import Results


def accuracy_charts(results: Results, measures: Measures) -> list[Chart]:
    """One figure with its correlations; nothing without negatives or unknowns."""
    shown = [number for number, own in enumerate(measures.frame["preferred"]) if own]
    if not shown:
        return []
    found = measures.frame.iloc[shown]
    cells = [measures.cells[number] for number in shown]
    table = pd.DataFrame([origin_keys(cell.origin) | {"algorithm": cell.algorithm} for cell in cells])
    for name in ("split", "kind", "accuracy", "auroc"):
        table[name] = found[name].to_numpy()
    keys = [name for name in table if name not in ("accuracy", "auroc")]
    series = [
        {
            "keys": {name: row[name] for name in keys},
            "mark": "dot",
            "x": rounded([row["accuracy"]]),
            "y": rounded([row["auroc"]]),
        }
        for row in table.to_dict("records")
    ]
    document = make_document(
        "xy",
        series,
        choose=("split", "network"),
        arrangements=(
            ("protocol and kind", ("protocol", "kind"), "algorithm", "training"),
            ("kind", ("kind",), "algorithm", "protocol"),
            ("training and kind", ("training", "kind"), "algorithm", "protocol"),
        ),
        values={"split": {"test": "test", "val": "validation"}},
        x={"label": "closed-set accuracy", "scales": {"linear": None}},
        y={"label": "AUROC", "scales": {"linear": None}},
    )
    note = f"A dot for each cell and seed. {_correlations(table)}"
    title = "Accuracy against open-set AUROC"
    return [chart_of("accuracy-auroc", title, document, note=note, heading=heading_of(results))]


def _correlations(table: pd.DataFrame) -> str:
    """Pearson's r on the test, or what there is, of each protocol and kind."""
    split = "test" if (table["split"] == "test").any() else str(table["split"].iloc[0])
    parts = []
    for (protocol, kind), rows in table[table["split"] == split].groupby(["protocol", "kind"], sort=False):
        found = correlation(rows)
        if not math.isnan(found):
            named = f"{label_of('protocol', str(protocol))} {label_of('kind', str(kind))}"
            parts.append(f"{named} {found:.2f} ({len(rows)} dots)")
    if not parts:
        return "Too few of them differ for a correlation."
    return f"Correlation (Pearson's r, {split}): {'; '.join(parts)}."


def correlation(rows: pd.DataFrame) -> float:
    """Pearson's r of accuracy and AUROC; NaN for fewer than three dots or where either is the same throughout."""
    if len(rows) < 3 or rows["accuracy"].nunique() < 2 or rows["auroc"].nunique() < 2:
        return math.nan
    return float(rows["accuracy"].corr(rows["auroc"]))
