"""How scores are distributed: of the correct class for knowns, as the papers draw them, or the highest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray
from oscbench.report.blocks import Chart
from oscbench.report.charts.base import Series, chart_of, heading_of, make_document, origin_keys, rounded
from oscbench.report.results import Cell, Results
from oscbench.scores import ScoreSet

BINS: Final = 30
_FORMS: Final = {"correct": "score of the correct class", "highest": "highest score"}
_STYLES: Final = {"known": 0, "negative": 1, "unknown": 3}
"""Colours of the roles, everywhere the same."""
_MANY: Final = 200
_LOGARITHMIC: Final = "log"

NOTE = (
    "Samples in 30 common bins: of knowns the score of the correct class or the highest one, of negatives and unknowns "
    "the highest one. Logarithms of probabilities crowd below 0 and are drawn as \u2212log10(\u2212score), which grows "
    "with the score; the outermost half percent stands in the outer bins."
)


def score_charts(results: Results) -> list[Chart]:
    """One figure with all distributions; a method without a number per class has only its highest score."""
    series = [
        one for cell in results.cells for split in _shown(cell, results) for one in _of(cell, split, cell.splits[split])
    ]
    if not series:
        return []
    document = make_document(
        "xy",
        series,
        choose=("protocol", "form", "split", "seed", "network"),
        arrangements=(
            ("training and algorithm", ("training", "algorithm"), "role", None),
            ("algorithm and role", ("algorithm", "role"), "training", None),
        ),
        names={
            "protocol": "protocol",
            "form": "of knowns",
            "split": "split",
            "seed": "seed",
            "network": "network",
            "training": "training",
            "algorithm": "algorithm",
            "role": "samples",
        },
        values={
            "form": _FORMS,
            "split": {"test": "test", "val": "validation"},
            "role": {name: name for name in _STYLES},
        },
        styles=_STYLES,
        x={"label": "score", "scales": {"linear": None}},
        y={"label": "samples", "scales": {"linear": None}},
    )
    apart = ("protocol", "form")
    return [chart_of("scores", "Score distributions", document, note=NOTE, heading=heading_of(results), apart=apart)]


def _shown(cell: Cell, results: Results) -> list[str]:
    """Its splits; of very many cells the test alone, or the page grows too large."""
    splits = list(cell.splits)
    return ["test"] if len(results.cells) > _MANY and "test" in splits else splits


def _of(cell: Cell, split: str, scores: ScoreSet) -> list[Series]:
    keys = origin_keys(cell.origin) | {"algorithm": cell.algorithm, "split": split}
    found: list[Series] = []
    for form in _FORMS:
        values = values_of(scores, form)
        if values is None:
            continue
        if cell.score_kind == _LOGARITHMIC and all(np.all(part <= 0) for part in values.values()):
            values = {role: spread(part) for role, part in values.items()}
        edges, counts = histogram(values)
        for role, heights in counts.items():
            more = {"form": form, "role": role}
            found.append({"keys": keys | more, "mark": "stairs", "x": rounded(edges), "y": rounded(heights)})
    return found


def values_of(scores: ScoreSet, form: str) -> dict[str, FloatArray] | None:
    """Scores by role; ``None`` where there is no score of the correct class."""
    labels = scores.labels
    known = labels >= 0
    found = {"negative": scores.score[labels == NEGATIVE], "unknown": scores.score[labels == UNKNOWN]}
    if form == next(iter(_FORMS)):
        if scores.scores is None:
            return None
        rows = np.flatnonzero(known)
        found = {"known": scores.scores[rows, labels[rows]], **found}
    else:
        found = {"known": scores.score[known], **found}
    return {role: np.asarray(part) for role, part in found.items() if len(part)}


def histogram(values: Mapping[str, FloatArray]) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Edges of the common bins, and what each role has in them; what lies outside counts in the outer ones."""
    low, high = np.quantile(np.concatenate(list(values.values())), [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    counts = {role: np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0] for role, part in values.items()}
    return edges, counts


def spread(log_scores: FloatArray) -> FloatArray:
    """-log10(-score), an exact 0 standing at the smallest number above it."""
    found: FloatArray = -np.log10(np.maximum(-log_scores.astype(np.float64), np.finfo(np.float64).tiny))
    return found
