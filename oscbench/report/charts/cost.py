"""What cells cost: seconds, CPU hours and GPU hours of everything behind each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from oscbench.report.blocks import Chart
from oscbench.report.charts.base import (
    NAMES,
    chart_of,
    heading_of,
    label_of,
    make_document,
    origin_keys,
    rounded,
)
from oscbench.report.results import Cell, Results, Work, ordered

_UNITS: Final[dict[str, tuple[str, Callable[[Work], float]]]] = {
    "seconds": ("seconds", lambda work: work.seconds),
    "cpu": ("CPU hours", lambda work: work.seconds * work.cpus / 3600),
    "gpu": ("GPU hours", lambda work: work.seconds * work.gpus / 3600),
}
_STAGES: Final = {
    "train": "training",
    "finetune": "fine-tuning",
    "features": "features",
    "tune": "search",
    "scores": "scores",
}

NOTE = (
    "Everything that a cell stands on, from training to scores; a network and its features serve several cells and "
    "count in each. CPU hours are those of the CPUs that a stage had, busy or not."
)


def cost_charts(results: Results) -> list[Chart]:
    """One figure with a bar for each cell, in parts."""
    by_place = {(work.folder.parent, work.fingerprint): work for work in results.work}
    rows = ordered(
        {(cell.origin.training, cell.algorithm) for cell in results.cells},
        lambda row: row,
    )
    if not rows:
        return []
    bars: dict[tuple[tuple[str, str], ...], list[tuple[float, int, float]]] = {}
    for cell in results.cells:
        place = len(rows) - 1 - rows.index((cell.origin.training, cell.algorithm))
        for unit, (_, amount) in _UNITS.items():
            below = 0.0
            for stage, work in _behind(cell, by_place).items():
                if amount(work):
                    keys = origin_keys(cell.origin) | {"unit": unit, "stage": stage}
                    del keys["training"]  # stands in the name of the row
                    bars.setdefault(tuple(keys.items()), []).append((amount(work), place, below))
                below += amount(work)
    if not bars:
        return []
    series = [
        {
            "keys": dict(keys),
            "mark": "bar",
            "x": rounded(x),
            "y": list(y),
            "base": rounded(base),
            "top": rounded(np.add(x, base)),
        }
        for keys, found in bars.items()
        for x, y, base in [zip(*found, strict=True)]
    ]
    names = [f"{label_of('algorithm', algorithm)}, {label_of('training', training)}" for training, algorithm in rows]
    document = make_document(
        "xy",
        series,
        choose=("unit", "seed", "network"),
        arrangements=(("protocol", ("protocol",), "stage", None),),
        names={**NAMES, "unit": "in", "stage": "stage"},
        values={"unit": {unit: label for unit, (label, _) in _UNITS.items()}, "stage": _STAGES},
        wide=34,
        x={"label": "cost", "scales": {"linear": None}},
        y={"label": "", "scales": {"linear": [-0.5, len(rows) - 0.5]}, "names": names[::-1]},
    )
    return [chart_of("cost", "Cost of every cell", document, note=NOTE, heading=heading_of(results))]


def _behind(cell: Cell, by_place: dict[tuple[Path, str], Work]) -> dict[str, Work]:
    """The finished stages that a cell stands on and itself, by name, in the order of ``_STAGES``."""
    room = cell.folder.parent
    waiting = [work for work in by_place.values() if work.folder == cell.folder]
    found: dict[str, Work] = {}
    while waiting:
        work = waiting.pop()
        found[work.stage] = work
        waiting += [by_place[key] for digits in work.inputs.values() if (key := (room, digits)) in by_place]
    return {stage: found[stage] for stage in _STAGES if stage in found}
