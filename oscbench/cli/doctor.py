"""``oscbench doctor``: what works here, what is missing and how to get it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from oscbench.cli.common import DataOption, JsonOption, RunsOption, examples, print_json


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(epilog=examples("oscbench doctor", "oscbench doctor --json"))(doctor)


def doctor(data: DataOption = "demo", runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Print what is installed, what works here, what is missing and how to get it."""
    from oscbench.doctor import examine

    findings = examine(data, runs)
    if json:
        print_json([dataclasses.asdict(finding) for finding in findings])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "state", "detail", "how to get it", box=None, pad_edge=False)
    colours = {"ok": "green", "low": "yellow", "missing": "yellow", "broken": "red"}
    for finding in findings:
        table.add_row(finding.what, f"[{colours[finding.state]}]{finding.state}[/]", finding.detail, finding.remedy)
    Console(soft_wrap=False).print(table)
