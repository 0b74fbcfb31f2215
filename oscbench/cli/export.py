"""``oscbench export``: results as files for other programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from oscbench.cli.common import RunsOption, examples
from oscbench.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench export --per-sample --scores demo --out samples.csv",
            "oscbench export --per-sample --scores demo --out b.csv --threshold -0.05",
        )
    )(export)


def export(
    out: Annotated[Path, typer.Option("--out", help="The file to write; .csv, or for --trials also .parquet.")],
    per_sample: Annotated[bool, typer.Option("--per-sample", help="A row per sample of --scores.")] = False,
    scores: Annotated[
        str | None, typer.Option("--scores", help="Folder with val/ and test/ scores, or one with scores.npy; 'demo'.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Fill the column decision: class, or 'unknown' below this score.")
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="A row per trial of all searches below --runs.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Of --trials only the best of each search.")] = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write every sample with its score and decision, or every trial of all searches as one table."""
    if per_sample == trials:
        raise UsageError("say what to export: --per-sample with --scores DIR (DIR may be 'demo'), or --trials")
    if trials:
        if scores is not None or threshold is not None:
            raise UsageError("--scores and --threshold go with --per-sample, not with --trials")
        _export_trials(runs, out, best)
    else:
        if scores is None or best:
            raise UsageError("--per-sample needs --scores DIR (DIR may be 'demo') and goes without --best")
        _export_samples(scores, threshold, out)


def _export_trials(runs: Path, out: Path, best: bool) -> None:
    from oscbench.artifacts import atomic_file
    from oscbench.tuning.collect import best_trials, collect_trials

    if out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out {out}: give a name that ends in .csv or .parquet")
    table = collect_trials(runs)
    searches = table["run_id"].nunique()
    table = best_trials(table) if best else table
    with atomic_file(out) as temporary:
        if out.suffix == ".csv":
            table.to_csv(temporary, index=False, lineterminator="\n")
        else:
            table.to_parquet(temporary, index=False)
    typer.echo(f"{len(table)} trials of {searches} searches in {out}", err=True)


def _export_samples(scores: str, threshold: float | None, out: Path) -> None:
    if threshold is not None and math.isnan(threshold):
        raise UsageError("--threshold nan: give a number; `oscbench threshold` finds one")
    from oscbench.artifacts import atomic_file
    from oscbench.report.tables import sample_table
    from oscbench.runs import load_scores

    table = sample_table(load_scores(scores), threshold)
    with atomic_file(out) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    typer.echo(f"{len(table)} samples in {out}", err=True)
