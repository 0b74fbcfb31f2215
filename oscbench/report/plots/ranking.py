"""Who is best, and who cannot be told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oscbench.metrics import Interval
from oscbench.report.plots.style import OKABE_ITO, SETTINGS, draw_grid, set_title
from oscbench.report.ranking import FIGURES, Standing


def ranking_figure(standings: Sequence[Standing], *, title: str) -> Figure:
    """What each method reaches on test unknowns, the best on top, and beside it what it had reached on validation.

    A row per algorithm, a colour per training: a dot with its interval for test unknowns, or what there is instead, a
    ring for validation negatives.
    """
    rows = {name: place for place, name in enumerate(dict.fromkeys(found.algorithm for found in standings))}
    trainings = list(dict.fromkeys(found.training for found in standings))
    with mpl.rc_context(SETTINGS):
        height = 0.12 * len(rows) * (len(trainings) + 0.6) + 1.4
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axis = figure.subplots()
        for found in standings:
            number = trainings.index(found.training)
            place = rows[found.algorithm] + (number - (len(trainings) - 1) / 2) / (len(trainings) + 0.6)
            _draw_standing(axis, found, place, OKABE_ITO[number % len(OKABE_ITO)])
        axis.set_yticks(list(rows.values()), list(rows))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel("sum of CCR at FPR 1e-3, 1e-2, 1e-1 and 1")
        draw_grid(axis, "x")
        labels = [training for training in trainings if training]
        handles = [_key(OKABE_ITO[number % len(OKABE_ITO)]) for number in range(len(labels))]
        handles += [_key("0.3"), _key("0.3", filled=False)]
        dots = dict.fromkeys(FIGURES[found.ranked_by] for found in standings)
        names = [*labels, " or ".join(dots), FIGURES["validation"]]
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        set_title(figure, title)
    return figure


def _draw_standing(axis: Axes, found: Standing, place: float, color: str) -> None:
    ranked: Interval = getattr(found, found.ranked_by)
    if not math.isnan(ranked.low):
        axis.plot([ranked.low, ranked.high], [place, place], color=color, linewidth=1.0)
    axis.plot([found.validation.estimate], [place], "o", markersize=3.5, markerfacecolor="white", color=color)
    axis.plot([ranked.estimate], [place], "o", markersize=3.5, color=color)


def _key(color: str, *, filled: bool = True) -> Line2D:
    face = color if filled else "white"
    return Line2D([], [], color=color, marker="o", markerfacecolor=face, linestyle="none", markersize=4)
