"""What every system reaches on the test images, in the layout of the evaluation paper's Table 2."""

from __future__ import annotations

from typing import Final

import pandas as pd

from oscbench.report.blocks import HIGH, LOW, STD, Section, Table
from oscbench.report.measures import SYSTEM, Measures
from oscbench.report.results import Results
from oscbench.report.sections.base import (
    KIND_TITLES,
    NETWORK,
    RATE_TITLES,
    figure_columns,
    in_order,
    marks_of_best,
    name_columns,
    named,
)

_FIGURES: Final = {"auroc": "AUROC"} | {name: title for name, title in RATE_TITLES.items() if name != "ccr_1"}
_TITLES: Final = {
    f"{kind}_{name}": f"{title}, {against}" for kind, against in KIND_TITLES.items() for name, title in _FIGURES.items()
} | {"accuracy": "Accuracy"}
_VIEWS: Final = {
    "test-results": ("Test results", ("protocol", "algorithm", "training"), ("protocol",), "of a protocol"),
    "test-results-by-algorithm": (
        "Test results, trainings compared",
        ("algorithm", "protocol", "training"),
        ("protocol", "algorithm"),
        "of a protocol and post-processor",
    ),
    "test-results-by-training": (
        "Test results, post-processors compared",
        ("training", "protocol", "algorithm"),
        ("protocol", "training"),
        "of a protocol and training",
    ),
}
"""By name: title, the order of rows, the rows among which figures are compared, and those in words."""


def rates_section(results: Results, measures: Measures) -> Section:
    """AUROC and CCR against negatives and unknowns, and accuracy, of every system on the test images."""
    frame = _by_system(measures.summary)
    if frame.empty:
        return Section(name="test", title="Test results", blocks=(), text="No cell has test images.")
    tables = tuple(_table(frame, measures, name) for name in _VIEWS)
    return Section(name="test", title="Test results", blocks=tables)


def _table(frame: pd.DataFrame, measures: Measures, name: str) -> Table:
    title, order, within, words = _VIEWS[name]
    frame = in_order(frame, [*order, *NETWORK])
    note = f"Marked: best, second and third {words}. {measures.note}"
    return Table(
        name=name,
        title=title,
        frame=named(frame),
        columns=(*name_columns(frame, [*order, *NETWORK, "seeds"]), *figure_columns(_TITLES)),
        note=note,
        marks=marks_of_best(frame, _TITLES, within),
        folded=name != next(iter(_VIEWS)),
    )


def _by_system(summary: pd.DataFrame) -> pd.DataFrame:
    """A row for each system, its figures against both kinds of samples side by side."""
    test = summary[summary["split"] == "test"]
    keys = [*SYSTEM, "seeds"]
    shared = ["accuracy" + end for end in ("", STD, LOW, HIGH)]
    parts = [test.drop_duplicates(keys)[[*keys, "n_seeds", "score_kind", "n_known", *shared]].set_index(keys)]
    for kind in KIND_TITLES:
        own = [name + end for name in _FIGURES for end in ("", STD, LOW, HIGH)]
        found = test[test["kind"] == kind].set_index(keys)[["n", *own]]
        parts.append(found.add_prefix(f"{kind}_"))
    return pd.concat(parts, axis=1).reset_index()
