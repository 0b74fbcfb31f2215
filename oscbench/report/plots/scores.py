"""Distributions of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray, IntArray
from oscbench.report.plots.style import KIND_STYLES, SETTINGS, set_title
from oscbench.scores import ScoreSet


def histogram_figure(splits: Mapping[str, ScoreSet], *, title: str, score_kind: str, threshold: float | None) -> Figure:
    """Distribution of the highest score of each sample, by kind of sample, a panel per split.

    Logarithms of probabilities crowd below 0; they are drawn as -log10(-score), which grows with the score.
    """
    highest = {split: scores.score for split, scores in splits.items()}
    below_zero = score_kind == "log" and all(np.all(values <= 0) for values in highest.values())
    with mpl.rc_context(SETTINGS):
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
        set_title(figure, title)
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
