"""``oscbench export``: results as files for other programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from oscbench.cli.common import examples
from oscbench.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench export --per-sample --scores demo --out samples.csv",
            "oscbench export --per-sample --scores demo --out decisions.csv --threshold -0.05",
        )
    )(export)


def export(
    out: Annotated[Path, typer.Option("--out", help="The CSV file to write.")],
    per_sample: Annotated[bool, typer.Option("--per-sample", help="A row per sample of --scores.")] = False,
    scores: Annotated[
        str | None, typer.Option("--scores", help="Folder with val/ and test/ scores, or one with scores.npy; 'demo'.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Fill the column decision: class, or 'unknown' below this score.")
    ] = None,
) -> None:
    """Write split, id, label, class, predicted class, score and decision of every sample."""
    if not per_sample or scores is None:
        raise UsageError("say what to export: --per-sample with --scores DIR (DIR may be 'demo')")
    if threshold is not None and math.isnan(threshold):
        raise UsageError("--threshold nan: give a number; `oscbench threshold` finds one")
    from oscbench.artifacts import atomic_file
    from oscbench.report.scoring import load_scores
    from oscbench.report.tables import sample_table

    table = sample_table(load_scores(scores), threshold)
    with atomic_file(out) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    typer.echo(f"{len(table)} samples in {out}", err=True)
