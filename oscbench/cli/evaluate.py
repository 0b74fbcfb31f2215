"""``oscbench evaluate``: all figures of scores, of features and a post-processor, or of what a search has found."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from oscbench.cli.common import (
    AddressOption,
    DataOption,
    JsonOption,
    RunsOption,
    SeedOption,
    YesOption,
    examples,
    print_json,
)
from oscbench.errors import UsageError

if TYPE_CHECKING:
    from oscbench.distributed.tuning_stage import FeatureRequest
    from oscbench.postprocessors import ScoreKind
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
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help="Trained and tuned results of 1, 2, 3 or a protocol file.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="Training of --protocol: softmax (the default), garbage, eos, all.")
    ] = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="best.yaml of a search, perhaps of another protocol.")
    ] = None,
    data: DataOption = "demo",
    name: Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")] = None,
    runs_folder: RunsOption = Path("runs"),
    address: AddressOption = None,
    yes: YesOption = False,
    alg: Annotated[list[str] | None, typer.Option("--alg", help="Post-processor to fit; repeatable.")] = None,
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
    """Print CCR at four false positive rates, accuracy and AUROC, against negatives and against unknowns.

    With --protocol the best setting found by `oscbench tune` is fitted again (and searched for where there is none),
    and the scores of validation and test are kept. --params takes a setting from elsewhere and shows what it loses.
    """
    from oscbench.report.evaluation import Options, evaluate_split
    from oscbench.report.scoring import runs_from_features, runs_from_scores, save_scores

    if protocol is not None or params is not None:
        from oscbench.cli.tune import parse_losses
        from oscbench.distributed.tuning_stage import FeatureRequest

        if scores is not None or settings or out is not None or not alg:
            raise UsageError("--protocol and --params go with --alg NAME, and not with --scores, --set or --out")
        source = FeatureRequest(
            runs=runs_folder,
            protocol=protocol,
            losses=parse_losses(loss) if loss is not None else None,
            seeds=(seed,),
            data=data,
            name=name,
            features=Path(features) if features is not None else None,
            address=address,
            yes=yes,
        )
        runs = _tuned_runs(source, tuple(alg), params, score_kind)
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


def _tuned_runs(
    source: FeatureRequest, algorithms: tuple[str, ...], params: Path | None, score_kind: str | None
) -> list[Run]:
    """Scores with the settings that searches have found."""
    from oscbench.cli.tune_view import LiveView
    from oscbench.distributed.scoring_stage import RefitRequest, tuned_runs

    kind = cast("ScoreKind | None", score_kind)  # refused by name where a method does not have it
    request = RefitRequest(source=source, algorithms=algorithms, params=params, score_kind=kind)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints warnings of its own to stdout
        return tuned_runs(request, LiveView())


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
    for line in dict.fromkeys(
        text for run, parts in zip(runs, figures, strict=True) for text in _confidence(run, parts)
    ):
        print(line)
    interval = f"; 95 % intervals of {options.resamples} resamples" if options.resamples else ""
    print(f"CCR rule {options.rule}, weights by {options.weights}{interval}; - is a rate that cannot be reached\n")
    named = [(run.origin.label, parts) for run, parts in zip(runs, figures, strict=True)]
    print(markdown(evaluation_table(named)))


def _confidence(run: Run, parts: list[SplitFigures]) -> list[str]:
    """The confidence of the network on each split, once for all post-processors of that network."""
    from oscbench.report.tables import confidence_text

    network = f"network {run.origin.training}".rstrip()
    return [f"{network}, {text}" for text in map(confidence_text, parts) if text]


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
