"""``oscbench benchmark``: the whole comparison, every training times every algorithm times every protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oscbench.cli.common import (
    AddressOption,
    CpusPerWorkerOption,
    DataOption,
    DryRunOption,
    GpusPerWorkerOption,
    JsonOption,
    LoaderOption,
    LocalOption,
    NameOption,
    NumWorkersOption,
    RunsOption,
    YesOption,
    examples,
    print_json,
    print_plan,
)

if TYPE_CHECKING:
    from oscbench.api.benchmark import BenchmarkResult


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench benchmark --dry-run",
            "oscbench benchmark --protocols 2 --losses softmax,eos --algorithms mss,evm",
        )
    )(benchmark)


def benchmark(
    protocols: Annotated[
        str, typer.Option("--protocols", "-p", help="1, 2, 3 or protocol files, joined by commas.")
    ] = "1,2,3",
    losses: Annotated[
        str, typer.Option("--losses", help="softmax, garbage, eos, objectosphere, or all (the first three).")
    ] = "all",
    algorithms: Annotated[
        str, typer.Option("--algorithms", help="published (five), posthoc, all, or names: mss,evm.")
    ] = "published",
    seeds: Annotated[str, typer.Option("--seeds", help="Of the trainings: 0,1,2.")] = "0",
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option(help="How CCR is read at a rate; 'published': strictly below.")
    ] = "inclusive",
    score_kind: Annotated[
        Literal["log", "probability", "logit", "native", "published"] | None,
        typer.Option("--score-kind", help="Default: the method's first."),
    ] = None,
    data: DataOption = "demo",
    name: NameOption = None,
    runs: RunsOption = Path("runs"),
    num_workers: NumWorkersOption = 1,
    cpus_per_worker: CpusPerWorkerOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    loader: LoaderOption = "auto",
    address: AddressOption = None,
    local: LocalOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Make whatever is missing of a whole comparison: trainings, fine-tunings, features, searches and scores.

    Stages that do not need each other run side by side on Ray. A cell that fails is named while the others go on, and
    what was killed goes on when the same command is run again. `oscbench report` shows the results.
    """
    from oscbench.api.benchmark import benchmark as run_benchmark
    from oscbench.api.benchmark import finish_line
    from oscbench.cli.benchmark_view import open_board
    from oscbench.cli.tune import parse_seeds

    with open_board() as spectator:
        result = run_benchmark(
            [part.strip() for part in protocols.split(",")],
            losses=losses,
            algorithms=algorithms,
            seeds=parse_seeds(seeds),
            rule=rule,
            score_kind=score_kind,
            data=data,
            name=name,
            runs=runs,
            num_workers=num_workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            loader=loader,
            address=address,
            local=local,
            yes=yes,
            dry_run=dry_run,
            spectator=spectator,
        )
    if dry_run:
        from oscbench.progress import duration

        print_plan(result.plan, json)
        print(f"about {duration(result.seconds)} in all", file=sys.stderr)
        return
    if json:
        print_json({"cells": result.cells.to_dict("records"), "left_out": result.left_out})
    else:
        _print_cells(result, rule)
    print(finish_line(result), file=sys.stderr)
    print(f"next: oscbench report --runs {runs} --out report", file=sys.stderr)
    if len(result.failed):
        raise typer.Exit(1)


def _print_cells(result: BenchmarkResult, rule: str) -> None:
    """A line per algorithm, a column per protocol and training: the sum against test unknowns, mean over seeds."""
    from oscbench.report.tables import markdown

    if result.demo:
        print("DEMO DATA, not a result about real images")
    print(f"Sum of CCR at FPR 1e-3, 1e-2, 1e-1 and 1 against test unknowns, CCR rule {rule}; - is missing\n")
    table = result.cells[result.cells["epoch"] == "last"].pivot_table(
        index="algorithm", columns=["protocol", "training"], values="unknown", sort=False, dropna=False
    )
    table.columns = [" ".join(key) for key in table.columns]
    print(markdown(table.reset_index()))
