"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray
from oscbench.metrics import OpenSetConfusion
from oscbench.report.plots.style import SETTINGS, set_title

_MOST_CLASS_NAMES = 45  # more would not be legible


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
    with mpl.rc_context(SETTINGS | {"axes.spines.top": True, "axes.spines.right": True}):
        width = min(0.17, 9 / n_known) * (n_known + 1) + 2.4
        figure = Figure(figsize=(max(4.5, width), per_row * sum(heights) + 1.6), layout="constrained")
        axes = figure.subplots(len(blocks), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (kind, counts, names) in zip(axes, blocks, strict=True):
            image = _draw_confusion(axis, counts, names, kind)
        _name_decisions(axes[-1], [*classes[:n_known], "rejected"])
        figure.colorbar(image, ax=list(axes), label="share of the true class", shrink=0.6, aspect=30)
        set_title(figure, title)
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
