"""Orders of systems, printed beside measured: what can be compared where values cannot."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from oscbench.papers.panel import MEASURES, RATES
from oscbench.report.blocks import Column, Table
from oscbench.report.compare.cells import SYSTEM, TITLES

FEWEST: Final = 3
"""Fewer things have no order worth a figure."""


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Kendall's tau-b of two figures of the same things, NaN where one of them is all equal or there are too few.

    >>> kendall([1, 2, 3, 4], [1, 3, 2, 4])
    0.6666666666666666
    """
    first, second = np.asarray(one, float), np.asarray(other, float)
    if len(first) < FEWEST:
        return math.nan
    left, right = np.triu_indices(len(first), k=1)
    by_one, by_other = np.sign(first[left] - first[right]), np.sign(second[left] - second[right])
    untied = float(np.abs(by_one).sum() * np.abs(by_other).sum())
    return float((by_one * by_other).sum()) / math.sqrt(untied) if untied else math.nan


def _counted(both: pd.DataFrame) -> pd.DataFrame:
    """The cells that both sides have; a rate that is not reached counts as 0, so it comes last."""
    there = both[both["seeds"] != ""]
    blank = {name + side: 0.0 for name in RATES for side in ("", "_printed")}
    return there.fillna(blank)


def ranks(both: pd.DataFrame) -> pd.DataFrame:
    """The place of each system among those of its protocol and kind, printed and measured; 1 is the best."""
    found = _counted(both)
    groups = found.groupby(["protocol", "kind"], sort=False)
    places = {
        f"{name}{side}_rank": groups[name + side].rank(ascending=False, method="min")
        for name in MEASURES
        for side in ("_printed", "")
    }
    return found[[*SYSTEM, "kind", "seeds", "score_kind", "rule"]].assign(**places).reset_index(drop=True)


def correlations(both: pd.DataFrame) -> pd.DataFrame:
    """Kendall's correlation of printed and measured order for each protocol, kind and measure."""
    rows = [
        {
            "protocol": protocol,
            "kind": kind,
            "measure": TITLES[name],
            "systems": len(own),
            "tau": kendall(own[f"{name}_printed"], own[name]),
        }
        for (protocol, kind), own in _counted(both).groupby(["protocol", "kind"], sort=False)
        for name in MEASURES
    ]
    return pd.DataFrame(rows, columns=["protocol", "kind", "measure", "systems", "tau"])


def ranks_table(both: pd.DataFrame) -> Table:
    """Places in each column of the evaluation paper's Table 2."""
    columns = [
        Column(key=f"{name}{side}_rank", title=f"{TITLES[name]} {said}", decimals=0)
        for name in MEASURES
        for side, said in (("_printed", "printed"), ("", "here"))
    ]
    return Table(
        name="paper_ranks",
        title="Order of the systems",
        frame=ranks(both),
        columns=(
            *(Column(key=name, title=name, choice=True) for name in (*SYSTEM, "kind")),
            Column(key="score_kind", title="score"),
            *columns,
        ),
        note="Places among the systems of a protocol that are there on both sides, 1 is the best; equals share one. "
        "A rate that is not reached comes last. CCR by the rule of the paper's code: the largest FPR below the rate.",
    )


def correlations_table(both: pd.DataFrame) -> Table:
    """How alike the orders are."""
    return Table(
        name="paper_orders",
        title="How alike the orders are",
        frame=correlations(both),
        columns=(
            *(Column(key=name, title=name, choice=True) for name in ("protocol", "kind", "measure")),
            Column(key="systems", title="systems", decimals=0),
            Column(key="tau", title="Kendall's τ", decimals=2),
        ),
        note="Of the printed and the measured order of the systems: 1 is the same, 0 none, -1 the reverse.",
    )
