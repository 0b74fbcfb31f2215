"""``oscbench evaluate``: all figures of scores, of features and a post-processor, or of what a search has found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

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
    SeedOption,
    YesOption,
    examples,
    open_session,
    print_json,
    print_plan,
    training_options,
)
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.cli.tune_view import LiveView
    from oscbench.metrics import CcrRule
    from oscbench.postprocessors import ScoreKind
    from oscbench.report.evaluation import Options, SplitFigures
    from oscbench.runs import Run
    from oscbench.stages.features import AnyFeatures, FeatureRequest
    from oscbench.stages.scores import Scores
    from oscbench.tuning.trials import Best

ScoresOption = Annotated[
    list[str] | None,
    typer.Option("--scores", help="Folder with scores.npy and labels.npy, or with val/ and test/; 'demo'; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench evaluate --scores demo --bootstrap 200",
            "oscbench evaluate --features demo --alg posthoc --plots plots",
        )
    )(evaluate)


def evaluate(
    scores: ScoresOption = None,
    features: Annotated[
        str | None, typer.Option("--features", help="Folder with train/, val/, test/ features; 'demo'.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="Trained and tuned results of 1, 2, 3 or a protocol file.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="Training of --protocol: softmax (the default), garbage, eos, all.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds of the trainings of --protocol: 0,1,2; default: --seed.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="best.yaml of a search, perhaps of another protocol.")
    ] = None,
    data: DataOption = "demo",
    name: NameOption = None,
    runs_folder: RunsOption = Path("runs"),
    num_workers: NumWorkersOption = 1,
    cpus_per_worker: CpusPerWorkerOption = None,
    gpus_per_worker: GpusPerWorkerOption = None,
    loader: LoaderOption = "auto",
    address: AddressOption = None,
    local: LocalOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    alg: Annotated[
        list[str] | None,
        typer.Option("--alg", help="Post-processor to fit, or several: mss,mls; posthoc; all. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Hyperparameter NAME=VALUE of the one --alg; repeatable.")
    ] = None,
    score_kind: Annotated[
        Literal["log", "probability", "logit", "native", "published"] | None,
        typer.Option("--score-kind", help="Default: the one the search used, else the method's first."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the scores of --features here.")] = None,
    rule: Annotated[
        Literal["inclusive", "published"], typer.Option(help="How CCR is read at a rate; 'published': strictly below.")
    ] = "inclusive",
    weights: Annotated[
        Literal["sample", "class"], typer.Option(help="Whether known samples or known classes count the same.")
    ] = "sample",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples behind 95 % intervals; 0: none.")] = 0,
    seed: SeedOption = 0,
    plots: Annotated[Path | None, typer.Option("--plots", help="Write plots (PNG, PDF) into this folder.")] = None,
    fpr: Annotated[float, typer.Option(min=0.0, max=1.0, help="Rate of the threshold shown in plots.")] = 0.1,
    as_json: JsonOption = False,
) -> None:
    """Print CCR at four false positive rates, accuracy and AUROC, against negatives and against unknowns.

    With --protocol the best setting found by `oscbench tune` is fitted again (and searched for where there is none),
    and the scores of validation and test are kept. --params takes a setting from elsewhere and shows what it loses.
    A group of algorithms, or several seeds, are ranked by what they reach on test unknowns.
    """
    from oscbench.report.evaluation import Options, evaluate_split
    from oscbench.runs import runs_from_features, runs_from_scores, save_scores

    asked = Asked(alg or [])
    if protocol is not None or params is not None:
        from oscbench.cli.train import parse_losses
        from oscbench.cli.tune import parse_seeds
        from oscbench.cli.tune_view import LiveView
        from oscbench.stages.features import FeatureRequest
        from oscbench.stages.stage import plan

        if scores is not None or settings or out is not None or not alg:
            raise UsageError("--protocol and --params go with --alg NAME, and not with --scores, --set or --out")
        request = FeatureRequest(
            runs=runs_folder,
            protocol=protocol,
            losses=parse_losses(loss) if loss is not None else None,
            seeds=parse_seeds(seeds) if seeds is not None else (seed,),
            data=data,
            name=name,
            features=Path(features) if features is not None else None,
            options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
        )
        view = LiveView(runs_folder)
        say = (lambda _: None) if dry_run else view.say
        wanted = _tuned_scores(request, asked, params, score_kind, rule, view, say)
        asked.require_some(wanted)
        with open_session(address, local, view.dashboard) as session:
            if dry_run:
                print_plan(plan([stage for stage, _ in wanted], session), as_json)
                return
            made = asked.ensure([stage for stage, _ in wanted], session, yes=yes)
        runs = [_run_of(stage, label) for stage, label in wanted if stage in made]
    elif seeds is not None:
        raise UsageError("--seeds names trainings of --protocol; scores and features given by hand are what they are")
    elif dry_run:
        raise UsageError("--dry-run shows the stages of --protocol; scores and features given by hand have none")
    elif (scores is None) == (features is None):
        raise UsageError(
            "give either --scores DIR or --features DIR with --alg NAME (DIR may be 'demo'), or --protocol with --alg"
        )
    elif scores is not None:
        if alg or settings or score_kind or out:
            raise UsageError("--alg, --set, --score-kind and --out go with --features, not with --scores")
        runs = runs_from_scores(scores)
    else:
        if not alg:
            raise UsageError("--features needs --alg NAME, for example --alg mss")
        runs = runs_from_features(
            features or "",
            list(asked.by_name),
            parse_settings(settings or []),
            score_kind=score_kind,
            trying=asked.trying,
        )
        asked.require_some(runs)
        if out is not None:
            save_scores(runs, out)
    options = Options(rule=rule, weights=weights, resamples=bootstrap, seed=seed)
    figures = [[evaluate_split(split, part, options) for split, part in run.splits.items()] for run in runs]
    ranked = asked.has_group or len({run.title.origin.seed for run in runs}) > 1
    if as_json:
        print_json(_document(runs, figures, options) | {"left_out": asked.left_out})
    elif ranked:
        _print_ranking(runs, figures, options)
    else:
        _print_tables(runs, figures, options)
    if plots is not None:
        from oscbench.report.evaluation_plots import write_plots, write_ranking

        written = write_ranking(runs, figures, plots) if ranked else write_plots(runs, figures, plots, fpr)
        typer.echo(f"{len(written)} files in {plots}", err=True)


def _tuned_scores(
    request: FeatureRequest,
    asked: Asked,
    params: Path | None,
    score_kind: ScoreKind | None,
    rule: CcrRule,
    view: LiveView,
    say: Callable[[str], None],
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
    how: Any = {"rule": rule, "score_kind": score_kind, "training": request.options}
    how["searches"] = functools.cache(lambda: finished_searches(sources[0].room))  # read once, if anybody asks
    for features in sources:
        for algorithm in asked.by_name:
            with asked.trying(algorithm):
                if given is not None:
                    wanted += _transferred(features, given, view, how)
                    continue
                stage = scores_of_best(features, algorithm, view, **how)
                if any(step.name == "tune" and step.state() not in ("done", "given") for step in stage.inputs.values()):
                    say(f"{algorithm} has not been tuned on {features.folder}; searching its grid first")
                wanted.append((stage, algorithm))
    return wanted


def _transferred(features: AnyFeatures, given: Best, view: LiveView, how: dict[str, Any]) -> list[tuple[Scores, str]]:
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
    import dataclasses

    from oscbench.runs import Run, title_of

    splits = stage.load()
    title = title_of(next(iter(splits.values())), str(stage.folder))
    return Run(title=dataclasses.replace(title, algorithm=label), splits=splits)


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """Hyperparameters from ``NAME=VALUE``, values read as YAML scalars."""
    import yaml

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"--set {setting!r}: expected NAME=VALUE, for example tail_size=50")
        if name in values:
            raise UsageError(f"--set {name} is given twice")
        values[name] = yaml.safe_load(text)
    return values


def _print_tables(runs: list[Run], figures: list[list[SplitFigures]], options: Options) -> None:
    from oscbench.report.tables import evaluation_table, markdown

    for heading in dict.fromkeys(run.title.origin.heading for run in runs):
        print(heading)
    for run in runs:
        params = ", ".join(f"{name}={value}" for name, value in run.title.params.items())
        print(f"{run.title.label}: score kind {run.title.score_kind}{f'; {params}' if params else ''}")
    for line in _confidence(runs, figures):
        print(line)
    interval = f"; 95 % intervals of {options.resamples} resamples" if options.resamples else ""
    print(f"CCR rule {options.rule}, weights by {options.weights}{interval}; - is a rate that cannot be reached\n")
    titled = [(run.title, parts) for run, parts in zip(runs, figures, strict=True)]
    print(markdown(evaluation_table(titled)))


def _print_ranking(runs: list[Run], figures: list[list[SplitFigures]], options: Options) -> None:
    from oscbench.report.ranking import ranking, ranking_table
    from oscbench.report.tables import markdown

    standings = ranking((run.title, parts) for run, parts in zip(runs, figures, strict=True))
    for heading in dict.fromkeys(run.title.origin.heading for run in runs):
        print(heading)
    for name in ("training", "network"):
        common = {getattr(standing, name) for standing in standings}
        if len(common) == 1 and any(common):
            print(f"{name}: {common.pop()}")
    seeds = {standing.seeds for standing in standings}
    which = f"seeds {', '.join(map(str, *seeds))}" if len(seeds) == 1 else "the seeds listed"
    over = f"mean over {which} with 95 % interval; " if max(map(len, seeds)) > 1 else ""
    drawn = f"95 % intervals of {options.resamples} resamples; " if options.resamples and not over else ""
    print(
        f"Sum of CCR at FPR 1e-3, 1e-2, 1e-1 and 1, {over}{drawn}CCR rule {options.rule}, weights by {options.weights}"
    )
    print("lost: from validation negatives, on which settings are chosen, to test unknowns\n")
    print(markdown(ranking_table(standings)))


def _confidence(runs: list[Run], figures: list[list[SplitFigures]]) -> list[str]:
    """The confidence of each network on each split, once for all post-processors of that network.

    A network is called by its training; where several have that name, also by what was made of each.
    """
    from oscbench.report.tables import confidence_text

    networks: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for run, parts in zip(runs, figures, strict=True):
        texts = tuple(filter(None, map(confidence_text, parts)))
        networks.setdefault((run.title.origin.training, texts), []).append(run.title.algorithm)
    trainings = [training for training, _ in networks]
    lines = []
    for (training, texts), algorithms in networks.items():
        made = f" ({', '.join(algorithms)})" if trainings.count(training) > 1 else ""
        lines += [f"network {training}".rstrip() + f"{made}, {text}" for text in texts]
    return lines


def _document(runs: list[Run], figures: list[list[SplitFigures]], options: Options) -> dict[str, Any]:
    from oscbench.report.ranking import ranking, ranking_document
    from oscbench.report.tables import split_document

    return {
        "rule": options.rule,
        "weights": options.weights,
        "resamples": options.resamples,
        "seed": options.seed,
        "runs": [
            run.title.document() | {"splits": [split_document(part) for part in parts]}
            for run, parts in zip(runs, figures, strict=True)
        ],
        "ranking": ranking_document(ranking((run.title, parts) for run, parts in zip(runs, figures, strict=True))),
    }
