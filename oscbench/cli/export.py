"""``oscbench export``: results as files for other programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oscbench.cli.common import RunsOption, examples
from oscbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench export --per-sample --scores demo --out samples.csv",
            "oscbench export --per-sample --scores demo --out b.csv --threshold -0.05",
        )
    )(export)


def export(
    out: Annotated[Path, typer.Option("--out", help="The file to write; .csv, .parquet or .tex.")],
    per_sample: Annotated[bool, typer.Option("--per-sample", help="A row per sample of --scores.")] = False,
    scores: Annotated[
        str | None, typer.Option("--scores", help="Folder with val/ and test/ scores, or one with scores.npy; 'demo'.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Fill the column decision: class, or 'unknown' below this score.")
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="A row per trial of all searches below --runs.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Of --trials only the best of each search.")] = False,
    results: Annotated[
        bool, typer.Option("--results", help="A row per post-processor, split and kind of all scores below --runs.")
    ] = False,
    form: Annotated[
        str | None, typer.Option("--format", help="csv, parquet or latex; default: what the name of --out ends in.")
    ] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write every sample with its score and decision, every trial of all searches, or all results, as one table.

    docs/formats.md says what the columns hold.
    """
    if per_sample + trials + results != 1:
        raise UsageError(
            "say what to export: --per-sample with --scores DIR (DIR may be 'demo'), --trials or --results"
        )
    if not per_sample and (scores is not None or threshold is not None):
        raise UsageError(
            f"--scores and --threshold go with --per-sample, not with --{'trials' if trials else 'results'}"
        )
    if best and not trials:
        raise UsageError("--best goes with --trials")
    if threshold is not None and math.isnan(threshold):
        raise UsageError("--threshold nan: give a number; `oscbench threshold` finds one")
    if per_sample and scores is None:
        raise UsageError("--per-sample needs --scores DIR (DIR may be 'demo')")
    from oscbench.report.formats import export_format, export_table

    kind = export_format(out, form)
    if scores is not None:
        table, said = _samples(scores, threshold)
    elif trials:
        table, said = _trials(runs, best)
    else:
        table, said = _results(runs)
    export_table(table, out, kind, said.capitalize())
    typer.echo(f"{said} in {out}", err=True)


def _samples(scores: str, threshold: float | None) -> tuple[pd.DataFrame, str]:
    from oscbench.report.tables import sample_table
    from oscbench.runs import load_scores

    table = sample_table(load_scores(scores), threshold)
    return table, f"{len(table)} samples"


def _trials(runs: Path, best: bool) -> tuple[pd.DataFrame, str]:
    from oscbench.tuning.collect import best_trials, collect_trials

    table = collect_trials(runs)
    searches = table["run_id"].nunique()
    table = best_trials(table) if best else table
    return table, f"{len(table)} trials of {searches} searches"


def _results(runs: Path) -> tuple[pd.DataFrame, str]:
    from oscbench.report.measures import Measures
    from oscbench.report.results import read_results

    found = read_results(runs)
    for folder, reason in found.left_out:
        typer.echo(f"left out: {folder}: {reason}", err=True)
    if not found.cells:
        raise UsageError(f"there are no scores below {runs}; `oscbench benchmark` and `oscbench evaluate` make them")
    table = Measures.of(found).frame
    return table, f"{len(table)} results of {len(found.cells)} cells"
