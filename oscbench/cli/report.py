"""``oscbench report``: everything that lies in a runs folder as tables, figures and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from oscbench.cli.common import JsonOption, RunsOption, examples, print_json


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench report --out report",
            "oscbench report --out report --compare paper",
        )
    )(report)


def report(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for index.html, tables/ and figures/; an older report is replaced.")
    ] = Path("report"),
    runs: RunsOption = Path("runs"),
    compare: Annotated[
        Literal["paper"] | None, typer.Option("--compare", help="Put the published figures beside the measured ones.")
    ] = None,
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option(help="How CCR is read at a rate; 'published': strictly below.")
    ] = "inclusive",
    data: Annotated[
        Path | None, typer.Option("--data", help="Image folder, for the sheets of images; embedded ones are found.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make tables, figures and one page of everything that is finished in a runs folder.

    Nothing is computed anew, and neither Ray nor torch is needed. Runs of different data are kept apart; what is
    damaged is named and left out.
    """
    from oscbench.api.report import write_report

    made = write_report(runs, out, compare=compare, rule=rule, data=data)
    if as_json:
        print_json(
            {
                "page": made.page,
                "data": made.data_sets,
                "tables": made.tables,
                "figures": made.figures,
                "left_out": [{"folder": folder, "reason": reason} for folder, reason in made.left_out],
            }
        )
        return
    print(made.page)
