"""What the papers print beside what was measured here: ``oscbench report --compare paper``."""

from __future__ import annotations

from typing import Final

import pandas as pd

from oscbench.papers.panel import MEASURES
from oscbench.report.blocks import Block, Column, Section, Table
from oscbench.report.compare.cells import (
    EQUATION,
    FPRS,
    SYSTEM,
    TITLES,
    beside_printed,
    measured,
    same_design,
)
from oscbench.report.compare.networks import (
    measured_networks,
    network_orders_table,
    networks_beside_printed,
    networks_table,
)
from oscbench.report.compare.orders import correlations_table, ranks_table
from oscbench.report.compare.pixels import pixels_said
from oscbench.report.compare.resampled import RESAMPLES
from oscbench.report.compare.searches import (
    best_beside_printed,
    best_table,
    measured_searches,
    settings_beside_printed,
    settings_table,
    with_orders,
)
from oscbench.report.compare.verdicts import Measured, claims_tables
from oscbench.report.results import Results

PAPERS: Final = (
    "Printed figures are those of “Large-Scale Evaluation of Open-Set Image Classification Techniques” and "
    "“Large-Scale Open-Set Classification Protocols for ImageNet”: one seed, without intervals."
)
OTHER_DATA: Final = (
    "These are DEMO DATA: small drawn images, a small network and a short training, where the papers have ImageNet and "
    "ResNet-50. No value can be compared with a printed one, so only orders are: which system is better than which, "
    "and whether the papers' claims hold here too."
)
_WORDS: Final = {"holds": "hold", "does not": "do not", "cannot be told": "cannot be told"}


def compare_with_papers(results: Results, *, resamples: int = RESAMPLES) -> Section:
    """The papers' tables and claims beside what lies in a runs folder.

    On embedded data, which are others than the papers', orders are compared and no values.

    Args:
        results: Of one data set.
        resamples: Of the test samples, for the claims' intervals.
    """
    own, aside = same_design(results)
    figures = measured(own)
    cells, networks = beside_printed(figures), networks_beside_printed(measured_networks(own))
    searched = measured_searches(own)
    settings = settings_beside_printed(searched)
    best = with_orders(best_beside_printed(searched), settings)
    blocks: list[Block] = [*claims_tables(Measured.of(own, figures, resamples))]
    if results.demo:
        blocks += [correlations_table(cells), ranks_table(cells), network_orders_table(networks)]
        blocks += [best_table(best, orders_alone=True)]
    else:
        blocks += [cells_table(cells), correlations_table(cells), networks_table(networks)]
        blocks += [best_table(best, orders_alone=False), settings_table(settings)]
    said = [OTHER_DATA] if results.demo else []
    said += [PAPERS, _verdicts(blocks[0]), pixels_said(own), aside]
    return Section(
        name="compare", title="Beside the papers", blocks=tuple(blocks), text="\n\n".join(filter(None, said))
    )


def _verdicts(claims: Block) -> str:
    assert isinstance(claims, Table)
    counts = claims.frame["verdict"].value_counts()
    said = [f"{counts.get(verdict, 0)} {words}" for verdict, words in _WORDS.items()]
    return f"Of the papers' {len(claims.frame)} claims, on these results, {', '.join(said)}."


def cells_table(both: pd.DataFrame) -> Table:
    """Table 2 of the evaluation paper, cell by cell."""
    return Table(
        name="paper_cells",
        title="Test results: Table 2 of the evaluation paper",
        frame=both,
        columns=(
            *(Column(key=name, title=name, choice=True) for name in (*SYSTEM, "kind")),
            Column(key="seeds", title="seeds"),
            Column(key="score_kind", title="score"),
            Column(key="rule", title="setting chosen by rule"),
            *(column for name in MEASURES for column in _beside(name)),
        ),
        note="CCR by the rule of the paper's code (largest FPR strictly below the rate); its equation 14 (smallest FPR "
        "at or above the rate), which its tables do not follow, is the second reading. `score` names the kind that is "
        "compared: `published` is the paper's, any other makes another curve. Blank: not reached, or not there.",
    )


def _beside(name: str) -> list[Column]:
    ends = [("_printed", "printed"), ("", "here"), ("_less", "less"), *([(EQUATION, "eq. 14")] if name in FPRS else [])]
    return [Column(key=f"{name}{end}", title=f"{TITLES[name]} {said}", decimals=4) for end, said in ends]
