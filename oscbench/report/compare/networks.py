"""The protocols paper's Table 2: what the networks themselves say of test samples, by the rule of that paper's code."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from oscbench.artifacts import load_array
from oscbench.features import FeatureInfo, read_info
from oscbench.labels import UNKNOWN, FloatArray, IntArray
from oscbench.metrics import FPRS, ccr_column, confidence
from oscbench.numerics.softmax import softmax
from oscbench.origin import BEST_EPOCH
from oscbench.papers.panel import TRAININGS
from oscbench.papers.rules import ccr_near_fpr
from oscbench.papers.tables import printed_networks
from oscbench.protocols.base import PUBLISHED
from oscbench.report.blocks import Column, Table
from oscbench.report.compare.cells import mean_and_deviation
from oscbench.report.compare.orders import kendall
from oscbench.report.results import Results, Work

PLACE: Final = ["epoch_selection", "protocol", "training"]
MEASURES: Final = ("gamma_plus", "gamma_minus", *map(ccr_column, FPRS))
TITLES: Final = {"gamma_plus": "γ⁺", "gamma_minus": "γ⁻"} | {name: f"CCR@{name[4:]}" for name in map(ccr_column, FPRS)}
GONE: Final = "its features are gone"


def network_figures(labels: IntArray, logits: FloatArray, n_known: int) -> dict[str, float]:
    """Confidences and CCR of one network on test unknowns.

    The softmax goes over all outputs. Where there is one for negatives, that paper lets it take part in the argmax and
    the maximum of every sample.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        logits: (N, C).
        n_known: K.
    """
    probabilities = softmax(logits)
    sure = confidence(labels, probabilities, n_known=n_known, negative_labels=(UNKNOWN,))
    ccr = {ccr_column(fpr): ccr_near_fpr(labels, probabilities, fpr, unknown_label=UNKNOWN) for fpr in FPRS}
    return {"gamma_plus": sure.known, "gamma_minus": sure.negative, **ccr}


def measured_networks(results: Results) -> pd.DataFrame:
    """A row for each network whose test outputs are stored, and one that says so for each that has lost them."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    designs = {(network.origin.network, network.origin.recipe) for network in results.networks}
    designs |= {(cell.origin.network, cell.origin.recipe) for cell in results.cells}
    for work in sorted(results.work, key=lambda work: work.created):  # of several features of one network the newest
        found = _read(work, designs) if work.stage == "features" else None
        if found is not None:
            rows[_place(found)] = found
    for network in results.networks:
        origin = network.origin
        lost = _row(origin.protocol, origin.training, origin.seed, origin.recipe) | {"note": GONE}
        if network.stage == "train" and _is_published(origin.protocol, origin.training):
            rows.setdefault(_place(lost), lost)
    return pd.DataFrame(rows.values(), columns=[*PLACE, "seed", *MEASURES, "note"])


def _is_published(protocol: str, training: str) -> bool:
    return protocol in PUBLISHED and training in TRAININGS


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PLACE), row["seed"])


def _row(protocol: str, training: str, seed: int | None, recipe: str) -> dict[str, Any]:
    chosen = "best" if recipe.endswith(BEST_EPOCH) else "last"
    return {"epoch_selection": chosen, "protocol": protocol, "training": training, "seed": seed or 0}


def _read(work: Work, designs: set[tuple[str, str]]) -> dict[str, Any] | None:
    """The figures of one feature folder; ``None`` where it is of another network or has no test outputs."""
    test = work.folder / "test"
    info = read_info(FeatureInfo, test, "extract again") if (test / "logits.npy").exists() else None
    if info is None or not _is_published(work.protocol, info.origin.training):
        return None
    origin = info.origin
    if (origin.network, origin.recipe.removesuffix(BEST_EPOCH)) not in designs:
        return None
    row = _row(work.protocol, origin.training, origin.seed, origin.recipe)
    labels, logits = load_array(test / "labels.npy", np.int64, 1), load_array(test / "logits.npy", np.float32, 2)
    return row | network_figures(labels, logits, info.n_known) | {"note": ""}


def networks_beside_printed(figures: pd.DataFrame) -> pd.DataFrame:
    """Every printed row (``_printed``) with mean and deviation over seeds, and measured less printed (``_less``)."""
    printed = printed_networks().rename(columns={name: f"{name}_printed" for name in MEASURES})
    found = mean_and_deviation(figures, PLACE, MEASURES, {"seed": "seeds", "note": "note"})
    both = printed.merge(found, on=PLACE, how="left")
    both["seeds"] = both["seeds"].fillna("")
    both["note"] = both["note"].fillna("not there")
    for name in MEASURES:
        both[f"{name}_less"] = both[name] - both[f"{name}_printed"]
    return both


RULE: Final = (
    "Rule of that paper's code: thresholds at the scores of the right classes, FPR by >, the nearest rate, blank where "
    "it is off by 10 % or more; in Garbage rows the background output counts in argmax and maximum. Test unknowns."
)


def networks_table(both: pd.DataFrame) -> Table:
    """Values beside values."""
    figures = [
        Column(key=f"{name}{end}", title=f"{TITLES[name]} {said}", decimals=3)
        for name in MEASURES
        for end, said in (("_printed", "printed"), ("", "here"), ("_less", "less"))
    ]
    return Table(
        name="paper_networks",
        title="Networks: Table 2 of the protocols paper's supplement",
        frame=both,
        columns=(
            *(Column(key=name, title=name.removesuffix("_selection"), choice=True) for name in PLACE),
            Column(key="seeds", title="seeds"),
            *figures,
            Column(key="note", title="note"),
        ),
        note=RULE,
    )


def network_orders(both: pd.DataFrame) -> pd.DataFrame:
    """The order of the trainings by each figure, printed and measured, best first; a blank CCR comes last."""
    blank = {f"{name}{side}": 0.0 for name in MEASURES if name.startswith("ccr") for side in ("_printed", "")}
    there = both[both["gamma_plus"].notna()].fillna(blank)
    rows = [
        {
            "epoch_selection": chosen,
            "protocol": protocol,
            "measure": TITLES[name],
            "printed": _order(own, f"{name}_printed"),
            "measured": _order(own, name),
            "tau": kendall(own[f"{name}_printed"], own[name]),
        }
        for (chosen, protocol), own in there.groupby(PLACE[:2], sort=False)
        for name in MEASURES
    ]
    return pd.DataFrame(rows, columns=[*PLACE[:2], "measure", "printed", "measured", "tau"])


def _order(rows: pd.DataFrame, name: str) -> str:
    """Trainings from the largest figure to the smallest, equals joined by ``=``."""
    ranked = rows.sort_values(name, ascending=False, kind="stable")
    values, names = ranked[name].tolist(), ranked["training"].tolist()
    signs = [" = " if values[i] == values[i + 1] else " > " for i in range(len(values) - 1)]
    return "".join(part for pair in zip(names, [*signs, ""], strict=True) for part in pair)


def network_orders_table(both: pd.DataFrame) -> Table:
    """Orders beside orders, where values cannot be compared."""
    return Table(
        name="paper_network_orders",
        title="Order of the trainings, as in Table 2 of the protocols paper's supplement",
        frame=network_orders(both),
        columns=(
            *(Column(key=key, title=key.removesuffix("_selection"), choice=True) for key in PLACE[:2]),
            Column(key="measure", title="measure", choice=True),
            Column(key="printed", title="printed"),
            Column(key="measured", title="here"),
            Column(key="tau", title="Kendall's τ", decimals=2),
        ),
        note=RULE + " Of networks that are there on both sides.",
    )
