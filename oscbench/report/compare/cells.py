"""The cells that both sides have, read as the evaluation paper's code reads them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import auroc, ccr_at_fpr, closed_set_accuracy, oscr_curve
from oscbench.origin import BEST_EPOCH
from oscbench.papers.panel import ALGORITHMS, MEASURES, RATES, TRAININGS
from oscbench.papers.rules import ccr_by_equation_14
from oscbench.papers.tables import printed_results
from oscbench.protocols.base import PUBLISHED
from oscbench.report.blocks import STD
from oscbench.report.results import Cell, Results

KINDS: Final = {"negative": NEGATIVE, "unknown": UNKNOWN}
FPRS: Final = dict(zip(RATES, (1e-3, 1e-2, 1e-1), strict=True))
TITLES: Final = {"auroc": "AUROC", "accuracy": "accuracy", **{name: f"CCR@{name[4:]}" for name in RATES}}
"""What people read above a measure."""

SYSTEM: Final = ["protocol", "algorithm", "training"]
EQUATION: Final = "_equation"
"""Ends the name of a CCR as equation 14 of the evaluation paper has it."""


def same_design(results: Results) -> tuple[Results, str]:
    """The cells that the evaluation paper has too, one network for all of them, and what was left aside.

    Of several networks or recipes the one with the most cells counts. Each cell is the one that answers best to the
    papers' rule, see ``Results.preferred``.
    """
    found = results.preferred("published")
    cells = [cell for cell in found.cells if _is_published(cell) and "test" in cell.splits]
    design = _most_cells(cells, results)
    kept = tuple(cell for cell in cells if _network(cell) == design)
    searches = {cell.search for cell in kept}
    networks = tuple(
        n for n in found.networks if (n.origin.network, n.origin.recipe.removesuffix(BEST_EPOCH)) == design
    )
    others = sorted({" / ".join(_network(cell)) for cell in cells} - {" / ".join(design)})
    aside = f"Networks that are compared: {' / '.join(design)}; left aside: {', '.join(others)}." if others else ""
    return (
        dataclasses.replace(
            found,
            cells=kept,
            searches=tuple(search for search in found.searches if search.folder in searches),
            networks=networks,
        ),
        aside,
    )


def _is_published(cell: Cell) -> bool:
    origin = cell.origin
    return origin.protocol in PUBLISHED and origin.training in TRAININGS and cell.algorithm in ALGORITHMS


def _network(cell: Cell) -> tuple[str, str]:
    return cell.origin.network, cell.origin.recipe


def _most_cells(cells: Sequence[Cell], results: Results) -> tuple[str, str]:
    """Network and recipe of the most cells, of the most trained networks where there are no cells."""
    counted = Counter(map(_network, cells)) or Counter(
        (network.origin.network, network.origin.recipe) for network in results.networks if network.stage == "train"
    )
    return counted.most_common(1)[0][0] if counted else ("", "")


def seeds_of(results: Results) -> list[int]:
    """Of all networks, ascending; one without a seed counts as seed 0."""
    return sorted({cell.origin.seed or 0 for cell in results.cells})


def measured(results: Results) -> pd.DataFrame:
    """A row for each cell and kind: the measures under the rule of the paper's code, and CCR by equation 14."""
    rows = [_figures(cell, kind) for cell in results.cells for kind in KINDS]
    names = [*SYSTEM, "kind", "seed", "score_kind", "rule", *MEASURES, *(name + EQUATION for name in RATES)]
    return pd.DataFrame(rows, columns=names)


def _figures(cell: Cell, kind: str) -> dict[str, Any]:
    scores, label = cell.splits["test"], KINDS[kind]
    curve = oscr_curve(scores.labels, scores.predictions, unknown_label=label)
    figures: dict[str, Any] = {
        "protocol": cell.origin.protocol,
        "algorithm": cell.algorithm,
        "training": cell.origin.training,
        "kind": kind,
        "seed": cell.origin.seed or 0,
        "score_kind": cell.score_kind,
        "rule": cell.ccr_rule,
        "accuracy": closed_set_accuracy(scores.labels, scores.predictions),
        "auroc": auroc(scores.labels, scores.predictions, unknown_label=label),
    }
    figures |= {name: ccr_at_fpr(curve, fpr, rule="published") for name, fpr in FPRS.items()}
    return figures | {name + EQUATION: ccr_by_equation_14(curve, fpr) for name, fpr in FPRS.items()}


def over_seeds(figures: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of each cell and kind, beside it the deviation (``_std``) where there are several.

    A rate that one seed does not reach has no mean.
    """
    values = [*MEASURES, *(name + EQUATION for name in RATES)]
    said = {"seed": "seeds", "score_kind": "score_kind", "rule": "rule"}
    return mean_and_deviation(figures, [*SYSTEM, "kind"], values, said)


def mean_and_deviation(
    figures: pd.DataFrame, key: Sequence[str], values: Sequence[str], said: Mapping[str, str]
) -> pd.DataFrame:
    """A row for each key with the means of ``values``, their deviations and what its rows say, each once.

    A figure that one of the rows does not have has no mean.

    Args:
        figures: The rows.
        key: What those of one mean have in common; a missing value is a value.
        values: Columns of figures.
        said: Columns of texts or numbers that are listed, and what the lists are called.
    """
    groups = figures.groupby([*key], sort=False, dropna=False)
    mean = groups[[*values]].agg(_mean)
    spread = groups[[*values]].agg(_deviation).add_suffix(STD)
    lists = [groups[name].agg(_listed).rename(title) for name, title in said.items()]
    return pd.concat([*lists, mean, spread], axis=1).reset_index()


def _mean(column: pd.Series[float]) -> float:
    return float(column.mean(skipna=False))


def _deviation(column: pd.Series[float]) -> float:
    return float(column.std(ddof=1, skipna=False))


def _listed(column: pd.Series[Any]) -> str:
    return ", ".join(map(str, sorted(each for each in set(column) if each != "")))


def beside_printed(figures: pd.DataFrame) -> pd.DataFrame:
    """Every row of the paper's Table 2 (``_printed``) with what was measured, and measured less printed (``_less``)."""
    printed = printed_results().rename(columns={name: f"{name}_printed" for name in MEASURES})
    both = printed.merge(over_seeds(figures), on=[*SYSTEM, "kind"], how="left")
    both[["seeds", "score_kind", "rule"]] = both[["seeds", "score_kind", "rule"]].fillna("")
    for name in MEASURES:
        both[f"{name}_less"] = both[name] - both[f"{name}_printed"]
    return both
