"""``oscbench methods``: what the algorithms and losses are, need and cost, and their hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oscbench.cli.common import JsonOption, examples, print_json, print_rows

if TYPE_CHECKING:
    from oscbench.report.methods import Document

NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help="An algorithm, a loss or a group.")]


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(epilog=examples("oscbench methods", "oscbench methods evm --json"))(methods)


def methods(name: NameArgument = None, json: JsonOption = False) -> None:
    """Print all algorithms and losses, or what one of them is, is good for, needs and costs."""
    from oscbench.api.methods import methods as find
    from oscbench.report.methods import groups_text, method_rows

    found = find(name)
    if json:
        print_json(found.document)
    elif name is None:
        print_rows(method_rows(found.algorithms))
        print()
        print_rows(method_rows(found.losses))
        print(f"\ngroups of algorithms for --alg: {groups_text(found.document)}")
    elif "group" in found.document:
        print_rows(method_rows(found.algorithms))
    else:
        _print_one(found.document)


def _print_one(entry: Document) -> None:
    from oscbench.report.methods import fact_rows, hyperparameter_rows

    facts = fact_rows(entry)
    width = max(map(len, facts))
    for title, text in facts.items():
        print(f"{title:<{width}}  {text}")
    if entry["hyperparameters"]:
        print()
        print_rows(hyperparameter_rows(entry))
