"""Plots of results; the only module that knows matplotlib.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; line styles
change too, for grey prints, and legends stand below the axes so that fifteen curves stay readable.
"""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oscbench.artifacts import atomic_file
from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray, IntArray
from oscbench.metrics import Interval, OpenSetConfusion, OscrCurve
from oscbench.report.ranking import FIGURES, Standing
from oscbench.scores import ScoreSet

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#B8A800")
"""Blue, orange, green, vermilion, purple, sky blue, black, and a yellow dark enough for white paper."""
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
FORMATS = ("png", "pdf")
KIND_STYLES = {"known": ("#0072B2", "-"), "negative": ("#E69F00", LINES[1]), "unknown": ("#D55E00", LINES[2])}

_MOST_CLASS_NAMES = 45  # more would not be legible
_SETTINGS: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42}

# It logs every glyph of a PDF's fonts at the level at which this package reports progress.
logging.getLogger("fontTools").setLevel(logging.WARNING)

Scale = Literal["log", "linear"]


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


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf``, each whole or not at all."""
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        with atomic_file(path) as temporary, mpl.rc_context(_SETTINGS):
            # no time stamp in the file: equal results give equal files
            metadata = {"CreationDate": None} if path.suffix == ".pdf" else {}
            figure.savefig(temporary, format=path.suffix[1:], dpi=160, metadata=metadata)
    return paths


def _set_title(figure: Figure, title: str) -> None:
    """The title, broken where the figure ends: paths of one's own data are long."""
    width = int(figure.get_figwidth() * 15)  # characters at this size
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in title.splitlines()), fontsize=9)


