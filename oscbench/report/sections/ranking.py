"""Who can be told from the best: mean ranks with critical differences, and differences within each protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from oscbench.report.blocks import HIGH, LOW, Column, Mark, Section, Table
from oscbench.report.charts.base import label_of
from oscbench.report.evaluation import KINDS
from oscbench.report.measures import Measures
from oscbench.report.ranks import (
    ALPHA,
    ENOUGH_BLOCKS,
    ENOUGH_SEEDS,
    RESAMPLES,
    Differences,
    RankTest,
    differences_over_resamples,
    differences_over_seeds,
    resampled_sums,
)
from oscbench.report.results import Cell, Results
from oscbench.report.sections.base import (
    KIND_TITLES,
    NETWORK,
    figure_columns,
    in_order,
    name_columns,
    named,
)

_DESIGNS: Final = {
    "post-processors": (("algorithm",), ("protocol", "training", *NETWORK, "seed"), "protocol, training and seed"),
    "systems": (("training", "algorithm"), ("protocol", *NETWORK, "seed"), "protocol and seed"),
}
"""By name: what is ranked, within what, and that in words."""

_SYSTEM: Final = ("training", "algorithm", *NETWORK)
_TOLD: Final = {True: "worse", False: "cannot be told"}


def ranking_section(results: Results, measures: Measures) -> Section:
    """Ranks over blocks where there are enough of them, and differences to the best of each protocol."""
    test = measures.frame[measures.frame["preferred"] & (measures.frame["split"] == "test")]
    tables = [
        table
        for kind in ("unknown", "negative")
        for design in _DESIGNS
        if (table := _rank_table(test[test["kind"] == kind], kind, design)) is not None
    ]
    tables += [
        table for kind in ("unknown", "negative") if (table := _difference_table(measures, test, kind)) is not None
    ]
    text = "" if tables else "There are no two methods to compare on test images."
    return Section(name="ranks", title="Who can be told from the best", blocks=tuple(tables), text=text)


# --- ranks ------------------------------------------------------------------------------------------------------------


def _rank_table(test: pd.DataFrame, kind: str, design: str) -> Table | None:
    """``None`` where there are too few complete blocks."""
    methods, within, words = _DESIGNS[design]
    test = test.assign(seed=test["seed"].fillna(-1))  # networks of a seed that is not known are a block too
    values = test.pivot_table(index=[*within], columns=[*methods], values="sum", sort=False, dropna=False)
    values = values.dropna(axis="columns", how="all").dropna(axis="index", how="all")
    wide = values.loc[:, values.notna().mean() >= 0.5]  # a method that is there in a few blocks would cost the others
    complete = wide.dropna()
    if len(complete) < ENOUGH_BLOCKS or complete.shape[1] < 2:
        return None
    found = RankTest.of(complete.to_numpy(float))
    names = [name if isinstance(name, tuple) else (name,) for name in complete.columns]
    rows = [
        dict(zip(methods, name, strict=True))
        | {"mean_rank": rank, "behind": rank - found.mean_ranks.min(), "sum": total, "groups": letters}
        | {"told": "best" if rank == found.mean_ranks.min() else _TOLD[bool(told)]}
        for name, rank, total, letters, told in zip(
            names,
            found.mean_ranks,
            complete.mean().to_numpy(float),
            found.letters,
            found.told_from_best,
            strict=True,
        )
    ]
    frame = pd.DataFrame(rows).sort_values("mean_rank", kind="stable", ignore_index=True)
    columns = (
        *name_columns(frame, methods),
        *figure_columns({"mean_rank": "Mean rank", "behind": "Behind the best"}, decimals=2),
        Column(key="groups", title="Groups"),
        Column(key="told", title="From the best", choice=True),
        *figure_columns({"sum": "Mean Σ"}),
    )
    return Table(
        name=f"ranks-{design}-{kind}",
        title=f"{design.capitalize()} ranked on test {KIND_TITLES[kind]}",
        frame=named(frame).assign(critical_difference=found.difference, friedman_p=found.p, blocks=found.n_blocks),
        columns=columns,
        note=_rank_note(found, words, [label for label in values.columns if label not in set(complete.columns)]),
        marks=_marks(frame["told"], "mean_rank"),
        folded=kind != "unknown",
    )


def _rank_note(found: RankTest, words: str, missing: Sequence[Any]) -> str:
    parts = [
        f"Ranked by the sum of CCR within each {words}, {found.n_blocks} blocks in which all are there.",
        f"Friedman's χ² {found.statistic:.2f}, p = {found.p:.2g}.",
    ]
    if math.isinf(found.difference):
        parts.append(f"At {ALPHA:g} the test sees no difference: nobody can be told from anybody.")
    else:
        parts.append(
            f"Mean ranks differ when they are more than {found.difference:.2f} apart (Nemenyi's critical difference at "
            f"{ALPHA:g}, Demšar 2006); who shares a letter cannot be told apart."
        )
    if missing:
        names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in missing]
        parts.append(f"Left out, in fewer than half of the blocks: {'; '.join(names)}.")
    return " ".join(
        [*parts, "Blocks that share images or networks are not independent, so p is too small if anything."]
    )


def _marks(told: pd.Series[str], column: str) -> dict[tuple[int, str], Mark]:
    """The best, and those that cannot be told from it."""
    marks: dict[str, Mark] = {"best": "best", _TOLD[False]: "open"}
    return {(row, column): marks[value] for row, value in enumerate(told) if value in marks}


# --- differences ------------------------------------------------------------------------------------------------------


def _difference_table(measures: Measures, test: pd.DataFrame, kind: str) -> Table | None:
    rows, missing = list[dict[str, Any]](), list[str]()
    for _, own in test[test["kind"] == kind].groupby(["data", "protocol"], sort=False):
        systems, apart = _paired(own, measures)
        missing += [f"{label_of('protocol', name[0])} {name[2]} {name[1]}" for name in apart]
        rows += _differences(measures, systems, kind) if len(systems) > 1 else []
    if not rows:
        return None
    frame = in_order(pd.DataFrame(rows), ["protocol"])
    compared = {"sum": "Σ", "lacking": "Behind the best", "lacking_here": "Behind the best of its training"}
    told = {"told": "From the best", "told_here": "From the best of its training"}
    columns = name_columns(frame, ["protocol", "algorithm", "training", *NETWORK, "seeds"])
    columns += figure_columns(compared)
    columns += tuple(Column(key=key, title=title, choice=True) for key, title in told.items())
    note = (
        "Σ is the sum of CCR at the four rates. Intervals of the difference to the best are simultaneous at 95 % "
        f"(Bonferroni), {', '.join(dict.fromkeys(frame['by']))}. 'cannot be told': the interval holds 0, and the order "
        "may be noise."
    )
    return Table(
        name=f"differences-{kind}",
        title=f"Behind the best of each protocol on test {KIND_TITLES[kind]}",
        frame=named(frame),
        columns=columns,
        note=f"{note} Left out, of other seeds or samples: {', '.join(missing)}." if missing else note,
        marks=_marks(frame["told"], "sum"),
        folded=kind != "unknown",
    )


_Systems = list[tuple[pd.DataFrame, list[Cell]]]
"""Rows and cells of each system, a seed each."""


def _paired(own: pd.DataFrame, measures: Measures) -> tuple[_Systems, list[tuple[str, ...]]]:
    """The systems of one protocol that have the same seeds and samples as most, and the names of the others."""
    groups = [rows.sort_values("seed") for _, rows in own.groupby([*_SYSTEM], sort=False)]
    found = [(rows, [measures.cells[row] for row in rows.index]) for rows in groups]
    alike = [(tuple(rows["seed"].astype(str)), *map(_samples, cells)) for rows, cells in found]
    usual = max(alike, key=lambda each: (alike.count(each), len(each)))
    apart = [rows for (rows, _), each in zip(found, alike, strict=True) if each != usual]
    kept = [each for each, samples in zip(found, alike, strict=True) if samples == usual]
    return kept, [tuple(rows.iloc[0][["protocol", "training", "algorithm"]]) for rows in apart]


def _samples(cell: Cell) -> tuple[bytes, bytes]:
    """What tells whether two cells are of the same samples."""
    scores = cell.splits["test"]
    return scores.ids.tobytes(), scores.labels.tobytes()


def _differences(measures: Measures, systems: _Systems, kind: str) -> Iterator[dict[str, Any]]:
    """A row for each system."""
    values = np.column_stack([rows["sum"].to_numpy(float) for rows, _ in systems])
    by_seeds = len(values) >= ENOUGH_SEEDS
    drawn = None if by_seeds else _resampled([cells for _, cells in systems], kind, measures)
    words = (
        f"by Student's t over {len(values)} seeds" if by_seeds else f"by {RESAMPLES} paired resamples of test images"
    )
    over_all = _compared(values, drawn, range(len(systems)))
    networks = [tuple(rows.iloc[0][["training", *NETWORK]]) for rows, _ in systems]
    for place, (rows, _) in enumerate(systems):
        here = [other for other, network in enumerate(networks) if network == networks[place]]
        row = {name: rows.iloc[0][name] for name in ("protocol", *_SYSTEM)}
        row |= {"seeds": ", ".join(str(seed) for seed in rows["seed"].dropna())}
        row |= {"sum": float(values[:, place].mean())} | _behind(over_all, place, "")
        yield row | _behind(_compared(values, drawn, here), here.index(place), "_here") | {"by": words}


def _resampled(cells: Sequence[Sequence[Cell]], kind: str, measures: Measures) -> np.ndarray[Any, Any]:
    """(n, systems) mean over seeds of the sums in each resample."""
    found = [
        resampled_sums(
            np.asarray(of_seed[0].splits["test"].labels),
            [np.asarray(cell.splits["test"].prediction) for cell in of_seed],
            [np.asarray(cell.splits["test"].score) for cell in of_seed],
            unknown_label=KINDS[kind],
            rule=measures.rule,
        )
        for of_seed in zip(*cells, strict=True)
    ]
    mean: np.ndarray[Any, Any] = np.mean(found, axis=0)
    return mean


def _compared(values: np.ndarray[Any, Any], drawn: np.ndarray[Any, Any] | None, places: Sequence[int]) -> Differences:
    chosen = [*places]
    if drawn is None:
        return differences_over_seeds(values[:, chosen])
    return differences_over_resamples(values[:, chosen].mean(axis=0), drawn[:, chosen])


def _behind(found: Differences, place: int, end: str) -> dict[str, Any]:
    lacking, half = float(found.lacking[place]), float(found.half[place])
    told = "best" if place == found.best else _TOLD[bool(found.told_from_best[place])]
    return {
        f"lacking{end}": lacking,
        f"lacking{end}{LOW}": lacking - half,
        f"lacking{end}{HIGH}": lacking + half,
        f"told{end}": told,
    }
