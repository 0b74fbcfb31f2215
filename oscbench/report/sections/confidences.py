"""How sure networks are: γ⁺ and γ⁻ at their last and best epoch, in the layout of the protocols paper's Table 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd

from oscbench.errors import UsageError
from oscbench.origin import BEST_EPOCH, Origin
from oscbench.papers.panel import ALGORITHMS
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.report.blocks import STD, Column, Section, Table
from oscbench.report.measures import GAMMAS, RATES, Measures
from oscbench.report.results import Network, Results
from oscbench.report.sections.base import (
    NETWORK,
    RATE_TITLES,
    figure_columns,
    in_order,
    marks_of_best,
    name_columns,
    named,
)

_PLACE: Final = ("protocol", "training", *NETWORK)
_WHICH: Final = ("last", "best")
_GAMMAS: Final = {
    "val_gamma_plus": "γ⁺, val",
    "val_gamma_minus": "γ⁻, val negatives",
    "gamma_plus": "γ⁺, test",
    "negative_gamma_minus": "γ⁻, test negatives",
    "unknown_gamma_minus": "γ⁻, test unknowns",
}
_RATES: Final = {rate: f"{title}, unknowns" for rate, title in RATE_TITLES.items()}
_NOTE: Final = (
    "γ⁺ is the mean probability of the right class; γ⁻ is one minus the mean of the highest known probability of "
    "samples of no known class, plus 1/K where a network has no output for them. Validation figures are those of "
    "the training's own log; its best epoch has the highest mean of both. CCR on test unknowns is that of the "
    "maximum softmax score. ± is the standard deviation over seeds. Blank: not evaluated, or a rate that was not "
    "reached with every seed."
)

_Key = tuple[str, str, str, str, int | None, str]


def confidences_section(results: Results, measures: Measures) -> Section:
    """A row for each trained network and epoch: the last, and the one with the best γ."""
    rows: dict[_Key, dict[str, Any]] = {}
    for network in sorted(results.networks, key=lambda network: network.created):  # the newest of equal ones counts
        for which, figures in _logged(network):
            rows.setdefault(_key(network.origin, which), {}).update(figures)
    for key, figures in _tested(results, measures):
        rows.setdefault(key, {}).update(figures)
    if not rows:
        return Section(name="gamma", title="Confidence", blocks=(), text="No network was trained or evaluated here.")
    frame = in_order(_over_seeds(rows), ["protocol", "_place", *_PLACE]).drop(columns="_place")
    table = Table(
        name="confidence",
        title="Confidence of networks at their last and best epoch",
        frame=named(frame),
        columns=(
            *name_columns(frame, [*_PLACE, "seeds"]),
            Column(key="which", title="Network of", choice=True),
            Column(key="epoch", title="Epoch"),
            *figure_columns(_GAMMAS | _RATES, decimals=3),
        ),
        note=_NOTE,
        marks=marks_of_best(frame, [*_GAMMAS, *_RATES], ["protocol", "which"]),
    )
    return Section(name="gamma", title="Confidence", blocks=(table,))


def _over_seeds(rows: dict[_Key, dict[str, Any]]) -> pd.DataFrame:
    """A row for each network and epoch, with the mean of its seeds and, of several, their deviation."""
    shown = [*_GAMMAS, *_RATES]
    keys = [*_PLACE, "which"]
    each = pd.DataFrame([dict(zip((*_PLACE, "seed", "which"), key, strict=True)) | row for key, row in rows.items()])
    each = each.reindex(columns=[*keys, "seed", "epoch", *shown])
    found = []
    for _, group in each.groupby(keys, sort=False, dropna=False):
        row: dict[str, Any] = {name: group[name].iloc[0] for name in keys}
        row["_place"] = _WHICH.index(row["which"])
        row |= {"seeds": _listed(group["seed"]), "epoch": _listed(group["epoch"])}
        for name in shown:
            values = group[name].to_numpy(float)
            row[name] = float(values.mean())
            row[name + STD] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        found.append(row)
    return pd.DataFrame(found)


def _listed(values: pd.Series[Any]) -> str:
    """The different values, in order."""
    return ", ".join(str(int(value)) for value in sorted(set(values.dropna())))


def _key(origin: Origin, which: str) -> _Key:
    recipe = origin.recipe.removesuffix(BEST_EPOCH)
    return (origin.protocol, origin.training, origin.network, recipe, origin.seed, which)


def _logged(network: Network) -> Iterator[tuple[str, dict[str, Any]]]:
    """Validation figures of the two epochs of a training."""
    log = network.epochs
    if network.stage != "train" or log.empty:
        return
    score = log["gamma"].fillna(log["gamma_plus"])  # as trainings themselves choose
    for which, row in (("last", log.iloc[-1]), ("best", log.iloc[int(score.to_numpy().argmax())])):
        yield which, {"epoch": int(row["epoch"])} | {f"val_{name}": float(row[name]) for name in GAMMAS}


def _tested(results: Results, measures: Measures) -> Iterator[tuple[_Key, dict[str, Any]]]:
    """Test figures of the networks that cells were made from, not those that a method has fine-tuned."""
    kept_best = {
        network.origin.train
        for network in results.networks
        if network.config.get("recipe", {}).get("selection") == "best"
    }
    for row, cell in enumerate(measures.cells):
        found = measures.frame.iloc[row]
        if found["split"] != "test" or _fine_tunes(cell.algorithm):
            continue
        at_best = cell.origin.at_best_epoch or cell.origin.train in kept_best
        figures = {"gamma_plus": found["gamma_plus"], f"{found['kind']}_gamma_minus": found["gamma_minus"]}
        if cell.algorithm == ALGORITHMS[0] and found["kind"] == "unknown":
            figures |= {rate: found[rate] for rate in RATES}
        yield _key(cell.origin, "best" if at_best else "last"), figures


def _fine_tunes(algorithm: str) -> bool:
    try:
        return POSTPROCESSORS.info(algorithm).fine_tunes
    except UsageError:  # of a plug-in that is no longer installed
        return False