# --- OSCR ---------------------------------------------------------------------------------------------------------


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
    columns = _legend_columns(labels)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(4.2 * max(1, len(panels)) + 0.4, 3.7), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, max(1, len(panels)), sharey=True))
        for axis, (panel, curves) in zip(axes, panels.items(), strict=False):
            left = _left_edge(curves.values()) if scale == "log" else 0.0
            for label, curve in curves.items():
                _draw_curve(axis, curve, label, style[label], left)
            _dress_oscr(axis, panel, scale, left)
        axes[0].set_ylabel("correct classification rate (CCR)")
        _set_title(figure, title)
        handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
        figure.legend([handles[n] for n in labels], labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _legend_columns(labels: Sequence[str]) -> int:
    """As many columns as fit below the panels, for the longest label."""
    return max(1, min(len(labels), 5, 130 // (max((len(label) for label in labels), default=1) + 8)))


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


def step_points(curve: OscrCurve) -> tuple[FloatArray, FloatArray]:
    """Each reachable FPR, ascending, with the largest CCR it allows: between two of them the CCR does not change."""
    first_of_equals = np.append(True, curve.fpr[1:] != curve.fpr[:-1])  # CCR falls along the curve
    return curve.fpr[first_of_equals][::-1], curve.ccr[first_of_equals][::-1]


def _dress_oscr(axis: Axes, panel: str, scale: Scale, left: float) -> None:
    axis.set_title(panel, fontsize=9)
    axis.set_xlabel("false positive rate (FPR)")
    if scale == "log":
        axis.set_xscale("log")
    axis.set_xlim(left, 1.0)
    axis.set_ylim(0.0, 1.0)
    axis.grid(color="0.88", linewidth=0.6)
    axis.set_axisbelow(True)


# --- histograms ---------------------------------------------------------------------------------------------------


def histogram_figure(splits: Mapping[str, ScoreSet], *, title: str, score_kind: str, threshold: float | None) -> Figure:
    """Distribution of the highest score of each sample, by kind of sample, a panel per split.

    Logarithms of probabilities crowd below 0; they are drawn as -log10(-score), which grows with the score.
    """
    highest = {split: scores.score for split, scores in splits.items()}
    below_zero = score_kind == "log" and all(np.all(values <= 0) for values in highest.values())
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(4.2 * len(splits) + 0.4, 3.2), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, len(splits)))
        handles: dict[str, Any] = {}
        for axis, (split, scores) in zip(axes, splits.items(), strict=True):
            values = _spread(highest[split]) if below_zero else highest[split]
            handles |= _draw_histograms(axis, values, scores.labels)
            axis.set_title(split, fontsize=9)
            axis.set_xlabel("-log10(-highest score), score kind log" if below_zero else f"highest score ({score_kind})")
        axes[0].set_ylabel("share of the kind's samples")
        if threshold is not None and math.isfinite(threshold):
            place = float(_spread(np.array([threshold]))[0]) if below_zero and threshold <= 0 else threshold
            for axis in axes:
                handles[f"threshold {threshold:.4g}"] = axis.axvline(place, color="0.35", linewidth=1.0)
        _set_title(figure, title)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _spread(log_scores: FloatArray) -> FloatArray:
    """-log10(-score), an exact 0 standing at the smallest number above it."""
    spread: FloatArray = -np.log10(np.maximum(-log_scores.astype(np.float64), np.finfo(np.float64).tiny))
    return spread


def _draw_histograms(axis: Axes, values: FloatArray, labels: IntArray) -> dict[str, Any]:
    """Outlines on common bins; each kind adds up to 1, the outermost half percent standing in the outer bins."""
    low, high = np.quantile(values, [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1.0, 41)
    rows = {"known": labels >= 0, "negative": labels == NEGATIVE, "unknown": labels == UNKNOWN}
    handles = {}
    for kind, mask in rows.items():
        if mask.any():
            shares = np.histogram(np.clip(values[mask], edges[0], edges[-1]), edges)[0] / np.count_nonzero(mask)
            color, line = KIND_STYLES[kind]
            handles[kind] = axis.stairs(shares, edges, color=color, linestyle=line, linewidth=1.5)
            axis.stairs(shares, edges, color=color, fill=True, alpha=0.12)
    return handles


# --- ranking ------------------------------------------------------------------------------------------------------


def ranking_figure(standings: Sequence[Standing], *, title: str) -> Figure:
    """What each method reaches on test unknowns, the best on top, and beside it what it had reached on validation.

    A row per algorithm, a colour per training: a dot with its interval for test unknowns, or what there is instead, a
    ring for validation negatives.
    """
    rows = {name: place for place, name in enumerate(dict.fromkeys(found.algorithm for found in standings))}
    trainings = list(dict.fromkeys(found.training for found in standings))
    with mpl.rc_context(_SETTINGS):
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
        axis.grid(axis="x", color="0.88", linewidth=0.6)
        axis.set_axisbelow(True)
        labels = [training for training in trainings if training]
        handles = [_key(OKABE_ITO[number % len(OKABE_ITO)]) for number in range(len(labels))]
        handles += [_key("0.3"), _key("0.3", filled=False)]
        dots = dict.fromkeys(FIGURES[found.ranked_by] for found in standings)
        names = [*labels, " or ".join(dots), FIGURES["validation"]]
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        _set_title(figure, title)
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


# --- confusion ----------------------------------------------------------------------------------------------------


def confusion_figure(confusion: OpenSetConfusion, classes: Sequence[str], *, title: str) -> Figure:
    """Shares of each true class by decision: known classes above, classes that are not known below."""
    n_known, n_other = len(confusion.known), len(confusion.taken_in)
    others = np.column_stack((confusion.taken_in, confusion.rejected))
    blocks = [("known", confusion.known, [classes[i] for i in range(n_known)])]
    for name, label in (("negative", NEGATIVE), ("unknown", UNKNOWN)):
        rows = np.flatnonzero(confusion.label == label)
        if n_other and len(rows):
            blocks.append((name, others[rows], [classes[i] for i in confusion.class_index[rows]]))
    heights = [len(counts) for _, counts, _ in blocks]
    per_row = min(0.17, 14 / sum(heights))
    with mpl.rc_context(_SETTINGS | {"axes.spines.top": True, "axes.spines.right": True}):
        width = min(0.17, 9 / n_known) * (n_known + 1) + 2.4
        figure = Figure(figsize=(max(4.5, width), per_row * sum(heights) + 1.6), layout="constrained")
        axes = figure.subplots(len(blocks), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (kind, counts, names) in zip(axes, blocks, strict=True):
            image = _draw_confusion(axis, counts, names, kind)
        _name_decisions(axes[-1], [*classes[:n_known], "rejected"])
        figure.colorbar(image, ax=list(axes), label="share of the true class", shrink=0.6, aspect=30)
        _set_title(figure, title)
    return figure


def _draw_confusion(axis: Axes, counts: FloatArray | Any, names: Sequence[str], kind: str) -> Any:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The square root of the share sets the shade, so that rare confusions are seen.
    norm = mpl.colors.PowerNorm(0.5, vmin=0.0, vmax=1.0)
    image = axis.imshow(shares, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    axis.axvline(counts.shape[1] - 1.5, color="0.4", linewidth=0.8)
    shown = len(names) <= _MOST_CLASS_NAMES
    axis.set_yticks(range(len(names)) if shown else [], list(names) if shown else [], fontsize=6)
    axis.set_ylabel(kind if shown else f"{kind} ({len(names)} classes)")
    return image


def _name_decisions(axis: Axes, names: Sequence[str]) -> None:
    if len(names) - 1 <= _MOST_CLASS_NAMES:
        axis.set_xticks(range(len(names)), list(names), fontsize=6, rotation=90)
    else:
        axis.set_xticks([len(names) - 1], [names[-1]], fontsize=7)
    axis.set_xlabel("decision")
