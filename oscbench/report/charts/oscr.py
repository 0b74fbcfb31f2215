"""OSCR curves of all cells: per protocol, kind and training; all in one; and by training with protocols compared."""

from __future__ import annotations

import math

import numpy as np

from oscbench.labels import BoolArray, FloatArray
from oscbench.metrics import FPRS, OscrCurve, oscr_curve
from oscbench.metrics.oscr import step_points
from oscbench.report.blocks import Chart
from oscbench.report.charts.base import KINDS, Series, chart_of, heading_of, make_document, origin_keys, rounded
from oscbench.report.results import Results

_PLACES = 200_000
"""Points that all curves of a page may have together: about 4 MB."""
_MOST, _FEWEST = 400, 60

NOTE = (
    "Correct classification rate over false positive rate; up and to the left is better. Each curve stays where it is "
    "between two thresholds; points closer together than a screen shows are left out, those that stay are exact."
)


def oscr_charts(results: Results) -> list[Chart]:
    """One figure with all curves; nothing without scores of negatives or unknowns."""
    series = [_series(*found) for found in _curves(results)]
    if not series:
        return []
    left = min(one.pop("left") for one in series)
    document = make_document(
        "xy",
        series,
        choose=("split", "seed", "network"),
        arrangements=(
            ("protocol, kind and training", ("protocol", "kind", "training"), "algorithm", None),
            ("protocol and kind", ("protocol", "kind"), "algorithm", "training"),
            ("training and kind, protocols compared", ("training", "kind"), "algorithm", "protocol"),
            ("algorithm and kind", ("algorithm", "kind"), "training", "protocol"),
        ),
        values={"split": {"test": "test", "val": "validation"}},
        x={"label": "false positive rate (FPR)", "scales": {"log": [left, 1], "linear": [0, 1]}},
        y={"label": "CCR", "scales": {"linear": [0, 1]}},
    )
    kinds = {"": 0, "all": 1, "protocols": 2}
    files: dict[str, tuple[int, str | None]] = {
        "-".join(filter(None, (end, scale))): (place, scale)
        for end, place in kinds.items()
        for scale in ("log", "linear")
    }
    return [chart_of("oscr", "OSCR curves", document, note=NOTE, heading=heading_of(results), files=files)]


def _curves(results: Results) -> list[tuple[dict[str, str], OscrCurve, int]]:
    found = []
    for cell in results.cells:
        for split, scores in cell.splits.items():
            for kind, label in KINDS.items():
                if np.any(scores.labels == label) and np.any(scores.labels >= 0):
                    keys = origin_keys(cell.origin) | {"algorithm": cell.algorithm, "split": split, "kind": kind}
                    found.append((keys, oscr_curve(scores.labels, scores.predictions, unknown_label=label)))
    most = max(_FEWEST, min(_MOST, _PLACES // max(1, len(found))))
    return [(keys, curve, most) for keys, curve in found]


def _series(keys: dict[str, str], curve: OscrCurve, most: int) -> Series:
    fpr, ccr = step_points(curve)
    kept = kept_points(fpr, most)
    left = float(10.0 ** math.floor(math.log10(min(1.0 / curve.n_unknown, 1e-3))))
    return {"keys": keys, "mark": "step", "x": rounded(fpr[kept], 6), "y": rounded(ccr[kept], 6), "left": left}


def kept_points(fpr: FloatArray, most: int) -> BoolArray:
    """Which of ascending rates a screen can tell apart, on a logarithmic axis of four decades and a linear one.

    What tables are read at is always there: the last rate that is not above 1e-3, 1e-2, 1e-1 and 1. So is the first.
    """
    if len(fpr) <= most:
        return np.ones(len(fpr), np.bool_)
    kept = np.zeros(len(fpr), np.bool_)
    kept[0] = True
    logarithm = np.log10(np.maximum(fpr, 1e-300))
    for places, cells in ((logarithm, (most // 2) / 4), (fpr, most // 2)):
        kept[1:] |= np.diff(np.floor(places * cells)) > 0
    for rate in FPRS:
        kept[max(0, int(np.searchsorted(fpr, rate, side="right")) - 1)] = True
    return kept
