"""Options that several verbs share, and how help pages end and results are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

ProtocolOption = Annotated[str, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")]
DataOption = Annotated[str, typer.Option("--data", help="Image folder, or 'demo' for the embedded data.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that receives all results.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random in this stage.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer the questions with yes.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="An existing Ray cluster; default: start Ray here.")
]


def examples(*commands: str) -> str:
    """The epilog of a verb's help page: commands that run as they stand."""
    return "Examples:\n\n" + "\n\n".join(f"  {command}" for command in commands)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=1, ensure_ascii=False, default=str))
