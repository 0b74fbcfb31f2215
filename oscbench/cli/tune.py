"""``oscbench tune``: search the hyperparameters of a post-processor with Ray Tune."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.rundir import RunDir
    from oscbench.tuning.search import Search
    from oscbench.tuning.space import SearchSpace

PUBLISHED_LOSSES = ("softmax", "garbage", "eos")
"""What ``--loss all`` stands for."""


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench tune --alg evm --protocol 1", "oscbench tune --alg openmax -p 2 --search optuna --trials 40 --yes"
        )
    )(tune)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for, checked."""

    algorithm: str
    protocol: str | None
    losses: tuple[str, ...]
    seeds: tuple[int, ...]
    search: Literal["grid", "optuna", "random"]
    trials: int | None
    generation: int
    rule: Literal["inclusive", "published"]
    score_kind: Literal["log", "probability", "logit"]
    data: str
    runs: Path
    features: Path | None
    address: str | None
    yes: bool


def tune(
    alg: Annotated[str, typer.Option("--alg", help="Algorithm: mss, mls, openmax, evm, …")],
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="Training behind the features, or 'all'.")] = "softmax",
    search: Annotated[
        Literal["grid", "optuna", "random"],
        typer.Option("--search", help="Every grid point, or a budget of drawn ones."),
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Budget of optuna and random (default 60).")
    ] = None,
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="Stop after this long: 90s, 10m, 1h30m.")
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
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds of the training, like 0,1,2: gives mean ± std.")] = "0",
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option("--rule", help="How CCR at a rate is read from the curve.")
    ] = "inclusive",
    score_kind: Annotated[
        Literal["log", "probability", "logit"], typer.Option("--score-kind", help="Score the curve is made of.")
    ] = "log",
    data: DataOption = "demo",
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
    from oscbench.cli.tune_view import LiveView, print_report, report_of
    from oscbench.tuning.proposals import GENERATION

    request = Request(
        algorithm=alg,
        protocol=protocol,
        losses=_losses(loss),
        seeds=_seeds(seeds),
        search=search,
        trials=trials,
        generation=max(GENERATION, max_concurrent or 0),
        rule=rule,
        score_kind=score_kind,
        data=data,
        runs=runs,
        features=features,
        address=address,
        yes=yes,
    )
    budget = parse_duration(time_budget) if time_budget is not None else None
    searched = _space(request, space, set_values or [])
    if dry_run:
        _print_plan(request, searched, json)
        return
    searches = _searches(request, searched)
    _ask_to_resume(searches, resume or yes)
    _run_all(searches, address, max_concurrent, budget, tensorboard, LiveView())
    report = report_of(searches)
    print_json(report) if json else print_report(report)


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


def _losses(text: str) -> tuple[str, ...]:
    from oscbench.losses import LOSSES

    names = PUBLISHED_LOSSES if text == "all" else tuple(part.strip() for part in text.split(","))
    for name in names:
        LOSSES.info(name)
    return tuple(dict.fromkeys(names))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"--seeds {text!r} is no list of whole numbers; write it like 0,1,2") from error
    if min(seeds) < 0:
        raise UsageError(f"--seeds {text!r}: a seed is 0 or above")
    return seeds


def _space(request: Request, path: Path | None, overrides: list[str]) -> SearchSpace:
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.postprocessors.base import usable_score_kind
    from oscbench.tuning.space import load_space

    params = POSTPROCESSORS.info(request.algorithm).params
    usable_score_kind(request.algorithm, request.score_kind)
    space = load_space(request.algorithm, params, path=path, overrides=overrides)
    if request.search != "grid" and space.grid and not space.ranges:
        raise UsageError(
            f"the search space of {request.algorithm} has no ranges: section; add one or use --search grid"
        )
    return space


def _print_plan(request: Request, space: SearchSpace, json: bool) -> None:
    from oscbench.tuning.search import DEFAULT_TRIALS

    grid = request.search == "grid" or not space.grid
    plan = {
        "algorithm": request.algorithm,
        "protocol": request.protocol,
        "losses": list(request.losses),
        "seeds": list(request.seeds),
        "search": request.search,
        "trials": len(space.settings()) if grid else request.trials or DEFAULT_TRIALS,
        "space": space.described("grid" if grid else request.search),
        "features": str(request.features or "extracted by earlier stages"),
        "runs": str(request.runs),
    }
    if json:
        print_json(plan)
        return
    for name, value in plan.items():
        print(f"{name:10} {value}")


