"""Who can be told from the best: mean ranks with critical differences, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pandas as pd

from oscbench.report.blocks import HIGH, LOW, Block, Chart, Table
from oscbench.report.charts.base import NAMES, Series, chart_of, make_document, rounded

_TOLD: Final = {"best": "the best", "cannot be told": "cannot be told from it", "worse": "worse"}
_COLOURS: Final = {"best": 2, "cannot be told": 1, "worse": 3}
_KINDS: Final = ("unknown", "negative")

_RANK_NOTE: Final = (
    "Mean rank of the sum of CCR, 1 is the best. Bars are as wide as Nemenyi's critical difference: two methods whose "
    "bars do not touch differ; without bars, Friedman's test sees no difference at all."
)
_BEHIND_NOTE: Final = (
    "What the sum of CCR lacks of the best of the protocol, with simultaneous 95 % intervals; where one holds 0, the "
    "order may be noise."
)


def rank_charts(blocks: Iterable[Block], heading: str) -> list[Chart]:
    """Figures of the tables of ranks and of differences."""
    tables = [block for block in blocks if isinstance(block, Table)]
    found = [
        _ranks("post-processors", "Post-processors ranked", tables, heading),
        _ranks("systems", "Systems ranked", tables, heading),
        _behind(tables, heading),
    ]
    return [chart for chart in found if chart is not None]


def _of(tables: Sequence[Table], prefix: str) -> dict[str, pd.DataFrame]:
    """Frames by kind."""
    by_name = {table.name: table.frame for table in tables}
    return {kind: by_name[f"{prefix}-{kind}"] for kind in _KINDS if f"{prefix}-{kind}" in by_name}


def _ranks(design: str, title: str, tables: Sequence[Table], heading: str) -> Chart | None:
    frames = {kind: frame.assign(row=_rows(frame)) for kind, frame in _of(tables, f"ranks-{design}").items()}
    series = [
        _dots(rows, {"kind": kind, "told": str(told)}, "mean_rank", rows["critical_difference"] / 2)
        for kind, frame in frames.items()
        for told, rows in frame.groupby("told", sort=False)
    ]
    label = "mean rank"
    return _chart(f"ranks-{design}", title, series, list(frames.values()), label, _RANK_NOTE, heading, ())


def _behind(tables: Sequence[Table], heading: str) -> Chart | None:
    frames = {kind: frame.assign(row=_rows(frame)) for kind, frame in _of(tables, "differences").items()}
    series = [
        _dots(rows, {"kind": kind, "protocol": str(protocol), "told": str(told)}, "lacking", None)
        for kind, frame in frames.items()
        for (protocol, told), rows in frame.groupby(["protocol", "told"], sort=False)
    ]
    title = "Behind the best of each protocol"
    ordered = [frame.sort_values("lacking", kind="stable") for frame in frames.values()]
    return _chart("behind-the-best", title, series, ordered, "Σ behind the best", _BEHIND_NOTE, heading, ("protocol",))


def _rows(frame: pd.DataFrame) -> list[str]:
    """What each row of a table is about, in words; network and recipe only where they differ."""
    told = [name for name in ("algorithm", "training") if name in frame]
    told += [name for name in ("network", "recipe") if name in frame and frame[name].nunique() > 1]
    return [", ".join(map(str, row)) for row in frame[told].itertuples(index=False)]


def _dots(rows: pd.DataFrame, keys: dict[str, str], value: str, half: pd.Series[float] | None) -> Series:
    low = rows[value] - half if half is not None else rows[value + LOW]
    high = rows[value] + half if half is not None else rows[value + HIGH]
    return {
        "keys": keys,
        "mark": "dot",
        "x": rounded(rows[value]),
        "low": rounded(low),
        "high": rounded(high),
        "names": list(rows["row"]),
    }


def _chart(
    name: str,
    title: str,
    series: list[Series],
    frames: Sequence[pd.DataFrame],
    label: str,
    note: str,
    heading: str,
    panels: Sequence[str],
) -> Chart | None:
    """Rows in the order of the first table, the best on top."""
    if not series:
        return None
    names = list(dict.fromkeys(row for frame in frames for row in frame["row"]))[::-1]
    place = {row: number for number, row in enumerate(names)}
    for one in series:
        one["y"] = [place[row] for row in one.pop("names")]
    document = make_document(
        "xy",
        series,
        choose=("kind",),
        arrangements=(("protocol" if panels else "kind", tuple(panels), "told", None),),
        names={**NAMES, "told": "interval"},
        values={
            "kind": {"unknown": "test unknowns", "negative": "test negatives"},
            "told": _TOLD,
        },
        styles=_COLOURS,
        wide=30,
        x={"label": label, "scales": {"linear": None}},
        y={"label": "", "scales": {"linear": [-0.6, len(names) - 0.4]}, "names": names},
    )
    return chart_of(name, title, document, note=note, heading=heading, apart=("kind",))
