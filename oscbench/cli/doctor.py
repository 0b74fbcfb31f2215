"""``oscbench doctor``: what works here, what is missing and how to get it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oscbench.cli.common import DataOption, JsonOption, RunsOption, examples, print_json

if TYPE_CHECKING:
    from oscbench.doctor import Finding


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(epilog=examples("oscbench doctor", "oscbench doctor --json"))(doctor)


def doctor(data: DataOption = "demo", runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Print what is installed, what works here, what is missing and how to get it.

    Exits with 1 when something is there but broken; what is merely missing is no error.
    """
    from oscbench.doctor import examine

    findings = examine(data, runs)
    if json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _print_table(findings)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "state", "detail", "how to get it", box=None, pad_edge=False)
    colours = {"ok": "green", "low": "yellow", "missing": "yellow", "broken": "red"}
    for finding in findings:
        table.add_row(finding.what, f"[{colours[finding.state]}]{finding.state}[/]", finding.detail, finding.remedy)
    Console(soft_wrap=False).print(table)
