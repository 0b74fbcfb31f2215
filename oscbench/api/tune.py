"""``tune``: search the hyperparameters of post-processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oscbench.api.session import Asked, Loader, LogView, View, chosen_losses, session_for, training_options
from oscbench.errors import StoppedError, UsageError
from oscbench.store import check_local

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.metrics import CcrRule
    from oscbench.postprocessors import ScoreKind
    from oscbench.stages.runner import Session
    from oscbench.stages.search import Tune
    from oscbench.stages.stage import Step
    from oscbench.tuning.search import SearchKind
    from oscbench.tuning.space import SearchSpace

Settings = Mapping[str, Any] | Sequence[str]
"""Values by hyperparameter, or the same as texts like ``tail_size=50,100``."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What searches have found.

    Attributes:
        reports: A document per algorithm: its best setting on each network, what that reaches, what to look at.
        left_out: Members of a group that could not be used, each with the reason.
        several: Whether several algorithms were asked for.
        plan: Of a dry run, every stage with what there is of it; then there is nothing else.
    """

    reports: tuple[dict[str, Any], ...] = ()
    left_out: tuple[dict[str, Any], ...] = ()
    several: bool = False
    plan: tuple[Step, ...] = ()

    @property
    def folders(self) -> list[Path]:
        """Of the searches."""
        return [Path(search["folder"]) for report in self.reports for search in report["searches"]]

    @property
    def trials(self) -> pd.DataFrame:
        """A row per finished trial of all searches, as ``oscbench export --trials`` writes them."""
        from oscbench.tuning.collect import merge_trials
        from oscbench.tuning.trials import read_trials

        return merge_trials([read_trials(folder / "trials.csv") for folder in self.folders])

    @property
    def best(self) -> pd.DataFrame:
        """The best trial of each search."""
        from oscbench.tuning.collect import best_trials

        return best_trials(self.trials)


def tune(
    alg: str | Sequence[str],
    protocol: int | str | None = None,
    *,
    loss: str | Sequence[str] | None = None,
    search: SearchKind = "grid",
    trials: int | None = None,
    time_budget: float | None = None,
    max_concurrent: int | None = None,
    space: str | Path | None = None,
    settings: Settings = (),
    recipe: str | None = None,
    share_trunk: bool = False,
    features: str | Path | None = None,
    checkpoint: str | Path | None = None,
    network: str | None = None,
    seeds: Sequence[int] | None = None,
    rule: CcrRule = "inclusive",
    score_kind: ScoreKind | None = None,
    data: str = "demo",
    name: str | None = None,
    runs: str | Path = "runs",
    num_workers: int = 1,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    loader: Loader = "auto",
    memory: int | None = None,
    address: str | None = None,
    local: bool = False,
    resume: bool = False,
    tensorboard: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    session: Session | None = None,
    view: View | None = None,
) -> TuneResult:
    """The best hyperparameters of one or several post-processors, as ``oscbench tune`` finds them.

    Missing stages (data, training, features) are made first. What is finished is not run again, and a killed search
    goes on where it was.

    Args:
        alg: Algorithm, or several: ``evm``, ``["mss", "mls"]``, ``posthoc``, ``all``.
        protocol: 1, 2, 3, or a protocol file of one's own.
        loss: Trainings: ``softmax`` (the default), ``garbage``, ``eos``, ``objectosphere`` or ``all``.
        search: Every grid point, or a budget of drawn ones.
        trials: That budget; default: 60.
        time_budget: Seconds after which no more trials are begun.
        max_concurrent: Trials at the same time.
        space: Search space file instead of the shipped one.
        settings: Axes of the grid to be replaced: ``{"tail_size": [50, 100]}``.
        recipe: Named settings of a method that fine-tunes; default: its defaults, on embedded data its ``demo``.
        share_trunk: Freeze three stages, and train all numbers of dummies of the grid on one pass.
        features: Own features: a folder with ``train/``, ``val/`` and ``test/``.
        checkpoint: A network's file instead of the one in use.
        network: Its architecture.
        seeds: Of the trainings; default: 0.
        rule: How CCR at a rate is read from the curve.
        score_kind: Score the curve is made of; default: the method's first.
        data: Image folder, or ``demo`` for the embedded data.
        name: Name of the data below the runs folder.
        runs: Folder that receives all results.
        num_workers: Workers of a training that is not there yet, and of a trial that trains.
        cpus_per_worker: CPUs of each.
        gpus_per_worker: GPUs of each.
        loader: Image loader.
        memory: Bytes that distances and fits may take in each process.
        address: An existing Ray cluster; default: start Ray here.
        local: Run everything in this process, without Ray.
        resume: Go on with an unfinished search without asking.
        tensorboard: Also write event files.
        yes: Agree to whatever there is to agree to, such as a stage that takes long.
        dry_run: Only plan.
        session: Who executes; default: one opened for this call, as ``address`` and ``local`` say.
        view: Who is told what happens, and asked; default: the log.

    >>> import tempfile
    >>> from oscbench.data.synthetic import demo_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split, rows in demo_features().items():
    ...         rows.save(Path(folder) / "mine" / split)
    ...     few = {"tail_size": [10, 20], "distance_multiplier": [0.5], "cover_threshold": [1.0]}
    ...     found = tune("evm", features=Path(folder) / "mine", settings=few, runs=Path(folder) / "runs", local=True)
    ...     found.best[["algorithm", "tail_size", "sum"]].round(2).values.tolist(), len(found.trials)
    ([['evm', 20, 1.42]], 2)
    """
    from oscbench.stages.features import FeatureRequest
    from oscbench.stages.runner import SearchOptions
    from oscbench.stages.stage import plan
    from oscbench.stages.workspace import EMBEDDED

    view = view or LogView()
    asked, spaces = Asked(alg, view.say), dict[str, "SearchSpace"]()
    if asked.several:
        _refuse_with_several(asked.text, set=settings, space=space, recipe=recipe, share_trunk=share_trunk)
    for algorithm in asked.by_name:
        with asked.trying(algorithm):
            demo = data == EMBEDDED and features is None and search == "grid"  # ranges look for settings themselves
            changes = [*_recipe(algorithm, recipe, share_trunk, demo), *_texts(settings)]
            spaces[algorithm] = _space(algorithm, search, score_kind, space, changes)
    request = FeatureRequest(
        runs=check_local(Path(runs)),
        protocol=str(protocol) if protocol is not None else None,
        losses=chosen_losses(loss) if loss is not None else None,
        seeds=tuple(seeds) if seeds is not None else None,
        data=str(data),
        name=name,
        features=Path(features) if features is not None else None,
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
        network=network,
        options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
    )
    if share_trunk and search != "grid":
        raise UsageError(f"--share-trunk trains the dummies of a grid side by side; leave out --search {search}")
    if share_trunk and any(s.grid.get("trunk") != ("frozen",) or "dummies" not in s.grid for s in spaces.values()):
        raise UsageError("--share-trunk trains the dummies of a grid on a frozen trunk; leave out --set trunk")
    if local and tensorboard:
        raise UsageError("--tensorboard is written by Ray Tune; leave it out with --local")
    how = {
        "search": search,
        "trials": trials,
        "rule": rule,
        "score_kind": score_kind,
        "options": SearchOptions(max_concurrent=max_concurrent, time_budget=time_budget, tensorboard=tensorboard),
        "share_trunk": share_trunk,
    }
    searches = _searches(asked, request, spaces, view, memory, how)
    with session_for(session, address, local, view.dashboard) as executing:
        if dry_run:
            return TuneResult(plan=tuple(plan(_possible(asked, searches), executing)), several=asked.several)
        states = [tune.state() for tune in searches]
        if set(states) == {"done"}:
            view.say("the search is complete already; nothing was run again")
        begun = [tune for tune, state in zip(searches, states, strict=True) if state == "resumable"]
        _ask_to_resume(begun, resume or yes, view)
        finished = asked.ensure(searches, executing, yes=yes)
    return TuneResult(reports=_reports(finished), left_out=tuple(asked.left_out), several=asked.several)


def _searches(
    asked: Asked,
    request: Any,
    spaces: Mapping[str, SearchSpace],
    view: View,
    memory: int | None,
    how: Mapping[str, Any],
) -> list[Tune]:
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.stages.features import requested_features
    from oscbench.stages.search import Tune

    sources, searches = requested_features(request), list[Tune]()
    for algorithm, space in spaces.items():
        bound = memory if POSTPROCESSORS.info(algorithm).bounds_memory else None
        with asked.trying(algorithm):
            searches += [
                Tune.of(source, algorithm, space, view, memory=bound, training=request.options, **how)
                for source in sources
            ]
    asked.require_some(searches)
    if memory is not None and not any(POSTPROCESSORS.info(tune.config.algorithm).bounds_memory for tune in searches):
        raise UsageError(
            f"--memory bounds distances that settings share, and --alg {asked.text} keeps none; leave it out"
        )
    return searches


def _possible(asked: Asked, searches: Sequence[Tune]) -> list[Tune]:
    """The searches that the features allow."""
    possible = list["Tune"]()
    for tune in searches:
        with asked.trying(tune.config.algorithm):
            tune.check()
            possible.append(tune)
    asked.require_some(possible)
    return possible


def _reports(finished: Sequence[Tune]) -> tuple[dict[str, Any], ...]:
    from oscbench.report.search import report_of

    return tuple(
        report_of([tune.search() for tune in finished if tune.config.algorithm == algorithm])
        for algorithm in dict.fromkeys(tune.config.algorithm for tune in finished)
    )


# --- what is asked for -------------------------------------------------------------------------------------------


def _refuse_with_several(alg: str, **options: Any) -> None:
    """Refuses options that belong to one algorithm, by the names of those that were given."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise UsageError(f"{', '.join(given)} goes with one algorithm, and --alg {alg} means several; leave it out")


