"""The tree of a protocol's classes, drawn round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oscbench.labels import FloatArray
from oscbench.report.charts.class_map import ROLES, Node, named_groups
from oscbench.report.plots.style import KIND_STYLES, SETTINGS, set_title

_MIXED = "0.65"


def class_map_figure(nodes: Sequence[Node], *, title: str) -> Figure:
    """Classes on the rim, each branch in the colour of what lies below it."""
    deepest = max(node.depth for node in nodes)
    n_classes = sum(node.is_class for node in nodes)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(8.6, 8.9), layout="constrained")
        axis = figure.subplots()
        for node in nodes:
            if node.parent is not None:
                arc, ray = _branch(nodes[node.parent], node, deepest)
                axis.plot(*arc, color=_colour(nodes[node.parent]), linewidth=0.8, zorder=1)
                axis.plot(*ray, color=_colour(node), linewidth=0.8 if node.classes > 1 else 0.5, zorder=1)
        for role in ROLES:
            places = np.array([_point(node, deepest) for node in nodes if node.is_class and node.role == role])
            axis.plot(*places.T, "o", markersize=2.2, color=KIND_STYLES[role][0])
        size = 5.5 if n_classes <= 170 else 3.6
        for node in nodes:
            if node.is_class:
                _name(axis, node, deepest, size)
        for node in named_groups(nodes):
            x, y = _point(node, deepest)
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
            axis.text(x, y, node.name, fontsize=7.5, ha="center", va="center", weight="bold", bbox=box, zorder=3)
        axis.set_aspect("equal")
        axis.set_xlim(-1.32, 1.32)
        axis.set_ylim(-1.32, 1.32)
        axis.set_axis_off()
        keys = [Line2D([], [], color=KIND_STYLES[role][0], marker="o", markersize=4) for role in ROLES]
        keys.append(Line2D([], [], color=_MIXED))
        figure.legend(keys, [*ROLES, "of several kinds"], loc="outside lower center", ncols=4, frameon=False)
        set_title(figure, title)
    return figure


def _colour(node: Node) -> str:
    return KIND_STYLES[node.role][0] if node.role else _MIXED


def _radius(node: Node, deepest: int) -> float:
    return 1.0 if node.is_class else 0.93 * math.sqrt(node.depth / deepest)


def _at(radius: float, place: float) -> tuple[float, float]:
    angle = 2 * math.pi * place
    return radius * math.cos(angle), radius * math.sin(angle)


def _point(node: Node, deepest: int) -> tuple[float, float]:
    return _at(_radius(node, deepest), node.place)


def _branch(parent: Node, child: Node, deepest: int) -> tuple[FloatArray, FloatArray]:
    """Along the parent's ring to the child's direction, and from there outwards; each as x and y."""
    inner, outer = _radius(parent, deepest), _radius(child, deepest)
    steps = max(2, int(abs(child.place - parent.place) * 120))
    arc = np.array([_at(inner, place) for place in np.linspace(parent.place, child.place, steps)])
    return arc.T, np.array([arc[-1], _at(outer, child.place)]).T


def _name(axis: mpl.axes.Axes, node: Node, deepest: int, size: float) -> None:
    degrees = 360 * node.place
    left = 90 < degrees < 270
    axis.text(
        *_at(1.025, node.place),
        node.name.replace("_", " ")[:28],
        fontsize=size,
        rotation=degrees + 180 if left else degrees,
        rotation_mode="anchor",
        ha="right" if left else "left",
        va="center",
        color=KIND_STYLES[node.role][0],
    )
