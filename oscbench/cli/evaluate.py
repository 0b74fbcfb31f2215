"""``oscbench evaluate``: all figures of scores, of features and a post-processor, or of what a search has found."""

from __future__ import annotations

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
    SeedOption,
    YesOption,
    examples,
    print_json,
    print_plan,
)

if TYPE_CHECKING:
    from oscbench.api.evaluation import Evaluation

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
    runs: RunsOption = Path("runs"),
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
    set_values: Annotated[
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
    from oscbench.api.evaluate import evaluate as run_evaluate
    from oscbench.cli.tune import parse_seeds
    from oscbench.cli.tune_view import LiveView

    result = run_evaluate(
        scores,
        features=features,
        protocol=protocol,
        loss=loss,
        seeds=parse_seeds(seeds) if seeds is not None else None,
        params=params,
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
        alg=alg,
        settings=set_values or (),
        score_kind=score_kind,
        out=out,
        rule=rule,
        weights=weights,
        bootstrap=bootstrap,
        seed=seed,
        view=LiveView(runs),
    )
    if dry_run:
        print_plan(result.plan, as_json)
        return
    if as_json:
        print_json(result.document())
    elif result.ranked:
        _print_ranking(result)
    else:
        _print_tables(result)
    if plots is not None:
        typer.echo(f"{len(result.plots(plots, fpr=fpr))} files in {plots}", err=True)


def _print_tables(found: Evaluation) -> None:
    from oscbench.report.tables import evaluation_table, markdown

    for heading in dict.fromkeys(run.title.origin.heading for run in found.runs):
        print(heading)
    for run in found.runs:
        params = ", ".join(f"{name}={value}" for name, value in run.title.params.items())
        print(f"{run.title.label}: score kind {run.title.score_kind}{f'; {params}' if params else ''}")
    for line in _confidence(found):
        print(line)
    options = found.options
    interval = f"; 95 % intervals of {options.resamples} resamples" if options.resamples else ""
    print(f"CCR rule {options.rule}, weights by {options.weights}{interval}; - is a rate that cannot be reached\n")
    titled = [(run.title, parts) for run, parts in zip(found.runs, found.measured, strict=True)]
    print(markdown(evaluation_table(titled)))


def _print_ranking(found: Evaluation) -> None:
    from oscbench.report.ranking import ranking_table
    from oscbench.report.tables import markdown

    standings, options = found.standings, found.options
    for heading in dict.fromkeys(run.title.origin.heading for run in found.runs):
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


def _confidence(found: Evaluation) -> list[str]:
    """The confidence of each network on each split, once for all post-processors of that network.

    A network is called by its training; where several have that name, also by what was made of each.
    """
    from oscbench.report.tables import confidence_text

    networks: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for run, parts in zip(found.runs, found.measured, strict=True):
        texts = tuple(filter(None, map(confidence_text, parts)))
        networks.setdefault((run.title.origin.training, texts), []).append(run.title.algorithm)
    trainings = [training for training, _ in networks]
    lines = []
    for (training, texts), algorithms in networks.items():
        made = f" ({', '.join(algorithms)})" if trainings.count(training) > 1 else ""
        lines += [f"network {training}".rstrip() + f"{made}, {text}" for text in texts]
    return lines
