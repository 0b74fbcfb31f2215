"""What ``evaluate`` gives: figures of runs as tables, pictures and one document."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.metrics import Interval
    from oscbench.report.evaluation import AgainstKind, Options, SplitFigures
    from oscbench.report.ranking import Standing
    from oscbench.runs import Run
    from oscbench.stages.stage import Step


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What post-processors reach.

    Attributes:
        options: How figures are taken.
        runs: Scores by split, and what to call them.
        measured: The figures of each run, by split.
        ranked: Whether the answer is an order: a group of algorithms, or several seeds, were asked for.
        folders: Where scores lie that were given, or kept.
        left_out: Members of a group that could not be used, each with the reason.
        plan: Of a dry run, every stage with what there is of it; then there is nothing else.
    """

    options: Options
    runs: tuple[Run, ...] = ()
    measured: tuple[tuple[SplitFigures, ...], ...] = ()
    ranked: bool = False
    folders: tuple[Path, ...] = ()
    left_out: tuple[dict[str, Any], ...] = ()
    plan: tuple[Step, ...] = ()

    @property
    def standings(self) -> list[Standing]:
        """All methods, the best on test unknowns first; runs that differ in their seed alone count together."""
        from oscbench.report.ranking import ranking

        return ranking((run.title, parts) for run, parts in zip(self.runs, self.measured, strict=True))

    @property
    def table(self) -> pd.DataFrame:
        """A row per run, split and kind of unknown sample, with all figures.

        Rates that cannot be reached are NaN; with ``bootstrap`` the ends of a figure's interval stand beside it.
        """
        import pandas as pd

        rows = [
            _run_columns(run) | _figure_columns(part, against)
            for run, parts in zip(self.runs, self.measured, strict=True)
            for part in parts
            for against in part.against
        ]
        return pd.DataFrame(rows)

    @property
    def ranking(self) -> pd.DataFrame:
        """A row per standing: CCR@FPR sums, what is lost from validation to test unknowns, and accuracy."""
        import pandas as pd

        from oscbench.report.ranking import FIGURES

        rows = []
        for place, found in enumerate(self.standings, start=1):
            row: dict[str, Any] = {"rank": place}
            row |= {name: getattr(found, name) for name in ("algorithm", "training", "network", "seeds")}
            for name, title in FIGURES.items():
                row |= _interval_columns(title, getattr(found, name))
            rows.append(row)
        return pd.DataFrame(rows)

    def document(self) -> dict[str, Any]:
        """All of it in plain values, as ``oscbench evaluate --json`` prints it."""
        from oscbench.report.ranking import ranking_document
        from oscbench.report.tables import split_document

        return {
            **dataclasses.asdict(self.options),
            "runs": [
                run.title.document() | {"splits": [split_document(part) for part in parts]}
                for run, parts in zip(self.runs, self.measured, strict=True)
            ],
            "ranking": ranking_document(self.standings),
            "left_out": list(self.left_out),
        }

    def figures(self) -> dict[str, Any]:
        """Figures of matplotlib by name: OSCR of each split on either axis (``oscr_test_log``), and any ``ranking``."""
        from oscbench.report.evaluation_plots import oscr_figures
        from oscbench.report.plots.ranking import ranking_figure

        if not self.runs:
            return {}
        title = self.runs[0].title.origin.heading
        ranked = {"ranking": ranking_figure(self.standings, title=title)} if self.ranked else {}
        return ranked | oscr_figures(self.runs, self.measured)

    def plots(self, folder: str | Path, *, fpr: float = 0.1) -> list[Path]:
        """Writes plots (PNG, PDF) into a folder: of what is ranked the order and the best, else of every run.

        Args:
            folder: Receives them.
            fpr: Rate of the threshold shown in histograms and confusion.
        """
        from oscbench.report.evaluation_plots import write_plots, write_ranking

        if self.ranked:
            return write_ranking(self.runs, self.measured, Path(folder))
        return write_plots(self.runs, self.measured, Path(folder), fpr)


# --- figures as numbers --------------------------------------------------------------------------------------------


def _run_columns(run: Run) -> dict[str, Any]:
    origin = run.title.origin
    named = ("data", "protocol", "training", "seed", "network", "recipe", "train")
    return {"algorithm": run.title.algorithm} | {name: getattr(origin, name) for name in named}


def _figure_columns(part: SplitFigures, against: AgainstKind) -> dict[str, Any]:
    from oscbench.metrics import FPRS
    from oscbench.report.tables import rate_name

    row: dict[str, Any] = {"split": part.split, "against": against.kind, "known": part.n_known, "others": against.n}
    for fpr, ccr in zip(FPRS, against.ccr, strict=True):
        row |= _interval_columns(f"CCR@{rate_name(fpr)}", ccr)
    row |= _interval_columns("sum", against.ccr_sum) | _interval_columns("accuracy", part.accuracy)
    row |= _interval_columns("AUROC", against.auroc)
    row |= {"AP": against.average_precision, "AUOSCR (step)": against.auoscr_step}
    return row | {"openness": against.openness}


def _interval_columns(name: str, interval: Interval) -> dict[str, float]:
    """The figure and, where there is an interval, its ends."""
    from oscbench.report.blocks import HIGH, LOW

    if math.isnan(interval.level):
        return {name: interval.estimate}
    return {name: interval.estimate, name + LOW: interval.low, name + HIGH: interval.high}
