"""Tuning as a stage: the features it needs, the searches it consists of, and running those that are not complete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from oscbench.artifacts import META
from oscbench.distributed.cluster import connect
from oscbench.distributed.tune import Dashboard, dashboard, run_search
from oscbench.errors import StoppedError, UsageError
from oscbench.features import load_feature_folder
from oscbench.labels import SPLITS
from oscbench.metrics import CcrRule
from oscbench.pipeline import open_workspace
from oscbench.postprocessors import ScoreKind
from oscbench.protocols.base import load_protocol
from oscbench.rundir import RunDir
from oscbench.tuning.objective import check_validation
from oscbench.tuning.proposals import GENERATION
from oscbench.tuning.search import DEFAULT_TRIALS, Search, SearchKind, SearchRun
from oscbench.tuning.space import SearchSpace

DEFAULT_LOSSES = ("softmax",)
DEFAULT_SEEDS = (0,)


@dataclass(frozen=True, kw_only=True)
class FeatureRequest:
    """Which features: a folder of one's own, or those of each training and seed on some data.

    Attributes:
        protocol: 1, 2, 3 or a file; may be left out with ``features``.
        losses: Trainings; ``None``: the one recorded in ``features``, else softmax.
        seeds: Their seeds; ``None``: the one recorded in ``features``, else 0.
        data: ``demo`` or an image folder.
        name: Name of the data below ``runs``.
        features: A folder with ``train/``, ``val/`` and ``test/``.
    """

    runs: Path
    protocol: str | None = None
    losses: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    data: str = "demo"
    name: str | None = None
    features: Path | None = None
    address: str | None = None
    yes: bool = False


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What is searched on those features."""

    source: FeatureRequest
    algorithm: str
    space: SearchSpace
    search: SearchKind = "grid"
    trials: int | None = None
    max_concurrent: int | None = None
    time_budget: float | None = None
    tensorboard: bool = False
    rule: CcrRule = "inclusive"
    score_kind: ScoreKind = "log"


class View(Protocol):
    """Who is told what happens."""

    def say(self, text: str) -> None:
        """One line."""
        ...

    def dashboard(self, dashboard: Dashboard | None) -> None:
        """Where the cluster can be watched."""
        ...

    def begin(self, run: SearchRun) -> None:
        """A search starts or goes on."""
        ...

    def update(self, run: SearchRun) -> None:
        """A trial has finished."""
        ...

    def end(self, run: SearchRun) -> None:
        """The search is over."""
        ...


def ensure_tuning(request: TuneRequest, view: View, confirm: Callable[[list[Search]], None]) -> list[Search]:
    """The searches of a request, complete unless a time budget ended them; runs what is missing, features first.

    Args:
        request: What is asked for.
        view: Who is told.
        confirm: Called with the searches an earlier run has begun but not finished; raises to stop.
    """
    with contextlib.ExitStack() as session:

        def enter_ray() -> None:
            session.enter_context(connect(request.source.address, dashboard=True))
            view.dashboard(dashboard())

        searches = [_search(request, source) for source in feature_sources(request.source, enter_ray)]
        waiting = [search for search in searches if not search.is_complete()]
        if not waiting:
            view.say("the search is complete already; nothing was run again")
            return searches
        begun = [search for search in waiting if search.finished_before()]
        for search in begun:
            with search.lock():  # somebody may be working on it: say that, rather than ask to go on with it
                pass
        confirm(begun)
        enter_ray()
        try:
            for search in waiting:
                _run(search, request, view)
        except KeyboardInterrupt:
            kept, total = sum(search.finished_before() for search in searches), sum(search.total for search in searches)
            raise StoppedError(
                f"interrupted, {kept} of {total} trials are kept; run the same command again to go on"
            ) from None
    return searches


def _run(search: Search, request: TuneRequest, view: View) -> None:
    with SearchRun(search) as run:
        view.begin(run)
        try:
            run_search(
                run,
                max_concurrent=request.max_concurrent,
                time_budget=request.time_budget,
                tensorboard=request.tensorboard,
                update=view.update,
            )
        finally:
            view.end(run)
        run.finish()