# --- the searches ------------------------------------------------------------------------------------------------


def _searches(request: Request, space: SearchSpace) -> list[Search]:
    """One search per training and seed, on features that are there or are made now."""
    from oscbench.features.cache import load_feature_folder
    from oscbench.tuning.objective import check_validation
    from oscbench.tuning.search import DEFAULT_TRIALS, Search

    searches = []
    for loss in request.losses:
        for seed in request.seeds:
            directory, folder = _own_features(request) if request.features else _made_features(request, loss, seed)
            splits = load_feature_folder(folder)
            check_validation(splits.val, str(folder / "val"))
            searches.append(
                Search(
                    directory=directory,
                    training=loss,
                    seed=seed,
                    algorithm=request.algorithm,
                    train=splits.train,
                    validation=splits.val,
                    space=space,
                    kind=request.search,
                    trials=request.trials or DEFAULT_TRIALS,
                    generation=request.generation,
                    rule=request.rule,
                    score_kind=request.score_kind,
                )
            )
    return searches


def _own_features(request: Request) -> tuple[RunDir, Path]:
    """Where results on ``--features`` go: named by the features' own content, under the protocol they belong to."""
    from oscbench.features.cache import load_feature_folder
    from oscbench.rundir import RunDir

    folder = request.features or Path()
    if len(request.losses) > 1 or len(request.seeds) > 1:
        raise UsageError(f"--features {folder} comes from one training; give one --loss and one --seeds value with it")
    train = load_feature_folder(folder).train
    made_for = str(train.meta.config.get("protocol", "")) if train.meta is not None else ""
    if request.protocol is None:
        return RunDir(request.runs, f"own-{train.fingerprint[:8]}", made_for or "own"), folder
    from oscbench.protocols.base import load_protocol

    protocol = load_protocol(request.protocol)
    if made_for and made_for != protocol.slug:
        raise UsageError(
            f"--features {folder} belongs to protocol {made_for}, not {protocol.slug}; leave --protocol out"
        )
    if train.n_known != protocol.n_known:
        raise UsageError(
            f"--features {folder} has {train.n_known} known classes, protocol {protocol.slug} has {protocol.n_known}: "
            "features of another protocol; leave --protocol out for classes of your own"
        )
    return RunDir(request.runs, f"own-{train.fingerprint[:8]}", protocol.slug), folder


def _made_features(request: Request, loss: str, seed: int) -> tuple[RunDir, Path]:
    """The features of a training, made by the stages before this one where they are missing."""
    if request.protocol is None:
        raise UsageError("give --protocol 1, 2, 3 or a file, or --features with a folder of your own features")
    raise UsageError(f"features of {loss} s{seed} are missing; give --features DIR")


def _ask_to_resume(searches: list[Search], agreed: bool) -> None:
    """One question for all searches that an earlier run has left unfinished."""
    unfinished = [(search, search.finished_before()) for search in searches if not search.is_complete()]
    begun = [(search, done) for search, done in unfinished if done]
    if not begun or agreed:
        return
    state = ", ".join(f"{search.folder} has {done} of {search.total} trials" for search, done in begun)
    if not sys.stdin.isatty():
        raise UsageError(f"an unfinished search is there ({state}); add --resume to go on with it")
    if not typer.confirm(f"An unfinished search is there ({state}). Go on with it?", default=True, err=True):
        raise typer.Abort


def _run_all(
    searches: list[Search],
    address: str | None,
    max_concurrent: int | None,
    budget: float | None,
    tensorboard: bool,
    view: Any,
) -> None:
    """Runs what is not complete; Ray is started only when there is something to run."""
    if all(search.is_complete() for search in searches):
        view.say("the search is complete already; nothing was run again")
        return
    from oscbench.distributed.cluster import connect
    from oscbench.distributed.tune import MAX_CONCURRENT, dashboard, run_search
    from oscbench.tuning.search import SearchRun

    with connect(address, dashboard=True):
        view.dashboard(dashboard())
        for search in searches:
            with SearchRun(search) as run:
                view.begin(run)
                run_search(
                    run,
                    max_concurrent=max_concurrent or MAX_CONCURRENT,
                    time_budget=budget,
                    tensorboard=tensorboard,
                    update=view.update,
                )
                view.end(run)
                run.finish()
