"""OSCR curves: CCR over FPR, one panel or many."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oscbench.metrics import OscrCurve
from oscbench.metrics.oscr import step_points
from oscbench.report.plots.style import (
    LINES,
    OKABE_ITO,
    SETTINGS,
    Style,
    curve_styles,
    draw_grid,
    legend_columns,
    set_title,
)

Scale = Literal["log", "linear"]


def oscr_figure(
    panels: Mapping[str, Mapping[str, OscrCurve]],
    *,
    scale: Scale,
    title: str,
) -> Figure:
    """CCR over FPR, one panel each (say, negatives and unknowns), with one legend for all.

    Args:
        panels: Curves by label, by panel title; a label has the same style in every panel.
        scale: Of the FPR axis. The logarithmic one begins at or below the smallest rate that the samples can show.
        title: Names the data and whatever else the curves have in common.
    """
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    style = curve_styles(labels)
    columns = legend_columns(labels)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(4.2 * max(1, len(panels)) + 0.4, 3.7), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, max(1, len(panels)), sharey=True))
        for axis, (panel, curves) in zip(axes, panels.items(), strict=False):
            left = _left_edge(curves.values()) if scale == "log" else 0.0
            for label, curve in curves.items():
                _draw_curve(axis, curve, label, style[label], left)
            _dress_oscr(axis, panel, scale, left)
        axes[0].set_ylabel("correct classification rate (CCR)")
        set_title(figure, title)
        handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
        figure.legend([handles[n] for n in labels], labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _left_edge(curves: Any) -> float:
    smallest = min((1.0 / curve.n_unknown for curve in curves if curve.n_unknown), default=1e-3)
    return float(10.0 ** math.floor(math.log10(min(smallest, 1e-3))))


def _draw_curve(axis: Axes, curve: OscrCurve, label: str, style: Style, left: float) -> None:
    fpr, ccr = step_points(curve)
    axis.plot(
        np.maximum(fpr, left),
        ccr,
        drawstyle="steps-post",
        label=label,
        color=OKABE_ITO[style.color],
        linestyle=LINES[style.line],
        linewidth=1.4,
    )


def _dress_oscr(axis: Axes, panel: str, scale: Scale, left: float) -> None:
    axis.set_title(panel, fontsize=9)
    axis.set_xlabel("false positive rate (FPR)")
    if scale == "log":
        axis.set_xscale("log")
    axis.set_xlim(left, 1.0)
    axis.set_ylim(0.0, 1.0)
    draw_grid(axis)
