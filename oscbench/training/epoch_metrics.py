"""The figures of one epoch, in the order of ``epochs.csv``, and that file."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oscbench.artifacts import write_text
from oscbench.labels import NEGATIVE
from oscbench.metrics import (
    FPRS,
    Predictions,
    ccr_at_fpr,
    ccr_column,
    ccr_fpr_sum,
    closed_set_accuracy,
    confidence_of_samples,
    oscr_curve,
)

if TYPE_CHECKING:
    from oscbench.training.loop import Validation

logger = logging.getLogger(__name__)

EPOCHS = "epochs.csv"

_SHOWN = {
    "epoch": "epoch",
    "loss": "train_loss",
    "val loss": "val_loss",
    "accuracy": "val_accuracy",
    "γ+": "gamma_plus",
    "γ-": "gamma_minus",
    "γ": "gamma",
    "ccr@1e-3": "ccr_1e-3",
    "ccr@1e-2": "ccr_1e-2",
    "ccr@1e-1": "ccr_1e-1",
    "img/s": "images_per_second",
}

EpochRow = dict[str, float]
"""One line of ``epochs.csv`` by column name."""


def validation_metrics(validation: Validation, *, n_outputs: int, n_known: int) -> EpochRow:
    """Loss, closed-set accuracy, confidence and CCR@FPR on known against negative validation samples.

    Gamma plus, gamma minus and gamma are those of ``metrics.confidence``: without negatives gamma minus, and with it
    gamma and the CCR at any rate, is NaN.
    """
    found = Predictions(validation.predicted, validation.confidence)
    gamma = confidence_of_samples(
        validation.labels,
        validation.target_probability,
        validation.confidence,
        n_known=n_known,
        extra_output=n_outputs > n_known,
    )
    curve = oscr_curve(validation.labels, found, unknown_label=NEGATIVE)
    return {
        "val_loss": float(validation.loss.sum() / validation.weight.sum()),
        "val_accuracy": closed_set_accuracy(validation.labels, found),
        "gamma_plus": gamma.known,
        "gamma_minus": gamma.negative,
        "gamma": gamma.mean,
        **{ccr_column(fpr): ccr_at_fpr(curve, fpr) for fpr in FPRS},
        "ccr_sum": ccr_fpr_sum(curve),
    }


def selection_score(row: EpochRow) -> float:
    """By which epochs are compared: gamma, or gamma plus where a validation set without negatives leaves no gamma."""
    return row["gamma_plus"] if np.isnan(row["gamma"]) else row["gamma"]


def write_epochs(path: Path, history: tuple[EpochRow, ...]) -> None:
    """Writes the table of finished epochs whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows([{name: f"{value:.6g}" for name, value in row.items()} for row in history])
    write_text(path, text.getvalue())


def read_epochs(path: Path) -> list[EpochRow]:
    """The table of finished epochs; empty where there is none yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


class EpochLog:
    """Logs a table line per epoch, the heading before the first."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, row: EpochRow) -> None:
        """Logs one epoch."""
        if not self._begun:
            logger.info(" ".join(f"{heading:>8}" for heading in _SHOWN))
            self._begun = True
        first, *between, last = (row[column] for column in _SHOWN.values())
        logger.info(" ".join([f"{first:8.0f}", *map(_cell, between), f"{last:8.1f}"]))


def _cell(value: float) -> str:
    """Eight characters; ``-`` is a rate that cannot be reached."""
    return f"{'-':>8}" if np.isnan(value) else f"{value:8.4f}"
