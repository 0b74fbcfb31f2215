"""What cells cost: seconds, CPU hours and GPU hours, of their own and of what they share with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from oscbench.progress import duration
from oscbench.report.blocks import Column, Facts, Section, Table
from oscbench.report.measures import Measures
from oscbench.report.results import Cell, Results, Work
from oscbench.report.sections.base import NETWORK, in_order, name_columns, named

_ORDER: Final = ("protocol", "algorithm", "training", *NETWORK, "seed")
_OWN: Final = ("tune", "scores")
_SHARED: Final = ("train", "features")
_NESTED: Final = ("finetune", "finetune-shared")
"""Networks that a search trains as its trials: their seconds are in the search's already."""

_TITLES: Final = {
    "tune_seconds": "Search, s",
    "scores_seconds": "Scores, s",
    "train_seconds": "Training, s",
    "features_seconds": "Features, s",
    "shared_by": "Shared by",
    "seconds": "With its share, s",
    "cpu_hours": "CPU h",
    "gpu_hours": "GPU h",
}
_NOTE: Final = (
    "Training and features are made once and serve as many cells as 'shared by' says; seconds and hours of a cell "
    "count its part of them, so that they add up over cells. Searches include the fine-tunings of their trials. "
    "CPU hours are those of the CPUs that a stage could use, busy or not; GPU hours are those of trainings and "
    "fine-tunings."
)


def costs_section(results: Results, measures: Measures) -> Section:
    """A row for each cell, and the total over everything that was made."""
    by_fingerprint = {(work.folder.parent, work.stage, work.fingerprint): work for work in results.work}
    behind = {cell: _behind(cell, results, by_fingerprint) for cell in results.cells}
    rows = [_row(cell, behind, results) for cell in results.cells]
    total = Facts(name="cost-total", rows=_totals(results.work))
    if not rows:
        return Section(name="cost", title="Cost", blocks=(total,))
    frame = in_order(pd.DataFrame(rows).astype({"seed": "Int64"}), _ORDER)
    decimals = {key: 4 if key.endswith("hours") else 1 for key in _TITLES if key != "shared_by"}
    columns = [Column(key=key, title=title, decimals=decimals.get(key)) for key, title in _TITLES.items()]
    table = Table(
        name="cost",
        title="Cost of every cell",
        frame=named(frame),
        columns=(*name_columns(frame, _ORDER), *columns),
        note=_NOTE,
    )
    return Section(name="cost", title="Cost", blocks=(total, table))


def _row(cell: Cell, behind: Mapping[Cell, Mapping[str, Work]], results: Results) -> dict[str, Any]:
    """What a cell took; blank where the record of a stage is gone."""
    found, origin = behind[cell], cell.origin
    row: dict[str, Any] = {name: getattr(origin, name) for name in ("protocol", "training", *NETWORK, "seed")}
    row |= {"algorithm": cell.algorithm, "score_kind": cell.score_kind, "ccr_rule": cell.ccr_rule}
    row |= {f"{stage}_seconds": found[stage].seconds if stage in found else None for stage in (*_OWN, *_SHARED)}
    parts = [(found[stage], 1) for stage in _OWN if stage in found]
    shared = [found[stage] for stage in _SHARED if stage in found]
    parts += [(work, sum(work in other.values() for other in behind.values())) for work in shared]
    row["shared_by"] = max((count for _, count in parts), default=None) if shared else None
    row["seconds"] = sum(work.seconds / count for work, count in parts)
    row["cpu_hours"] = sum(work.seconds * work.cpus / count for work, count in parts) / 3600
    parts += [(work, 1) for work in _tried_by(found.get("tune"), results)]
    row["gpu_hours"] = sum(work.seconds * work.gpus / count for work, count in parts) / 3600
    return row


def _behind(cell: Cell, results: Results, by_fingerprint: Mapping[tuple[Path, str, str], Work]) -> dict[str, Work]:
    """The finished stages that a cell stands on and itself, by name."""
    start = results.work_of(cell.folder)
    waiting, found = [start] if start is not None else [], dict[str, Work]()
    while waiting:
        work = waiting.pop()
        found.setdefault(work.stage, work)
        keys = ((work.folder.parent, role, fingerprint) for role, fingerprint in work.inputs.items())
        waiting += [by_fingerprint[key] for key in keys if key in by_fingerprint]
    return found


def _tried_by(search: Work | None, results: Results) -> Iterator[Work]:
    """The fine-tunings that stand on what a search was made from: its trials, or those of another search there."""
    if search is None or not search.config.get("workers"):
        return
    base = search.inputs.get("train")
    yield from (
        work
        for work in results.work
        if work.stage in _NESTED and work.folder.parent == search.folder.parent and work.inputs.get("train") == base
    )


def _totals(works: Sequence[Work]) -> dict[str, str]:
    """Everything that was made, each stage once."""
    counted = list(_not_nested(works))
    seconds = sum(work.seconds for work in counted)
    by_stage = {name: sum(work.seconds for work in counted if work.stage == name) for name in _names(counted)}
    parts = ", ".join(f"{name} {duration(value)}" for name, value in by_stage.items())
    return {
        "Time of all stages": f"{duration(seconds)} ({parts})",
        "CPU hours": f"{sum(work.seconds * work.cpus for work in counted) / 3600:.3f}",
        "GPU hours": f"{sum(work.seconds * work.gpus for work in works) / 3600:.3f}",
    }


def _names(works: Iterable[Work]) -> list[str]:
    return list(dict.fromkeys(work.stage for work in works))


def _not_nested(works: Sequence[Work]) -> Iterator[Work]:
    """Stages but for those that a search has run as its trials, whose time is in its own."""
    searched = {
        (work.folder.parent, work.inputs.get("train"))
        for work in works
        if work.stage == "tune" and work.config.get("workers")
    }
    nested = {
        work.fingerprint
        for work in works
        if work.stage in _NESTED and (work.folder.parent, work.inputs.get("train")) in searched
    }
    for work in works:
        if not nested & {work.fingerprint, work.inputs.get("train", "")}:
            yield work
