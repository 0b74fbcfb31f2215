"""``oscbench tune``: search the hyperparameters of a post-processor with Ray Tune."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.cli.tune_view import LiveView
    from oscbench.rundir import RunDir
    from oscbench.tuning.search import Search
    from oscbench.tuning.space import SearchSpace

PUBLISHED_LOSSES = ("softmax", "garbage", "eos")
"""What ``--loss all`` stands for."""

DEFAULT_LOSSES = ("softmax",)
DEFAULT_SEEDS = (0,)


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
    losses: tuple[str, ...] | None
    seeds: tuple[int, ...] | None
    search: Literal["grid", "optuna", "random"]
    trials: int | None
    generation: int
    rule: Literal["inclusive", "published"]
    score_kind: Literal["log", "probability", "logit"]
    data: str
    name: str | None
    runs: Path
    features: Path | None
    address: str | None
    yes: bool


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
    from oscbench.cli.tune_view import LiveView, print_report, report_of
    from oscbench.tuning.proposals import GENERATION

    request = Request(
        algorithm=alg,
        protocol=protocol,
        losses=_losses(loss) if loss is not None else None,
        seeds=_seeds(seeds) if seeds is not None else None,
        search=search,
        trials=trials,
        generation=max(GENERATION, max_concurrent or 0),
        rule=rule,
        score_kind=score_kind,
        data=data,
        name=name,
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
    view = LiveView()
    with contextlib.ExitStack() as ray_session:
        searches = _searches(request, searched, lambda: _enter_ray(ray_session, address, view))
        _ask_to_resume(searches, resume or yes)
        if all(search.is_complete() for search in searches):
            view.say("the search is complete already; nothing was run again")
        else:
            _enter_ray(ray_session, address, view)
            _run_all(searches, max_concurrent, budget, tensorboard, view)
    report = report_of(searches)
    print_json(report) if json else print_report(report)


def _enter_ray(session: contextlib.ExitStack, address: str | None, view: LiveView) -> None:
    """Connects to Ray when the first stage needs it, and says where it can be watched; later calls join that."""
    from oscbench.distributed.cluster import connect
    from oscbench.distributed.tune import dashboard

    session.enter_context(connect(address, dashboard=True))
    view.dashboard(dashboard())


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
        "losses": list(request.losses or DEFAULT_LOSSES),
        "seeds": list(request.seeds or DEFAULT_SEEDS),
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


@dataclass(frozen=True)
class Source:
    """Features of one training, and where results on them go."""

    features: Path
    directory: RunDir
    training: str
    seed: int


def _searches(request: Request, space: SearchSpace, enter_ray: Callable[[], None]) -> list[Search]:
    """One search per training and seed, on features that are there or are made now."""
    from oscbench.features.cache import load_feature_folder
    from oscbench.tuning.objective import check_validation
    from oscbench.tuning.search import DEFAULT_TRIALS, Search

    sources = [own_features(request)] if request.features is not None else made_features(request, enter_ray)
    searches = []
    for source in sources:
        splits = load_feature_folder(source.features)
        check_validation(splits.val, str(source.features / "val"))
        searches.append(
            Search(
                directory=source.directory,
                training=source.training,
                seed=source.seed,
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


def own_features(request: Request) -> Source:
    """``--features``: results go under what its ``meta.json`` names, else under a name made from its content."""
    from oscbench.features.cache import load_feature_folder
    from oscbench.protocols.base import load_protocol
    from oscbench.rundir import RunDir

    folder = request.features or Path()
    losses, seeds = request.losses or (), request.seeds or ()
    if len(losses) > 1 or len(seeds) > 1:
        raise UsageError(f"--features {folder} comes from one training; give one --loss and one --seeds value with it")
    train = load_feature_folder(folder).train
    recorded = train.meta.config if train.meta is not None else {}
    protocol = str(recorded.get("protocol", ""))
    if request.protocol is not None:
        wanted = load_protocol(request.protocol)
        if protocol and protocol != wanted.slug:
            raise UsageError(f"--features {folder} is of protocol {protocol}, not {wanted.slug}; leave --protocol out")
        if train.n_known != wanted.n_known:
            raise UsageError(
                f"--features {folder} has {train.n_known} known classes, protocol {wanted.slug} has {wanted.n_known}: "
                "features of another protocol; leave --protocol out for classes of your own"
            )
        protocol = wanted.slug
    training = str(recorded.get("loss", "")) or (losses[0] if losses else DEFAULT_LOSSES[0])
    if losses and losses[0] != training:
        raise UsageError(
            f"--features {folder} comes from a training with {training}, not {losses[0]}; leave --loss out"
        )
    seed = train.meta.seed if train.meta is not None and train.meta.seed is not None else (*seeds, 0)[0]
    data = request.name or str(recorded.get("data", "")) or f"own-{train.fingerprint[:8]}"
    return Source(folder, RunDir(request.runs, data, protocol or "own"), training, seed)


def made_features(request: Request, enter_ray: Callable[[], None]) -> list[Source]:
    """Features of each training and seed, made by the stages before this one where they are missing."""
    if request.protocol is None:
        raise UsageError("give --protocol 1, 2, 3 or a file, or --features with a folder of your own features")
    from oscbench.artifacts import META
    from oscbench.distributed.stages import Execution, ensure_features
    from oscbench.pipeline import open_workspace
    from oscbench.types import SPLITS

    workspace = open_workspace(runs=request.runs, data=request.data, protocol=request.protocol, name=request.name)
    execution = Execution(address=request.address, yes=request.yes)
    sources = []
    for loss in request.losses or DEFAULT_LOSSES:
        for seed in request.seeds or DEFAULT_SEEDS:
            folder = workspace.run.features(loss, seed)
            if not all((folder / split / META).exists() for split in SPLITS):
                enter_ray()  # one Ray for all stages
            folder = ensure_features(workspace, loss=loss, seed=seed, execution=execution)
            sources.append(Source(folder, workspace.run, loss, seed))
    return sources


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
    searches: list[Search], max_concurrent: int | None, budget: float | None, tensorboard: bool, view: LiveView
) -> None:
    """Runs what is not complete."""
    from oscbench.distributed.tune import MAX_CONCURRENT, run_search
    from oscbench.tuning.search import SearchRun

    for search in searches:
        with SearchRun(search) as run:
            view.begin(run)
            try:
                run_search(
                    run,
                    max_concurrent=max_concurrent or MAX_CONCURRENT,
                    time_budget=budget,
                    tensorboard=tensorboard,
                    update=view.update,
                )
            finally:
                view.end(run)
            run.finish()
