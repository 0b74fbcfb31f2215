"""What each method loses on its way from validation negatives, on which it was chosen, to test unknowns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from oscbench.report.blocks import HIGH, LOW, STD, Section, Table
from oscbench.report.measures import SYSTEM, Measures
from oscbench.report.results import Results
from oscbench.report.sections.base import (
    NETWORK,
    figure_columns,
    in_order,
    marks_of_best,
    name_columns,
    named,
)

_STEPS: Final = {
    "val": ("val", "negative", "val negatives"),
    "test": ("test", "negative", "test negatives"),
    "unknown": ("test", "unknown", "test unknowns"),
}
_FIGURES: Final = {"sum": "Σ", "auroc": "AUROC"}
_TITLES: Final = {
    f"{name}_{step}": f"{title}, {words}"
    for name, title in _FIGURES.items()
    for step, words in [*((step, found[2]) for step, found in _STEPS.items()), ("lost", "lost")]
}
_NOTE: Final = (
    "Σ is the sum of CCR at the four rates. Lost: validation negatives minus test unknowns, seed by seed; the "
    "interval of a single seed joins those of both, which are of different images (square and add). Marked: the "
    "most that was reached in a protocol, and the least that was lost. "
)


def generalisation_section(results: Results, measures: Measures) -> Section:
    """Sums and AUROC on validation negatives, test negatives and test unknowns, and what is lost between the ends."""
    shown = measures.frame[measures.frame["preferred"]]
    own = {(*row[: len(SYSTEM) + 2],): row[-1] for row in _summary_rows(measures)}
    rows = [
        row
        for _, group in shown.groupby([*SYSTEM], sort=False, dropna=False)
        if (row := _row({name: str(group[name].iloc[0]) for name in SYSTEM}, group, own)) is not None
    ]
    if not rows:
        text = "No cell has both validation negatives and test unknowns."
        return Section(name="lost", title="From validation to test", blocks=(), text=text)
    order = ("protocol", "algorithm", "training", *NETWORK)
    frame = in_order(pd.DataFrame(rows), order)
    lost = [f"{name}_lost" for name in _FIGURES]
    marks = marks_of_best(frame, [key for key in _TITLES if key not in lost], ["protocol"])
    table = Table(
        name="generalisation",
        title="What methods lose from validation negatives to test unknowns",
        frame=named(frame),
        columns=(*name_columns(frame, [*order, "seeds"]), *figure_columns(_TITLES)),
        note=_NOTE + measures.note,
        marks=marks | marks_of_best(frame, lost, ["protocol"], want="smallest"),
    )
    return Section(name="lost", title="From validation to test", blocks=(table,))


def _summary_rows(measures: Measures) -> list[tuple[Any, ...]]:
    """Each row of the summary behind its key."""
    return [
        (*(row[name] for name in SYSTEM), row["split"], row["kind"], row) for row in measures.summary.to_dict("records")
    ]


def _row(
    named: dict[str, str], group: pd.DataFrame, summary: Mapping[tuple[Any, ...], dict[str, Any]]
) -> dict[str, Any] | None:
    """The row of a system; ``None`` where an end of the way is missing."""
    system = tuple(named[name] for name in SYSTEM)
    found = {step: summary.get((*system, split, kind)) for step, (split, kind, _) in _STEPS.items()}
    first, last = found["val"], found["unknown"]
    if first is None or last is None:
        return None
    row: dict[str, Any] = named | {"seeds": first["seeds"]}
    for name in _FIGURES:
        for step, part in found.items():
            row |= {
                f"{name}_{step}{end}": math.nan if part is None else part[name + end] for end in ("", STD, LOW, HIGH)
            }
        row |= _lost(name, group, first, last)
    return row


def _lost(name: str, group: pd.DataFrame, first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, float]:
    ends = [
        group[(group["split"] == split) & (group["kind"] == kind)].set_index("seed")[name]
        for split, kind, _ in (_STEPS["val"], _STEPS["unknown"])
    ]
    differences = (ends[0] - ends[1]).to_numpy(float)
    lost = float(differences.mean())
    found = {"": lost, STD: math.nan, LOW: math.nan, HIGH: math.nan}
    if len(differences) > 1:
        found[STD] = float(np.std(differences, ddof=1))
    else:  # the square-and-add interval of a difference of two independent figures (Zou and Donner 2008)
        found[LOW] = lost - math.hypot(first[name] - first[name + LOW], last[name + HIGH] - last[name])
        found[HIGH] = lost + math.hypot(first[name + HIGH] - first[name], last[name] - last[name + LOW])
    return {f"{name}_lost{end}": value for end, value in found.items()}
