"""Any figure of a report as PNG and PDF, from the document that its page draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from oscbench.report.plots.style import LINES, MARKERS, OKABE_ITO, SETTINGS, draw_grid, legend_columns, set_title

Document = Mapping[str, Any]
Series = Mapping[str, Any]

_SHADES: Final = LinearSegmentedColormap.from_list("shades", ("#eef4f8", "#08507c"))
_MOST_COLUMNS: Final = 6


def chart_figure(
    document: Document, *, title: str, arrangement: int = 0, scale: str | None = None, chosen: Mapping[str, str]
) -> Figure:
    """What a page shows of a document under one arrangement, scale and choice.

    Args:
        document: See ``report.charts``.
        title: Names the data and what is shown.
        arrangement: Its number.
        scale: Of the x axis; default: the first.
        chosen: A value of every key that is chosen from.
    """
    how = document["arrangements"][arrangement]
    shown = [one for one in document["series"] if _is_shown(document, one, chosen)]
    rows, columns, panels = _panels(document, how["panels"], shown)
    wide, high = _panel_size(document, shown)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(max(4.5, wide * columns + 0.5), high * rows + 1.1), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for place, axis in enumerate(axes.flat):
            name, series = panels[place] if place < len(panels) else ("", [])
            if not series:
                axis.set_axis_off()
                continue
            axis.set_title(name, fontsize=8)
            _DRAW[document["kind"]](axis, document, how, series, scale)
        if document["kind"] == "xy":
            _share_labels(axes, document)
        _draw_legend(figure, document, how, shown)
        set_title(figure, title)
    return figure


def _is_shown(document: Document, one: Series, chosen: Mapping[str, str]) -> bool:
    return all(
        chosen.get(key, value) == value and not document["keys"][key]["values"][value]["off"]
        for key, value in one["keys"].items()
    )


def _panels(
    document: Document, apart: Sequence[str], shown: Sequence[Series]
) -> tuple[int, int, list[tuple[str, list[Series]]]]:
    """Rows, columns, and the panels in order, with empty ones where a grid has none."""
    if not apart:
        return 1, 1, [("", list(shown))]
    groups: dict[tuple[str, ...], list[Series]] = {}
    for one in shown:
        groups.setdefault(tuple(one["keys"][key] for key in apart), []).append(one)
    values = {key: list(document["keys"][key]["values"]) for key in apart}
    present = {
        key: [value for value in values[key] if any(value == g[i] for g in groups)] for i, key in enumerate(apart)
    }
    several = [key for key in apart if len(present[key]) > 1]
    down = several[0] if len(several) > 1 else None
    across = math.prod(len(present[key]) for key in several if key != down)
    rows = len(present[down]) if down is not None else 1
    if rows * across > len(groups) * 2 or across > _MOST_COLUMNS:  # a grid of gaps, or too wide
        found = sorted(groups, key=lambda place: [values[k].index(v) for k, v in zip(apart, place, strict=True)])
        columns = min(4, len(found))
        return math.ceil(len(found) / columns), columns, [(_name(document, apart, v), groups[v]) for v in found]
    places = itertools.product(*present.values())
    return rows, across, [(_name(document, apart, place), groups.get(place, [])) for place in places]


def _name(document: Document, apart: Sequence[str], values: Sequence[str]) -> str:
    labels = [document["keys"][key]["values"][value]["label"] for key, value in zip(apart, values, strict=True)]
    return ", ".join(labels)


def _panel_size(document: Document, shown: Sequence[Series]) -> tuple[float, float]:
    """Inches of one panel."""
    if document["kind"] == "parallel":
        return 5.0, 3.0
    if document["kind"] == "heat":
        return 3.4, 0.9 + 0.26 * max((len(one["y"]) for one in shown), default=1)
    names = document["y"].get("names")
    return (4.6, 0.8 + 0.17 * len(names)) if names else (2.7, 2.1)


def _share_labels(axes: Any, document: Document) -> None:
    """Labels stand at the left and at the bottom alone; so do numbers where all panels have the same."""
    alike = {name: all(document[name]["scales"].values()) for name in ("x", "y")}
    for row in axes:
        for axis in row[1:]:
            axis.set_ylabel("")
            axis.tick_params(labelleft=not alike["y"])
    for column in axes.T:
        last = max((i for i, axis in enumerate(column) if axis.axison), default=0)
        for axis in column[:last]:
            axis.set_xlabel("")
            axis.tick_params(labelbottom=not alike["x"])


# --- curves, points, bars and histograms ---------------------------------------------------------------------------


def _draw_xy(axis: Axes, document: Document, how: Document, series: Sequence[Series], scale: str | None) -> None:
    scale = scale or next(iter(document["x"]["scales"]))
    limits = document["x"]["scales"][scale]
    if scale == "log":
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())  # laying out a hundred little ticks takes most of the time
    else:
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for one in series:
        colour, line = (_style(document, how[part], one) for part in ("colour", "line"))
        _MARKS[one["mark"]](axis, one, OKABE_ITO[colour % len(OKABE_ITO)], line % len(LINES), limits)
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_xlabel(document["x"]["label"])
    axis.set_ylabel(document["y"]["label"])
    if limits:
        axis.set_xlim(*limits)
    span = next(iter(document["y"]["scales"].values()))
    if span:
        axis.set_ylim(*span)
    names = document["y"].get("names")
    if names:
        axis.set_yticks(range(len(names)), names, fontsize=7)
    draw_grid(axis, "x" if names else "both")


def _style(document: Document, key: str | None, one: Series) -> int:
    return int(document["keys"][key]["values"][one["keys"][key]]["style"]) if key else 0


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _step(axis: Axes, one: Series, colour: str, line: int, limits: Any) -> None:
    left, right = limits
    x, y = _numbers(one["x"]), _numbers(one["y"])
    x, y = np.append(np.maximum(x, left), right), np.append(y, y[-1])
    axis.plot(x, y, drawstyle="steps-post", color=colour, linestyle=LINES[line], linewidth=1.1)


def _line(axis: Axes, one: Series, colour: str, line: int, limits: Any) -> None:
    x, y = _numbers(one["x"]), _numbers(one["y"])
    axis.plot(x, y, color=colour, linestyle=LINES[line], linewidth=1.2, marker="." if len(x) < 30 else "", markersize=3)


def _stairs(axis: Axes, one: Series, colour: str, line: int, limits: Any) -> None:
    axis.stairs(_numbers(one["y"]), _numbers(one["x"]), color=colour, linestyle=LINES[line], linewidth=1.2)
    axis.stairs(_numbers(one["y"]), _numbers(one["x"]), color=colour, fill=True, alpha=0.1)


def _dot(axis: Axes, one: Series, colour: str, line: int, limits: Any) -> None:
    x, y = _numbers(one["x"]), _numbers(one["y"])
    if "low" in one:
        axis.hlines(y, _numbers(one["low"]), _numbers(one["high"]), color=colour, linewidth=1.0)
    face = "white" if one.get("hollow") else colour
    axis.plot(x, y, MARKERS[line], color=colour, markerfacecolor=face, markersize=4, linestyle="none")


def _bar(axis: Axes, one: Series, colour: str, line: int, limits: Any) -> None:
    left = _numbers(one["base"]) if "base" in one else 0.0
    axis.barh(_numbers(one["y"]), _numbers(one["x"]), left=left, height=0.72, color=colour)


_MARKS: Final = {"step": _step, "line": _line, "stairs": _stairs, "dot": _dot, "bar": _bar}


def _draw_legend(figure: Figure, document: Document, how: Document, shown: Sequence[Series]) -> None:
    """What colours and lines stand for, where there are several."""
    if document["kind"] != "xy":
        return
    marks = {one["mark"] for one in shown}
    colour, line = how["colour"], how["line"]
    handles, labels = [], []
    for key, is_colour in ((colour, True), (line, False)):
        found = {one["keys"][key] for one in shown} if key else set()
        if len(found) < 2:
            continue
        for value, entry in document["keys"][key]["values"].items():
            if value in found:
                handles.append(_handle(int(entry["style"]), marks, is_colour=is_colour))
                named = entry["label"]
                labels.append(f"{document['keys'][key]['label']} {named}" if named.isdigit() else named)
    if handles:
        columns = legend_columns(labels, figure.get_figwidth())
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _handle(style: int, marks: set[str], *, is_colour: bool) -> Line2D:
    shade = OKABE_ITO[style % len(OKABE_ITO)] if is_colour else "0.3"
    if "dot" in marks:
        marker = "o" if is_colour else MARKERS[style % len(MARKERS)]
        return Line2D([], [], color=shade, marker=marker, linestyle="none", markersize=5)
    dash: Any = "-" if is_colour else LINES[style % len(LINES)]
    return Line2D([], [], color=shade, linestyle=dash, linewidth=6 if "bar" in marks else 1.6)


# --- settings ------------------------------------------------------------------------------------------------------


def _draw_heat(axis: Axes, document: Document, how: Document, series: Sequence[Series], scale: str | None) -> None:
    (one,) = series[:1]
    values = np.array([_numbers(row) for row in one["z"]])
    low, high = one["range"]
    axis.imshow(values, cmap=_SHADES, vmin=low, vmax=high, aspect="auto", origin="lower", interpolation="nearest")
    for (j, i), value in np.ndenumerate(values):
        if not math.isnan(value) and len(one["x"]) <= 12:
            shade = "white" if high > low and (value - low) / (high - low) > 0.55 else "black"
            axis.text(i, j, f"{value:.2f}", ha="center", va="center", fontsize=6, color=shade)
    for i, j, _, dashed in one["marks"]:
        line = "--" if dashed else "-"
        frame = Rectangle((i - 0.47, j - 0.47), 0.94, 0.94, fill=False, edgecolor=OKABE_ITO[3], linestyle=line)
        frame.set_linewidth(1.4)
        axis.add_patch(frame)
    axis.set_xticks(range(len(one["x"])), one["x"], fontsize=7)
    axis.set_yticks(range(len(one["y"])), one["y"], fontsize=7)
    axis.set_xlabel(one["axes"][0])
    axis.set_ylabel(one["axes"][1])


def _draw_parallel(axis: Axes, document: Document, how: Document, series: Sequence[Series], scale: str | None) -> None:
    (one,) = series[:1]
    low, high = one["range"]
    order = np.argsort(_numbers(one["values"]), kind="stable")
    for number in order:
        share = (one["values"][number] - low) / (high - low) if high > low else 1.0
        best = number == order[-1]
        axis.plot(one["lines"][number], color=_SHADES(0.15 + 0.85 * share), linewidth=2.2 if best else 0.8)
    for place, part in enumerate(one["axes"]):
        axis.axvline(place, color="0.4", linewidth=0.8)
        for share, name in part["ticks"]:
            axis.text(place + 0.03, share, name, fontsize=6.5, va="center", bbox=_BEHIND_TEXT)
    axis.set_xticks(range(len(one["axes"])), [part["label"] for part in one["axes"]], fontsize=7)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlim(-0.1, len(one["axes"]) - 1 + 0.35)


_BEHIND_TEXT: Final[dict[str, Any]] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.6, "pad": 0.6}
_DRAW: Final = {"xy": _draw_xy, "heat": _draw_heat, "parallel": _draw_parallel}
