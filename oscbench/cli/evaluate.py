"""``oscbench evaluate``: all figures of a folder of scores, or of features and a post-processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oscbench.cli.common import JsonOption, SeedOption, examples, print_json
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.report.evaluation import Options, SplitFigures
    from oscbench.report.scoring import Run

ScoresOption = Annotated[
    list[str] | None,
    typer.Option("--scores", help="Folder with scores.npy and labels.npy, or with val/ and test/; 'demo'; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench evaluate --scores demo --bootstrap 200",
            "oscbench evaluate --features demo --alg mss --alg mls --plots plots",
        )
    )(evaluate)


def evaluate(
    scores: ScoresOption = None,
    features: Annotated[
        str | None, typer.Option("--features", help="Folder with train/, val/, test/ features; 'demo'.")
    ] = None,
    alg: Annotated[list[str] | None, typer.Option("--alg", help="Post-processor for --features; repeatable.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Hyperparameter NAME=VALUE of the one --alg; repeatable.")
    ] = None,
    score_kind: Annotated[
        str | None, typer.Option(help="log, probability or logit; default: the post-processor's own.")
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
    """Print CCR at four false positive rates, accuracy and AUROC, against negatives and against unknowns."""
    from oscbench.report.evaluation import Options, evaluate_split
    from oscbench.report.scoring import runs_from_features, runs_from_scores, save_scores

    if (scores is None) == (features is None):
        raise UsageError("give either --scores DIR or --features DIR with --alg NAME (DIR may be 'demo')")
    if scores is not None:
        if alg or settings or score_kind or out:
            raise UsageError("--alg, --set, --score-kind and --out go with --features, not with --scores")
        runs = runs_from_scores(scores)
    else:
        if not alg:
            raise UsageError("--features needs --alg NAME, for example --alg mss")
        runs = runs_from_features(features or "", alg, parse_settings(settings or []), score_kind=score_kind)
        if out is not None:
            save_scores(runs, out)
    options = Options(rule=rule, weights=weights, resamples=bootstrap, seed=seed)
    figures = [[evaluate_split(split, part, options) for split, part in run.splits.items()] for run in runs]
    if as_json:
        print_json(_document(runs, figures, options))
    else:
        _print_tables(runs, figures, options)
    if plots is not None:
        from oscbench.report.evaluation_plots import write_plots

        written = write_plots(runs, figures, plots, fpr)
        typer.echo(f"{len(written)} files in {plots}", err=True)


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

    for heading in dict.fromkeys(run.origin.data_heading for run in runs):
        print(heading)
    for run in runs:
        params = ", ".join(f"{name}={value}" for name, value in run.origin.params.items())
        print(f"{run.origin.label}: score kind {run.origin.score_kind}{f'; {params}' if params else ''}")
    interval = f"; 95 % intervals of {options.resamples} resamples" if options.resamples else ""
    print(f"CCR rule {options.rule}, weights by {options.weights}{interval}; - is a rate that cannot be reached\n")
    named = [(run.origin.label, parts) for run, parts in zip(runs, figures, strict=True)]
    print(markdown(evaluation_table(named)))


def _document(runs: list[Run], figures: list[list[SplitFigures]], options: Options) -> dict[str, Any]:
    import dataclasses

    from oscbench.report.tables import split_document

    return {
        "rule": options.rule,
        "weights": options.weights,
        "resamples": options.resamples,
        "seed": options.seed,
        "runs": [
            dataclasses.asdict(run.origin)
            | {"demo": run.origin.is_demo, "splits": [split_document(part) for part in parts]}
            for run, parts in zip(runs, figures, strict=True)
        ],
    }
