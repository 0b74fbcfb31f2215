"""``oscbench threshold``: the score above which a sample is accepted, for a false positive rate one can afford."""

from __future__ import annotations

from typing import Annotated

import typer

from oscbench.cli.common import JsonOption, SeedOption, examples, print_json


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(
        epilog=examples(
            "oscbench threshold --scores demo --fpr 0.01",
            "oscbench threshold --scores demo --fpr 0.1 --json",
        )
    )(threshold)


def threshold(
    scores: Annotated[
        str, typer.Option("--scores", help="Folder with val/ (and test/) scores, or one with scores.npy; 'demo'.")
    ],
    fpr: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of negatives that may be taken in.")],
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples behind the 95 % interval of CCR.")] = 1000,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Choose a threshold on validation negatives; show the CCR it gives, and what it does on the test."""
    from oscbench.api.threshold import threshold as choose
    from oscbench.report.tables import markdown, threshold_table

    chosen = choose(scores, fpr, bootstrap=bootstrap, seed=seed)
    if as_json:
        print_json(chosen.document())
        return
    title, report = chosen.title, chosen.report
    print(title.origin.heading)
    print(f"{title.label}: score kind {title.score_kind}")
    print(f"threshold {chosen.value!r}: accept a sample when its highest score is at or above it")
    print(f"chosen on the negatives of {report.chosen_on} for FPR <= {fpr:g}; interval of {bootstrap} resamples\n")
    print(markdown(threshold_table(report)))
