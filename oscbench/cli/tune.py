"""``oscbench tune``: search the hyperparameters of a post-processor with Ray Tune."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oscbench.cli.common import (
    AddressOption,
    DataOption,
    DryRunOption,
    JsonOption,
    RunsOption,
    YesOption,
    examples,
    print_json,
)
from oscbench.errors import StoppedError, UsageError

if TYPE_CHECKING:
    from oscbench.distributed.tuning_stage import TuneRequest
    from oscbench.postprocessors import ScoreKind
    from oscbench.tuning.search import Search
    from oscbench.tuning.space import SearchSpace


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench tune --alg evm --protocol 1", "oscbench tune --alg openmax -p 2 --search optuna --trials 40 --yes"
        )
    )(tune)


def tune(
    alg: Annotated[str, typer.Option("--alg", help="Algorithm: mss, mls, openmax, evm, …")],
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="softmax (the default), garbage, eos, objectosphere, or all.")
    ] = None,
    search: Annotated[
        Literal["grid", "optuna", "random"],
        typer.Option("--search", help="Every grid point, or a budget of drawn ones."),
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
    features: Annotated[
        Path | None, typer.Option("--features", help="Own features: a folder with train/, val/ and test/.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds of the training (default 0); 0,1,2 gives mean ± std.")
    ] = None,
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option("--rule", help="How CCR at a rate is read from the curve.")
    ] = "inclusive",
    score_kind: Annotated[
        Literal["log", "probability", "logit"], typer.Option("--score-kind", help="Score the curve is made of.")
    ] = "log",
    data: DataOption = "demo",
    name: Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")] = None,
    runs: RunsOption = Path("runs"),
    address: AddressOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished search without asking.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Find the best hyperparameters of a post-processor: the main job.

    Missing stages (data, training, features) are run first. Every finished trial is kept: a killed search goes on
    where it was when the same command is run again. `oscbench watch` shows it live.
    """
    from oscbench.cli.tune_view import LiveView, print_report, print_warnings, report_of
    from oscbench.distributed.tuning_stage import FeatureRequest, TuneRequest, ensure_tuning

    source = FeatureRequest(
        runs=runs,
        protocol=protocol,
        losses=parse_losses(loss) if loss is not None else None,
        seeds=parse_seeds(seeds) if seeds is not None else None,
        data=data,
        name=name,
        features=features,
        address=address,
        yes=yes,
    )
    request = TuneRequest(
        source=source,
        algorithm=alg,
        space=_space(alg, search, score_kind, space, set_values or []),
        search=search,
        trials=trials,
        max_concurrent=max_concurrent,
        time_budget=parse_duration(time_budget) if time_budget is not None else None,
        tensorboard=tensorboard,
        rule=rule,
        score_kind=score_kind,
    )
    if dry_run:
        _print_plan(request, json)
        return
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints warnings of its own to stdout, which is for the result
        searches = ensure_tuning(request, LiveView(), lambda begun: _ask_to_resume(begun, resume or yes))
    report = report_of(searches)
    print_json(report) if json else print_report(report)
    print_warnings(report)


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


def parse_losses(text: str) -> tuple[str, ...]:
    """Registered losses of ``eos``, ``softmax,eos`` or ``all``."""
    from oscbench.cli.train import PUBLISHED_LOSSES
    from oscbench.losses import LOSSES

    names = PUBLISHED_LOSSES if text == "all" else tuple(part.strip() for part in text.split(","))
    for name in names:
        LOSSES.info(name)
    return tuple(dict.fromkeys(names))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of ``0,1,2``."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"--seeds {text!r} is no list of whole numbers; write it like 0,1,2") from error
    if min(seeds) < 0:
        raise UsageError(f"--seeds {text!r}: a seed is 0 or above")
    return seeds


def _space(algorithm: str, search: str, score_kind: ScoreKind, path: Path | None, overrides: list[str]) -> SearchSpace:
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.postprocessors.base import usable_score_kind
    from oscbench.tuning.space import load_space

    params = POSTPROCESSORS.info(algorithm).params
    usable_score_kind(algorithm, score_kind)
    space = load_space(algorithm, params, path=path, overrides=overrides)
    if search != "grid" and space.grid and not space.ranges:
        raise UsageError(f"the search space of {algorithm} has no ranges: section; add one or use --search grid")
    return space


def _print_plan(request: TuneRequest, json: bool) -> None:
    from oscbench.distributed.tuning_stage import DEFAULT_LOSSES, DEFAULT_SEEDS
    from oscbench.tuning.search import DEFAULT_TRIALS

    space, source = request.space, request.source
    grid = request.search == "grid" or not space.grid
    plan = {
        "algorithm": request.algorithm,
        "protocol": source.protocol,
        "losses": list(source.losses or DEFAULT_LOSSES),
        "seeds": list(source.seeds or DEFAULT_SEEDS),
        "search": request.search,
        "trials": len(space.settings()) if grid else request.trials or DEFAULT_TRIALS,
        "space": space.described("grid" if grid else request.search),
        "features": str(source.features or "extracted by earlier stages"),
        "runs": str(source.runs),
    }
    if json:
        print_json(plan)
        return
    for name, value in plan.items():
        print(f"{name:10} {value}")


def _ask_to_resume(begun: list[Search], agreed: bool) -> None:
    """One question for all searches that an earlier run has left unfinished."""
    if not begun or agreed:
        return
    state = ", ".join(f"{search.folder} has {search.finished_before()} of {search.total} trials" for search in begun)
    if not sys.stdin.isatty():
        raise UsageError(f"an unfinished search is there ({state}); add --resume to go on with it")
    if not typer.confirm(f"An unfinished search is there ({state}). Go on with it?", default=True, err=True):
        raise StoppedError("nothing was run, and the search is left as it is; another --runs folder begins a new one")
