"""``oscbench tune``: search the hyperparameters of a post-processor with Ray Tune."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oscbench.cli.common import (
    AddressOption,
    Asked,
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
    open_session,
    print_json,
    print_plan,
    refuse_with_several,
    training_options,
)
from oscbench.errors import StoppedError, UsageError

if TYPE_CHECKING:
    from oscbench.postprocessors import ScoreKind
    from oscbench.stages.search import Tune
    from oscbench.tuning.space import SearchSpace


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
            help="How proser fine-tunes: published (the default); authors sets λ0, rate, epochs.",
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
    from oscbench.cli.train import parse_losses
    from oscbench.cli.tune_view import LiveView, print_report, print_reports, print_warnings
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.report.search import report_of
    from oscbench.stages.features import FeatureRequest, requested_features
    from oscbench.stages.runner import SearchOptions
    from oscbench.stages.search import Tune
    from oscbench.stages.stage import plan
    from oscbench.tuning.space import SearchSpace

    asked, spaces = Asked(alg), dict[str, SearchSpace]()
    if asked.several:
        refuse_with_several(asked.text, set=set_values, space=space, recipe=recipe, share_trunk=share_trunk)
    for algorithm in asked.by_name:
        with asked.trying(algorithm):
            changes = [*_recipe(algorithm, recipe, share_trunk), *(set_values or [])]
            spaces[algorithm] = _space(algorithm, search, score_kind, space, changes)
    options = SearchOptions(
        max_concurrent=max_concurrent,
        time_budget=parse_duration(time_budget) if time_budget is not None else None,
        tensorboard=tensorboard,
    )
    budget = parse_bytes(memory) if memory is not None else None
    request = FeatureRequest(
        runs=runs,
        protocol=protocol,
        losses=parse_losses(loss) if loss is not None else None,
        seeds=parse_seeds(seeds) if seeds is not None else None,
        data=data,
        name=name,
        features=features,
        checkpoint=checkpoint,
        network=network,
        options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
    )
    if share_trunk and search != "grid":
        raise UsageError(f"--share-trunk trains the dummies of a grid side by side; leave out --search {search}")
    if share_trunk and any(s.grid.get("trunk") != ("frozen",) or "dummies" not in s.grid for s in spaces.values()):
        raise UsageError("--share-trunk trains the dummies of a grid on a frozen trunk; leave out --set trunk")
    if local and tensorboard:
        raise UsageError("--tensorboard is written by Ray Tune; leave it out with --local")
    view = LiveView(runs)
    sources, searches = requested_features(request), list[Tune]()
    for algorithm, found in spaces.items():
        with asked.trying(algorithm):
            searches += [
                Tune.of(
                    source,
                    algorithm,
                    found,
                    view,
                    search=search,
                    trials=trials,
                    rule=rule,
                    score_kind=score_kind,
                    options=options,
                    memory=budget if POSTPROCESSORS.info(algorithm).bounds_memory else None,
                    training=request.options,
                    share_trunk=share_trunk,
                )
                for source in sources
            ]
    asked.require_some(searches)
    if budget is not None and not any(POSTPROCESSORS.info(tune.config.algorithm).bounds_memory for tune in searches):
        raise UsageError(
            f"--memory bounds distances that settings share, and --alg {asked.text} keeps none; leave it out"
        )
    with open_session(address, local, view.dashboard) as session:
        if dry_run:
            possible = list[Tune]()
            for tune in searches:
                with asked.trying(tune.config.algorithm):
                    tune.check()
                    possible.append(tune)
            asked.require_some(possible)
            print_plan(plan(possible, session), json)
            return
        states = [tune.state() for tune in searches]
        if set(states) == {"done"}:
            view.say("the search is complete already; nothing was run again")
        begun = [tune for tune, state in zip(searches, states, strict=True) if state == "resumable"]
        _ask_to_resume(begun, resume or yes)
        finished = asked.ensure(searches, session, yes=yes)
    reports = [
        report_of([tune.search() for tune in finished if tune.config.algorithm == algorithm])
        for algorithm in dict.fromkeys(tune.config.algorithm for tune in finished)
    ]
    if json:
        print_json({"algorithms": reports, "left_out": asked.left_out} if asked.several else reports[0])
    elif asked.several:
        print_reports(reports)
    else:
        print_report(reports[0])
    for report in reports:
        print_warnings(report, several=asked.several)


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


def _space(
    algorithm: str, search: str, score_kind: ScoreKind | None, path: Path | None, overrides: list[str]
) -> SearchSpace:
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.postprocessors.base import usable_score_kind
    from oscbench.tuning.space import load_space

    params = POSTPROCESSORS.info(algorithm).params
    if score_kind is not None:
        usable_score_kind(algorithm, score_kind)
    space = load_space(algorithm, params, path=path, overrides=overrides)
    if search != "grid" and space.grid and not space.ranges:
        raise UsageError(f"the search space of {algorithm} has no ranges: section; add one or use --search grid")
    return space


def _recipe(algorithm: str, name: str | None, share_trunk: bool) -> list[str]:
    """What ``--recipe`` and ``--share-trunk`` set, in the form of ``--set``."""
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.registry import nearest

    method = POSTPROCESSORS.info(algorithm)
    if (name is not None or share_trunk) and not method.fine_tunes:
        option = f"--recipe {name}" if name is not None else "--share-trunk"
        raise UsageError(f"{option} is for algorithms that fine-tune, and {algorithm} does not; leave it out")
    if name is not None and name not in method.recipes:
        raise UsageError(f"unknown recipe {name!r}{nearest(name, method.recipes)} (one of {', '.join(method.recipes)})")
    changes = dict(method.recipes[name] if name is not None else {}) | ({"trunk": "frozen"} if share_trunk else {})
    return [f"{parameter}={value}" for parameter, value in changes.items()]


def _ask_to_resume(begun: list[Tune], agreed: bool) -> None:
    """One question for all searches that an earlier run has left unfinished."""
    unfinished = [(tune, tune.finished_before()) for tune in begun]
    unfinished = [(tune, done) for tune, done in unfinished if done]
    if not unfinished:
        return
    for tune, _ in unfinished:
        tune.refuse_busy()  # somebody may be working on it: say that, rather than ask to go on with it
    if agreed:
        return
    state = ", ".join(f"{tune.folder} has {done} of {tune.total} trials" for tune, done in unfinished)
    if not sys.stdin.isatty():
        raise UsageError(f"an unfinished search is there ({state}); add --resume to go on with it")
    if not typer.confirm(f"An unfinished search is there ({state}). Go on with it?", default=True, err=True):
        raise StoppedError("nothing was run, and the search is left as it is; another --runs folder begins a new one")
