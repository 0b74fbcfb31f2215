"""What a report is made of: tables, charts, pictures, sheets of images and facts, in sections.

Blocks hold figures and say how they are to be read; they know neither files nor pages. ``formats.py`` writes tables,
``page/`` shows everything in a browser, ``plots/`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.report.plots.style import Figure

Mark = Literal["best", "second", "third", "holds", "fails", "open"]

STD, LOW, HIGH = "_std", "_low", "_high"
"""What columns beside a figure's end in: its deviation over seeds, and the ends of its interval."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as people see it.

    A figure is followed by its deviation or its interval where the frame has such columns beside it (``ccr_std``;
    ``ccr_low``, ``ccr_high``).

    Attributes:
        key: Of the frame.
        title: Above it.
        decimals: Of a figure; ``None``: whatever is there, as text.
        choice: Whether readers may want to see the rows of one value alone.
    """

    key: str
    title: str
    decimals: int | None = None
    choice: bool = False

    @property
    def numeric(self) -> bool:
        """Whether it holds figures."""
        return self.decimals is not None

    def text(self, row: Mapping[str, Any]) -> str:
        """What stands in a row; empty where there is nothing.

        >>> Column(key="ccr", title="CCR", decimals=2).text({"ccr": 0.5, "ccr_low": 0.41, "ccr_high": 0.6})
        '0.50 [0.41, 0.60]'
        """
        value = row[self.key]
        if value is None or value != value:  # NaN, NaT and pandas' NA of a nullable column
            return ""
        if self.decimals is None:
            return str(value)
        if math.isinf(value):
            return str(value)
        std, low, high = (row.get(self.key + end, math.nan) for end in (STD, LOW, HIGH))
        text = f"{value:.{self.decimals}f}"
        if std == std:
            return f"{text} ± {std:.{self.decimals}f}"
        ends = ("-" if end != end else f"{end:.{self.decimals}f}" for end in (low, high))  # one may be out of reach
        return text if low != low and high != high else f"{text} [{', '.join(ends)}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A table: everything it has goes to the CSV file, ``columns`` to people.

    Attributes:
        name: Of its files, and its place in the page.
        title: Above it.
        frame: A row each; a figure that could not be reached is NaN.
        columns: What people see.
        note: How it is to be read.
        marks: What stands out, by row number and column key.
        folded: Whether the page opens it only when asked.
    """

    name: str
    title: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    note: str = ""
    marks: Mapping[tuple[int, str], Mark] = field(default_factory=dict)
    folded: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """A figure that the page draws from ``document``, and a file from ``figure``.

    Attributes:
        name: Of its files, and its place in the page.
        title: Above it.
        document: Series, axes and arrangements, as ``page/chart.js`` reads them; ``None``: the file is shown instead.
        figure: Draws the same with matplotlib.
        note: How it is to be read.
        files: More files of it by name, where it has several forms.
    """

    name: str
    title: str
    document: dict[str, Any] | None
    figure: Callable[[], Figure] | None
    note: str = ""
    files: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SheetImage:
    """An image of a contact sheet: its bytes (JPEG or PNG) where it could be read, its name, what is said of it."""

    content: bytes | None
    name: str
    said: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """A contact sheet."""

    name: str
    title: str
    images: tuple[SheetImage, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with values, line breaks allowed."""

    name: str
    rows: Mapping[str, str]


Block = Table | Chart | Sheet | Facts


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """Blocks under one heading."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    text: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """All sections on one data set."""

    data: str
    heading: str
    warning: str
    sections: tuple[Section, ...]
