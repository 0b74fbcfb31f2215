"""What the tables of all sections share: names of systems, the order of rows, and marks of the best."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import pandas as pd

from oscbench.report.blocks import Column, Mark
from oscbench.report.charts.base import label_of
from oscbench.report.results import ordered

NETWORK: Final = ("network", "recipe")
"""Named only where there are several: two of them are never mixed."""

TITLES: Final = {
    "protocol": "Protocol",
    "training": "Training",
    "algorithm": "Post-processor",
    "network": "Network",
    "recipe": "Recipe",
    "seeds": "Seeds",
    "seed": "Seed",
}
"""What columns that name a system are headed with."""

SYMBOLS: Final = {
    "tail_size": ("λ", "tail size"),
    "distance_multiplier": ("κ", "distance multiplier"),
    "alpha": ("α", "classes revised"),
    "cover_threshold": ("ω", "cover threshold"),
    "dummies": ("B", "dummies"),
}
"""What the papers call hyperparameters, and what they are; others are called as they are."""

RATE_TITLES: Final = {"ccr_1e-3": "CCR@1e-3", "ccr_1e-2": "CCR@1e-2", "ccr_1e-1": "CCR@1e-1", "ccr_1": "CCR@1"}

KIND_TITLES: Final = {"negative": "negatives", "unknown": "unknowns"}

DECIMALS: Final = 3
"""Of figures that have a deviation or an interval beside them."""

PRINTED: Final = 4
"""Of a single trial's rates, as the papers print them."""

_MARKS: Final[tuple[Mark, ...]] = ("best", "second", "third")


def in_order(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The rows sorted by columns, the papers' names first in their order; numbers by value."""
    rows = [tuple(map(_sortable, row)) for row in frame[[*keys]].itertuples(index=False)]
    places = ordered(range(len(rows)), lambda place: rows[place])
    return frame.iloc[places].reset_index(drop=True)


def _sortable(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if pd.isna(value) else f"{value:020.6f}"


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Protocols, trainings and post-processors by the names that people read."""
    named = {
        key: [label_of(key, value) for value in frame[key]]
        for key in ("protocol", "training", "algorithm", "kind")
        if key in frame
    }
    return frame.assign(**named)


def name_columns(frame: pd.DataFrame, keys: Sequence[str]) -> tuple[Column, ...]:
    """Columns that name a row; network, recipe and seeds where rows differ in them."""
    kept = [key for key in keys if key not in (*NETWORK, "seed", "seeds") or frame[key].nunique(dropna=False) > 1]
    return tuple(Column(key=key, title=TITLES[key], choice=key not in ("seed", "seeds")) for key in kept)


def figure_columns(titles: Mapping[str, str], decimals: int = DECIMALS) -> tuple[Column, ...]:
    """Columns of figures by key and title."""
    return tuple(Column(key=key, title=title, decimals=decimals) for key, title in titles.items())


def marks_of_best(
    frame: pd.DataFrame, columns: Iterable[str], within: Sequence[str], want: Literal["largest", "smallest"] = "largest"
) -> dict[tuple[int, str], Mark]:
    """Best, second and third of each column among the rows that agree in ``within``; equal figures share a mark.

    Of n figures at most n - 1 are marked: what is left after the best of two stands out by itself.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(frame[[*within]].itertuples(index=False)):
        groups.setdefault(tuple(key), []).append(row)
    marks: dict[tuple[int, str], Mark] = {}
    for column in columns:
        values = frame[column].to_numpy(float)
        for rows in groups.values():
            reached = [row for row in rows if values[row] == values[row]]
            places = sorted({values[row] for row in reached}, reverse=want == "largest")
            given = dict(zip(places, _MARKS[: len(reached) - 1], strict=False))
            marks |= {(row, column): given[values[row]] for row in reached if values[row] in given}
    return marks
