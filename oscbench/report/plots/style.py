"""What all figures share: colours, lines, the title, and files that are written whole.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; line styles
change too, for grey prints, and legends stand below the axes so that fifteen curves stay readable.
"""

from __future__ import annotations

import io
import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Figure  # for those that may not import matplotlib

from oscbench.artifacts import atomic_file

OKABE_ITO: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#B8A800")
"""Blue, orange, green, vermilion, purple, sky blue, black, and a yellow dark enough for white paper."""
LINES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
MARKERS: Final = ("o", "s", "^", "D")
FORMATS: Final = ("png", "pdf")
KIND_STYLES: Final = {"known": ("#0072B2", "-"), "negative": ("#E69F00", LINES[1]), "unknown": ("#D55E00", LINES[2])}
SETTINGS: Final[dict[Any, Any]] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}

# It logs every glyph of a PDF's fonts at the level at which this package reports progress.
logging.getLogger("fontTools").setLevel(logging.WARNING)


class Style(NamedTuple):
    """Colour and line of a curve, by number: say, colour by algorithm and line by training."""

    color: int
    line: int


def curve_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label, all different up to 32 labels.

    Labels of the form ``algorithm, training`` take their colour from the first part and their line from the second;
    others change both from one to the next.
    """
    parts = [label.split(", ", 1) for label in labels]
    if all(len(part) == 2 for part in parts):
        colors = list(dict.fromkeys(first for first, _ in parts))
        lines = list(dict.fromkeys(second for _, second in parts))
        if len(colors) <= len(OKABE_ITO) and len(lines) <= len(LINES):
            return {
                label: Style(colors.index(first), lines.index(second))
                for label, (first, second) in zip(labels, parts, strict=True)
            }
    n = len(OKABE_ITO)
    return {label: Style(i % n, (i + i // n) % len(LINES)) for i, label in enumerate(labels)}


def save_figure(figure: Figure, folder: Path, name: str, *, dpi: int = 160) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf``, each whole or not at all."""
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        with atomic_file(path) as temporary, mpl.rc_context(SETTINGS):
            # no time stamp in the file: equal results give equal files
            metadata = {"CreationDate": None} if path.suffix == ".pdf" else {}
            figure.savefig(temporary, format=path.suffix[1:], dpi=dpi, metadata=metadata)
            figure.set_layout_engine("none")  # laid out for the first file, and that takes longer than drawing
    return paths


def svg_text(figure: Figure) -> str:
    """The figure as SVG; equal figures give equal texts."""
    text = io.StringIO()
    with mpl.rc_context(SETTINGS | {"svg.fonttype": "none", "svg.hashsalt": "oscbench"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def set_title(figure: Figure, title: str) -> None:
    """The title, broken where the figure ends: paths of one's own data are long."""
    width = int(figure.get_figwidth() * 15)  # characters at this size
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in title.splitlines()), fontsize=9)


def legend_columns(labels: Sequence[str], width: float = 8.8) -> int:
    """As many columns as fit below a figure of that width in inches, for the longest label."""
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), int(width * 14.8) // (longest + 8)))


def draw_grid(axis: Axes, which: Literal["both", "x", "y"] = "both") -> None:
    """Faint lines behind what is drawn."""
    axis.grid(axis=which, color="0.88", linewidth=0.6)
    axis.set_axisbelow(True)
