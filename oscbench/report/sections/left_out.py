"""What is not in the tables, and why: damaged folders, and cells that another one of the same system stands for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from oscbench.report.blocks import Column, Section, Table
from oscbench.report.measures import Measures
from oscbench.report.results import Cell, Results


def left_out_section(results: Results, measures: Measures) -> Section:
    """Every folder that was left out, with its reason."""
    rows = [{"folder": path.relative_to(results.runs).as_posix(), "reason": why} for path, why in results.left_out]
    rows += _not_shown(measures)
    if not rows:
        return Section(
            name="left-out", title="Left out", blocks=(), text="Everything that is finished is in the tables."
        )
    frame = pd.DataFrame(rows, columns=["folder", "reason"])
    columns = (Column(key="folder", title="Folder"), Column(key="reason", title="Why it is left out"))
    return Section(
        name="left-out",
        title="Left out",
        blocks=(Table(name="left-out", title="What was left out, and why", frame=frame, columns=columns),),
    )


def _not_shown(measures: Measures) -> list[dict[str, Any]]:
    """Cells for which another one of the same network and post-processor stands."""
    shown: dict[tuple[Any, ...], Cell] = {}
    others: dict[Cell, str] = {}
    for cell, row in zip(measures.cells, measures.frame.to_dict("records"), strict=True):
        if row["preferred"]:
            shown[(*cell.system, cell.origin.seed)] = cell
        else:
            others[cell] = row["folder"]
    rows = []
    for cell, folder in others.items():
        other = shown.get((*cell.system, cell.origin.seed))
        if cell.origin.at_best_epoch:
            reason = "network of the best epoch: in the table of confidences alone"
        else:
            reason = f"{_how(cell)}; {other.folder.name if other else 'another cell'} is shown instead"
            reason += f": {_how(other)}" if other is not None and _how(other) != _how(cell) else ", which is newer"
        rows.append({"folder": folder, "reason": reason})
    return rows


def _how(cell: Cell) -> str:
    chosen = f"best by the {cell.ccr_rule} rule" if cell.ccr_rule else "a given setting"
    return f"{chosen}, {cell.score_kind} score"
