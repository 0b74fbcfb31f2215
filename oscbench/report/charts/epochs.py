"""How trainings went: confidence on knowns and negatives, loss and accuracy, epoch by epoch."""

from __future__ import annotations

from typing import Final

from oscbench.report.blocks import Chart
from oscbench.report.charts.base import NAMES, chart_of, heading_of, make_document, origin_keys, rounded
from oscbench.report.results import Results

_CONFIDENCE: Final = {"gamma_plus": "γ+ (knowns)", "gamma_minus": "γ\u2212 (negatives)", "gamma": "γ (mean)"}
_STAGE: Final = "train"

NOTE = (
    "Confidence on validation samples: γ+ is the mean probability of the correct class of knowns, γ\u2212 falls "
    "with the highest probability of a known class on negatives, γ is their mean."
)


def epoch_charts(results: Results) -> list[Chart]:
    """γ over epochs of every network that was trained here."""
    series = [
        {
            "keys": origin_keys(network.origin) | {"measure": measure},
            "mark": "line",
            "x": rounded(network.epochs["epoch"]),
            "y": rounded(network.epochs[measure]),
        }
        for network in results.networks
        if network.stage == _STAGE and not network.epochs.empty
        for measure in _CONFIDENCE
        if measure in network.epochs and network.epochs[measure].notna().any()
    ]
    if not series:
        return []
    document = make_document(
        "xy",
        series,
        choose=("network",),
        arrangements=(
            ("protocol and training", ("protocol", "training"), "measure", "seed"),
            ("protocol and measure", ("protocol", "measure"), "training", "seed"),
            ("training and measure", ("training", "measure"), "protocol", "seed"),
        ),
        names={**NAMES, "measure": "confidence"},
        values={"measure": _CONFIDENCE},
        x={"label": "epoch", "scales": {"linear": None}},
        y={"label": "confidence", "scales": {"linear": [0, 1]}},
    )
    return [chart_of("gamma", "Confidence over epochs", document, note=NOTE, heading=heading_of(results))]
