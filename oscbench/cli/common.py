"""Options that several verbs share, and how help pages end and results are printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from oscbench.stages.stage import Step


def _local_folder(runs: Path) -> Path:
    from oscbench.store import check_local

    return check_local(runs)


ProtocolOption = Annotated[str, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")]
DataOption = Annotated[str, typer.Option("--data", help="Image folder, or 'demo' for the embedded data.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that receives all results.", callback=_local_folder)]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random in this stage.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print every stage with what there is of it and the time it takes, and stop.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer the questions with yes.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="An existing Ray cluster; default: start Ray here.")
]
LocalOption = Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")]
NumWorkersOption = Annotated[
    int,
    typer.Option(
        "--num-workers", min=1, help="Workers of a training that is not there yet, and of a trial that trains."
    ),
]
CpusPerWorkerOption = Annotated[
    int | None, typer.Option("--cpus-per-worker", min=1, help="CPUs of each worker; default: an equal share.")
]
GpusPerWorkerOption = Annotated[
    float | None, typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker; default: 1 where there are.")
]
LoaderOption = Annotated[
    Literal["auto", "ffcv", "pil"], typer.Option("--loader", help="Image loader; auto: FFCV where it works.")
]


def print_plan(steps: Sequence[Step], as_json: bool) -> None:
    """The graph of stages with what there is of each, inputs first."""
    from oscbench.progress import duration

    if as_json:
        print_json(
            [
                {
                    "stage": step.stage.name,
                    "state": step.state,
                    "seconds": step.seconds,
                    "folder": str(step.stage.folder),
                    "fingerprint": step.stage.fingerprint,
                    "inputs": {role: stage.fingerprint for role, stage in step.stage.inputs.items()},
                    "what": step.stage.describe(),
                }
                for step in steps
            ]
        )
        return
    rows = [
        {
            "stage": step.stage.name,
            "state": step.state,
            "about": "" if step.seconds is None else duration(step.seconds),
            "folder": str(step.stage.folder),
            "what": step.stage.describe(),
        }
        for step in steps
    ]
    print_rows(rows)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Plain columns, wide enough for their content, that cut and awk can read."""
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in ({name: name for name in widths}, *rows):
        print("  ".join(f"{row[name]!s:<{width}}" for name, width in widths.items()).rstrip())


def examples(*commands: str) -> str:
    """The epilog of a verb's help page: commands that run as they stand."""
    return "Examples:\n\n" + "\n\n".join(f"  {command}" for command in commands)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=1, ensure_ascii=False, default=str))
