"""``evaluate``: all figures of scores, of features and a post-processor, or of what searches have found."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oscbench.api.evaluation import Evaluation
from oscbench.api.session import Asked, Loader, LogView, View, chosen_losses, session_for, training_options
from oscbench.errors import UsageError
from oscbench.store import check_local

if TYPE_CHECKING:
    from oscbench.api.tune import Settings
    from oscbench.metrics import CcrRule, Weights
    from oscbench.postprocessors import ScoreKind
    from oscbench.runs import Run
    from oscbench.stages.features import AnyFeatures, FeatureRequest
    from oscbench.stages.runner import Session
    from oscbench.stages.scores import Scores
    from oscbench.tuning.trials import Best


def evaluate(
    scores: str | Path | Sequence[str | Path] | None = None,
    *,
    features: str | Path | None = None,
    protocol: int | str | None = None,
    loss: str | Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    params: str | Path | None = None,
    data: str = "demo",
    name: str | None = None,
    runs: str | Path = "runs",
    num_workers: int = 1,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    loader: Loader = "auto",
    address: str | None = None,
    local: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    alg: str | Sequence[str] | None = None,
    settings: Settings = (),
    score_kind: ScoreKind | None = None,
    out: str | Path | None = None,
    rule: CcrRule = "inclusive",
    weights: Weights = "sample",
    bootstrap: int = 0,
    seed: int = 0,
    session: Session | None = None,
    view: View | None = None,
) -> Evaluation:
    """CCR at four false positive rates, accuracy and AUROC, against negatives and against unknowns.

    Of ``scores``; or of ``features`` and post-processors, which are fitted now; or, with ``protocol``, of the best
    settings that ``tune`` has found there (searched for where there are none), whose scores are kept. ``params`` takes
    a setting from elsewhere and evaluates it beside the best one found here.

    Args:
        scores: Folder with ``scores.npy`` and ``labels.npy``, or with ``val/`` and ``test/``; ``demo``; or several.
        features: Folder with ``train/``, ``val/`` and ``test/``; ``demo`` for synthetic ones.
        protocol: 1, 2, 3, or a protocol file of one's own.
        loss: Trainings of ``protocol``: ``softmax`` (the default), ``garbage``, ``eos``, ``objectosphere``, ``all``.
        seeds: Of those trainings; default: ``seed``.
        params: ``best.yaml`` of a search, perhaps of another protocol.
        data: Image folder of ``protocol``, or ``demo`` for the embedded data.
        name: Name of the data below the runs folder.
        runs: Folder that receives all results of ``protocol``.
        num_workers: Workers of a training that is not there yet, and of a trial that trains.
        cpus_per_worker: CPUs of each.
        gpus_per_worker: GPUs of each.
        loader: Image loader.
        address: An existing Ray cluster; default: start Ray here.
        local: Run everything in this process, without Ray.
        yes: Agree to stages that take long.
        dry_run: Only plan.
        alg: Post-processor to fit, or several: ``evm``, ``["mss", "mls"]``, ``posthoc``, ``all``.
        settings: Hyperparameters of the only post-processor: ``{"tail_size": 50}``, or the same as texts.
        score_kind: Default: the one the search used, else the method's first.
        out: Write the scores of ``features`` here.
        rule: How CCR is read at a rate; ``published``: strictly below.
        weights: Whether known samples or known classes count the same.
        bootstrap: Resamples behind 95 % intervals; 0: none.
        seed: Of the resamples, and of the training where ``seeds`` names none.
        session: Who executes; default: one opened for this call, as ``address`` and ``local`` say.
        view: Who is told what happens; default: the log.

    >>> evaluated = evaluate("demo")
    >>> evaluated.table[["against", "CCR@1e-1", "AUROC"]].round(2).values.tolist()
    [['negative', 0.54, 0.8], ['negative', 0.49, 0.78], ['unknown', 0.61, 0.83]]
    """
    from oscbench.report.evaluation import Options, evaluate_split
    from oscbench.runs import save_scores
    from oscbench.stages.features import FeatureRequest
    from oscbench.stages.stage import plan

    view = view or LogView()
    asked, given = Asked(alg or [], view.say), [scores] if isinstance(scores, str | Path) else [*(scores or ())]
    if bootstrap < 0:
        raise UsageError(f"bootstrap is at least 0, got {bootstrap}")
    options, kept = Options(rule=rule, weights=weights, resamples=bootstrap, seed=seed), list[Path]()
    if protocol is not None or params is not None:
        if given or settings or out is not None or not alg:
            raise UsageError("--protocol and --params go with --alg NAME, and not with --scores, --set or --out")
        request = FeatureRequest(
            runs=check_local(Path(runs)),
            protocol=str(protocol) if protocol is not None else None,
            losses=chosen_losses(loss) if loss is not None else None,
            seeds=tuple(seeds) if seeds is not None else (seed,),
            data=str(data),
            name=name,
            features=Path(features) if features is not None else None,
            options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
        )
        how = {"rule": rule, "score_kind": score_kind}
        wanted = _tuned_scores(request, asked, Path(params) if params is not None else None, view, dry_run, how)
        asked.require_some(wanted)
        with session_for(session, address, local, view.dashboard) as executing:
            if dry_run:
                steps = plan([stage for stage, _ in wanted], executing)
                return Evaluation(options=options, plan=tuple(steps), left_out=tuple(asked.left_out))
            made = asked.ensure([stage for stage, _ in wanted], executing, yes=yes)
        found = [_run_of(stage, label) for stage, label in wanted if stage in made]
        kept = [stage.folder for stage, _ in wanted if stage in made]
    elif seeds is not None:
        raise UsageError("--seeds names trainings of --protocol; scores and features given by hand are what they are")
    elif dry_run:
        raise UsageError("--dry-run shows the stages of --protocol; scores and features given by hand have none")
    else:
        found = _runs_by_hand(given, features, asked, settings, score_kind, out is not None)
        if out is not None:
            kept = save_scores(found, Path(out))
    return Evaluation(
        runs=tuple(found),
        measured=tuple(
            tuple(evaluate_split(split, part, options) for split, part in run.splits.items()) for run in found
        ),
        options=options,
        ranked=asked.has_group or len({run.title.origin.seed for run in found}) > 1,
        folders=tuple(kept),
        left_out=tuple(asked.left_out),
    )


def _runs_by_hand(
    scores: Sequence[str | Path],
    features: str | Path | None,
    asked: Asked,
    settings: Settings,
    score_kind: ScoreKind | None,
    kept: bool,
) -> list[Run]:
    """What is given as scores, or as features to which post-processors are fitted now."""
    from oscbench.runs import runs_from_features, runs_from_scores

    if bool(scores) == (features is not None):
        raise UsageError(
            "give either --scores DIR or --features DIR with --alg NAME (DIR may be 'demo'), or --protocol with --alg"
        )
    if features is None:
        if asked.by_name or settings or score_kind or kept:
            raise UsageError("--alg, --set, --score-kind and --out go with --features, not with --scores")
        return runs_from_scores(scores)
    if not asked.by_name:
        raise UsageError("--features needs --alg NAME, for example --alg mss")
    runs = runs_from_features(
        features, list(asked.by_name), _values(settings), score_kind=score_kind, trying=asked.trying
    )
    asked.require_some(runs)
    return runs


# --- scores that searches stand behind -----------------------------------------------------------------------------


def _tuned_scores(
    request: FeatureRequest,
    asked: Asked,
    params: Path | None,
    view: View,
    dry_run: bool,
    how: Mapping[str, Any],
) -> list[tuple[Scores, str]]:
    """The scores that are asked for, each with what tables call it.

    Those of the best setting found; with a setting from elsewhere those of that, and of the best one here beside it.
    """
    from oscbench.stages.features import requested_features
    from oscbench.stages.scores import scores_of_best
    from oscbench.stages.search import finished_searches
    from oscbench.tuning.trials import Best

    given = Best.read(params) if params is not None else None
    if given is not None and [*asked.by_name] != [given.algorithm]:
        raise UsageError(f"--params {params} holds a setting of {given.algorithm}; use --alg {given.algorithm}")
    wanted: list[tuple[Scores, str]] = []
    sources = requested_features(request)  # all of one data and protocol
    how = {**how, "training": request.options}
    how["searches"] = functools.cache(lambda: finished_searches(sources[0].room))  # read once, if anybody asks
    for features in sources:
        for algorithm in asked.by_name:
            with asked.trying(algorithm):
                if given is not None:
                    wanted += _transferred(features, given, view, how)
                    continue
                stage = scores_of_best(features, algorithm, view, **how)
                searched = all(
                    step.name != "tune" or step.state() in ("done", "given") for step in stage.inputs.values()
                )
                if not searched and not dry_run:
                    view.say(f"{algorithm} has not been tuned on {features.folder}; searching its grid first")
                wanted.append((stage, algorithm))
    return wanted


def _transferred(features: AnyFeatures, given: Best, view: View, how: Mapping[str, Any]) -> list[tuple[Scores, str]]:
    """The scores with a setting from elsewhere, and those with the best one found here."""
    from oscbench.stages.scores import best_search, has_hyperparameters, scores_of_best, scores_with

    algorithm, wanted = given.algorithm, list[tuple["Scores", str]]()
    found = {name: how[name] for name in ("rule", "score_kind", "searches")}
    here = best_search(features, algorithm, **found)
    if here is None or not _is_from(given, features, here.result.params):
        name = f"{algorithm} with the setting of {given.data} {given.protocol} {given.training}"
        kind = how["score_kind"] or cast("ScoreKind", given.score_kind)
        wanted.append((scores_with(features, algorithm, given.params, kind, training=how["training"]), name))
    if here is not None:
        wanted.append((scores_of_best(features, algorithm, view, **how), f"{algorithm} tuned here"))
    elif has_hyperparameters(algorithm):
        view.say(f"no search of {algorithm} on these features yet, so there is nothing to compare with")
    return wanted


def _is_from(given: Best, features: AnyFeatures, params: dict[str, Any]) -> bool:
    """Whether a setting is the one that was found on these features."""
    origin = features.origin
    there = (given.data, given.protocol, given.training, given.seed, given.params)
    return there == (origin.data, origin.protocol, origin.training, origin.seed or 0, params)


def _run_of(stage: Scores, label: str) -> Run:
    """The finished scores as a run of the report."""
    from oscbench.runs import Run, title_of

    splits = stage.load()
    title = title_of(next(iter(splits.values())), stage.folder)
    return Run(title=dataclasses.replace(title, algorithm=label), splits=splits)


def _values(settings: Settings) -> dict[str, Any]:
    """Hyperparameters by name, also from ``NAME=VALUE``, where values are read as YAML scalars."""
    import yaml

    if isinstance(settings, Mapping):
        return dict(settings)
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"--set {setting!r}: expected NAME=VALUE, for example tail_size=50")
        if name in values:
            raise UsageError(f"--set {name} is given twice")
        values[name] = yaml.safe_load(text)
    return values