def _search(request: TuneRequest, source: FeatureSource) -> Search:
    splits = load_feature_folder(source.folder)
    check_validation(splits.val, str(source.folder / "val"))
    return Search(
        directory=source.directory,
        training=source.training,
        seed=source.seed,
        algorithm=request.algorithm,
        train=splits.train,
        validation=splits.val,
        space=request.space,
        kind=request.search,
        trials=request.trials or DEFAULT_TRIALS,
        generation=max(GENERATION, request.max_concurrent or 0),
        rule=request.rule,
        score_kind=request.score_kind,
    )


# --- features ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureSource:
    """Features of one training, and where results on them go."""

    folder: Path
    directory: RunDir
    training: str
    seed: int


def feature_sources(request: FeatureRequest, enter_ray: Callable[[], None]) -> list[FeatureSource]:
    """The features that are asked for; those of a training are made, with all stages before, where they are missing.

    Args:
        request: Which features.
        enter_ray: Called before a stage that needs Ray, so that all stages share one.
    """
    return [_own_features(request, request.features)] if request.features else _made_features(request, enter_ray)


def _own_features(request: FeatureRequest, folder: Path) -> FeatureSource:
    """Results go under what the folder's ``meta.json`` names, else under a name made from its content."""
    losses, seeds = request.losses or (), request.seeds or ()
    if len(losses) > 1 or len(seeds) > 1:
        raise UsageError(f"--features {folder} comes from one training; give one --loss and one --seeds value with it")
    train = load_feature_folder(folder).train
    recorded = train.meta.config if train.meta is not None else {}
    training = str(recorded.get("loss", "")) or (*losses, *DEFAULT_LOSSES)[0]
    if losses and losses[0] != training:
        raise UsageError(
            f"--features {folder} comes from a training with {training}, not {losses[0]}; leave --loss out"
        )
    protocol = _checked_protocol(request, folder, str(recorded.get("protocol", "")), train.n_known)
    seed = train.meta.seed if train.meta is not None and train.meta.seed is not None else (*seeds, *DEFAULT_SEEDS)[0]
    data = request.name or str(recorded.get("data", "")) or f"own-{train.fingerprint[:8]}"
    return FeatureSource(folder, RunDir(request.runs, data, protocol), training, seed)


def _checked_protocol(request: FeatureRequest, folder: Path, recorded: str, n_known: int) -> str:
    """Name of the protocol of own features; refused when they belong to another than the one asked for."""
    if request.protocol is None:
        return recorded or "own"
    wanted = load_protocol(request.protocol)
    if recorded and recorded != wanted.slug:
        raise UsageError(f"--features {folder} is of protocol {recorded}, not {wanted.slug}; leave --protocol out")
    if n_known != wanted.n_known:
        raise UsageError(
            f"--features {folder} has {n_known} known classes, protocol {wanted.slug} has {wanted.n_known}: "
            "features of another protocol; leave --protocol out for classes of your own"
        )
    return wanted.slug


def _made_features(request: FeatureRequest, enter_ray: Callable[[], None]) -> list[FeatureSource]:
    from oscbench.distributed.stages import Execution, ensure_features  # torchvision, which takes a while to import

    if request.protocol is None:
        raise UsageError("give --protocol 1, 2, 3 or a file, or --features with a folder of your own features")
    workspace = open_workspace(runs=request.runs, data=request.data, protocol=request.protocol, name=request.name)
    execution = Execution(address=request.address, yes=request.yes)
    sources = []
    for loss in request.losses or DEFAULT_LOSSES:
        for seed in request.seeds or DEFAULT_SEEDS:
            folder = workspace.run.features(loss, seed)
            if not all((folder / split / META).exists() for split in SPLITS):
                enter_ray()
            folder = ensure_features(workspace, loss=loss, seed=seed, execution=execution)
            sources.append(FeatureSource(folder, workspace.run, loss, seed))
    return sources