def _texts(settings: Settings) -> list[str]:
    if not isinstance(settings, Mapping):
        return [*settings]
    listed = {name: value if isinstance(value, list | tuple) else [value] for name, value in settings.items()}
    return [f"{name}={','.join(map(_text, values))}" for name, values in listed.items()]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _space(
    algorithm: str, search: str, score_kind: ScoreKind | None, file: str | Path | None, overrides: list[str]
) -> SearchSpace:
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.postprocessors.base import usable_score_kind
    from oscbench.tuning.space import load_space

    params = POSTPROCESSORS.info(algorithm).params
    if score_kind is not None:
        usable_score_kind(algorithm, score_kind)
    space = load_space(algorithm, params, path=Path(file) if file is not None else None, overrides=overrides)
    if search != "grid" and space.grid and not space.ranges:
        raise UsageError(f"the search space of {algorithm} has no ranges: section; add one or use --search grid")
    return space


def _recipe(algorithm: str, name: str | None, share_trunk: bool, demo: bool) -> list[str]:
    """What ``--recipe`` and ``--share-trunk`` set, in the form of ``--set``."""
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.registry import nearest

    method = POSTPROCESSORS.info(algorithm)
    if (name is not None or share_trunk) and not method.fine_tunes:
        option = f"--recipe {name}" if name is not None else "--share-trunk"
        raise UsageError(f"{option} is for algorithms that fine-tune, and {algorithm} does not; leave it out")
    if name is not None and name not in method.recipes:
        raise UsageError(f"unknown recipe {name!r}{nearest(name, method.recipes)} (one of {', '.join(method.recipes)})")
    return _texts({**method.recipe(name, demo=demo), **({"trunk": "frozen"} if share_trunk else {})})


def _ask_to_resume(begun: Sequence[Tune], agreed: bool, view: View) -> None:
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
    if not view.wants_to_go_on(state):
        raise StoppedError("nothing was run, and the search is left as it is; another --runs folder begins a new one")
