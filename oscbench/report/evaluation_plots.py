"""Which plots an evaluation writes: OSCR curves, score histograms and open-set confusion."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from oscbench.artifacts import write_text
from oscbench.errors import OscbenchError
from oscbench.metrics import OscrCurve, open_set_confusion
from oscbench.report.evaluation import SplitFigures, choose_threshold
from oscbench.runs import Run

log = logging.getLogger(__name__)

SCALES: tuple[Literal["log", "linear"], ...] = ("log", "linear")
MOST_CURVES = 12
"""Best methods of a ranking whose OSCR curves are drawn; of more none can be followed."""


def write_plots(runs: Sequence[Run], figures: Sequence[Sequence[SplitFigures]], folder: Path, fpr: float) -> list[Path]:
    """Writes all plots as PNG and PDF and the confusion tables as CSV; returns their paths.

    Args:
        runs: What was evaluated.
        figures: Of each run, by split.
        folder: Receives ``oscr_<split>_log``, ``oscr_<split>_linear``, and ``scores`` and ``confusion`` of each run.
        fpr: Rate on validation negatives of the threshold shown in histograms and confusion.
    """
    paths = write_oscr(runs, figures, folder)
    for run, label in zip(runs, unique_labels(runs), strict=True):
        suffix = "_" + re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-") if len(runs) > 1 else ""
        paths += _write_scores_and_confusion(run, folder, suffix, fpr)
    return paths


def write_ranking(runs: Sequence[Run], figures: Sequence[Sequence[SplitFigures]], folder: Path) -> list[Path]:
    """Writes ``ranking`` and the OSCR curves of the best; histograms of dozens of runs nobody would look at."""
    from oscbench.report.plots.ranking import ranking_figure
    from oscbench.report.plots.style import save_figure
    from oscbench.report.ranking import ranking

    standings = ranking((run.title, parts) for run, parts in zip(runs, figures, strict=True))
    paths = save_figure(ranking_figure(standings, title=runs[0].title.origin.heading), folder, "ranking")
    best = {
        (standing.algorithm, standing.training, standing.seeds[0]): place
        for place, standing in enumerate(standings[:MOST_CURVES])
    }
    chosen = sorted(
        (best[key], i)
        for i, run in enumerate(runs)
        if (key := (run.title.algorithm, run.title.origin.training, run.title.origin.seed or 0)) in best
    )
    return paths + write_oscr([runs[i] for _, i in chosen], [figures[i] for _, i in chosen], folder)


def unique_labels(runs: Sequence[Run]) -> list[str]:
    """The label of each run, numbered where several have the same."""
    labels: list[str] = []
    for run in runs:
        label, number = run.title.label, 2
        while label in labels:
            label, number = f"{run.title.label} ({number})", number + 1
        labels.append(label)
    return labels


def oscr_figures(runs: Sequence[Run], figures: Sequence[Sequence[SplitFigures]]) -> dict[str, Any]:
    """OSCR of all runs, a figure by name for each split and axis, negatives and unknowns side by side."""
    from oscbench.report.plots.oscr import oscr_figure

    by_split: dict[str, dict[str, dict[str, OscrCurve]]] = {}
    for label, splits in zip(unique_labels(runs), figures, strict=True):
        for part in splits:
            for against in part.against:
                panel = f"{part.split}: {part.n_known} known, {against.n} {against.kind}"
                by_split.setdefault(part.split, {}).setdefault(panel, {})[label] = against.curve
    return {
        f"oscr_{split}_{scale}": oscr_figure(panels, scale=scale, title=runs[0].title.origin.heading)
        for split, panels in by_split.items()
        for scale in SCALES
    }


def write_oscr(runs: Sequence[Run], figures: Sequence[Sequence[SplitFigures]], folder: Path) -> list[Path]:
    """Writes ``oscr_figures``."""
    from oscbench.report.plots.style import save_figure

    drawn = oscr_figures(runs, figures)
    return [path for name, figure in drawn.items() for path in save_figure(figure, folder, name)]


def _write_scores_and_confusion(run: Run, folder: Path, suffix: str, fpr: float) -> list[Path]:
    from oscbench.report.plots.confusion import confusion_figure
    from oscbench.report.plots.scores import histogram_figure
    from oscbench.report.plots.style import save_figure
    from oscbench.report.tables import confusion_table

    label, kind = run.title.label, run.title.score_kind
    title = f"{run.title.origin.heading}\n{label}"
    try:
        chosen = choose_threshold(run.splits, fpr, resamples=1)
    except OscbenchError as error:
        log.warning("%s: no threshold in the histograms and no confusion plot (%s)", label, error)
        figure = histogram_figure(run.splits, title=title, score_kind=kind, threshold=None)
        return save_figure(figure, folder, f"scores{suffix}")
    threshold = chosen.threshold.value
    figure = histogram_figure(run.splits, title=title, score_kind=kind, threshold=threshold)
    paths = save_figure(figure, folder, f"scores{suffix}")
    split = "test" if "test" in run.splits else next(iter(run.splits))
    scores = run.splits[split]
    confusion = open_set_confusion(
        scores.labels, scores.class_index, scores.predictions, threshold, n_known=scores.n_known
    )
    heading = f"{title}, {split}, threshold for FPR {fpr:g} on the negatives of {chosen.chosen_on}"
    paths += save_figure(confusion_figure(confusion, scores.classes, title=heading), folder, f"confusion{suffix}")
    table = folder / f"confusion{suffix}.csv"
    write_text(table, confusion_table(confusion, scores.classes).to_csv(index=False, lineterminator="\n"))
    return [*paths, table]
