"""``oscbench tune``: search the hyperparameters of a post-processor with Ray Tune."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

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
from oscbench.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench tune --alg evm --protocol 1", "oscbench tune --alg openmax -p 2 --search optuna --trials 40 --yes"
        )
    )(tune)


def tune(
    alg: Annotated[
        list[str],
        typer.Option("--alg", help="Algorithm, or several: evm; mss,mls; posthoc; all (see oscbench methods)."),
    ],
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="softmax (the default), garbage, eos, objectosphere, or all.")
    ] = None,
    search: Annotated[
        Literal["grid", "optuna", "random"],
        typer.Option(
            "--search",
            help="Every grid point, or a budget of drawn ones; then poor trainings stop early.",
        ),
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Budget of optuna and random (default 60).")
    ] = None,
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="Stop each search after this long: 90s, 10m, 1h30m.")
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option("--max-concurrent", min=1, help="Trials at the same time.")
    ] = None,
    space: Annotated[Path | None, typer.Option("--space", help="Search space file instead of the shipped one.")] = None,
    set_values: Annotated[
        list[str] | None, typer.Option("--set", help="Replace one axis: tail_size=50,100. Repeatable.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="How proser fine-tunes: published (the default), demo (on embedded data), authors.",
        ),
    ] = None,
    share_trunk: Annotated[
        bool,
        typer.Option("--share-trunk", help="proser: freeze three stages, train all dummies of the grid on one pass."),
    ] = False,
    features: Annotated[
        Path | None, typer.Option("--features", help="Own features: a folder with train/, val/ and test/.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A network's file instead of the one in use.")
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", help="Architecture of --checkpoint; default: as it says, else resnet50.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds of the training (default 0); 0,1,2 gives mean ± std.")
    ] = None,
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option("--rule", help="How CCR at a rate is read from the curve.")
    ] = "inclusive",
    score_kind: Annotated[
        Literal["log", "probability", "logit", "native", "published"] | None,
        typer.Option("--score-kind", help="Score the curve is made of; default: the method's first."),
    ] = None,
    data: DataOption = "demo",
    name: NameOption = None,
    runs: RunsOption = Path("runs"),
    num_workers: NumWorkersOption = 1,
    cpus_per_worker: CpusPerWorkerOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    loader: LoaderOption = "auto",
    memory: Annotated[
        str | None, typer.Option("--memory", help="What distances and fits may take in each process: 4GiB, 800MB.")
    ] = None,
    address: AddressOption = None,
    local: LocalOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished search without asking.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Find the best hyperparameters of a post-processor: the main job.

    Missing stages (data, training, features) are run first; for proser the training, which each trial then goes on
    with. Every finished trial is kept: a killed search goes on where it was when the same command is run again.
    `oscbench watch` shows it live.
    """
    from oscbench.api.tune import tune as run_tune
    from oscbench.cli.tune_view import LiveView, print_report, print_reports, print_warnings

    result = run_tune(
        alg,
        protocol,
        loss=loss,
        search=search,
        trials=trials,
        time_budget=parse_duration(time_budget) if time_budget is not None else None,
        max_concurrent=max_concurrent,
        space=space,
        settings=set_values or (),
        recipe=recipe,
        share_trunk=share_trunk,
        features=features,
        checkpoint=checkpoint,
        network=network,
        seeds=parse_seeds(seeds) if seeds is not None else None,
        rule=rule,
        score_kind=score_kind,
        data=data,
        name=name,
        runs=runs,
        num_workers=num_workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        loader=loader,
        memory=parse_bytes(memory) if memory is not None else None,
        address=address,
        local=local,
        resume=resume,
        tensorboard=tensorboard,
        yes=yes,
        dry_run=dry_run,
        view=LiveView(runs),
    )
    if dry_run:
        print_plan(result.plan, json)
        return
    if json:
        several = {"algorithms": result.reports, "left_out": result.left_out}
        print_json(several if result.several else result.reports[0])
    elif result.several:
        print_reports(result.reports)
    else:
        print_report(result.reports[0])
    for report in result.reports:
        print_warnings(report, several=result.several)


# --- what is asked for -------------------------------------------------------------------------------------------


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1h30m``.

    >>> parse_duration("1h30m"), parse_duration("90")
    (5400.0, 90.0)
    """
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    seconds = (
        sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True)) if match else 0
    )
    if seconds <= 0:
        raise UsageError(f"--time-budget {text!r} is no duration; write it like 90s, 10m or 1h30m")
    return seconds


def parse_bytes(text: str) -> int:
    """Bytes of ``4GiB``, ``800MB``, ``1.5G``.

    >>> parse_bytes("4GiB"), parse_bytes("800 MB")
    (4294967296, 800000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--memory {text!r} is no amount of memory; write it like 4GiB or 800MB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of ``0,1,2``."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"--seeds {text!r} is no list of whole numbers; write it like 0,1,2") from error
    if min(seeds) < 0:
        raise UsageError(f"--seeds {text!r}: a seed is 0 or above")
    return seeds
