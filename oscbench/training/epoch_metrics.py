"""The figures of one epoch, in the order of ``epochs.csv``."""

from __future__ import annotations

import logging

import numpy as np

from oscbench.labels import NEGATIVE
from oscbench.metrics import FPRS, ccr_at_fpr, ccr_column, ccr_fpr_sum, oscr_curve_from_predictions
from oscbench.training.loop import Validation

logger = logging.getLogger(__name__)

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

    Gamma plus is the mean probability of the right class over known samples. Gamma minus is the mean of
    ``1 - max + 1/C`` over negatives, without ``1/C`` where there is an output for negatives (Palechor et al. 2023,
    eq. 6). Gamma is their mean. Without negatives gamma minus and the CCR at rates below 1 are NaN.
    """
    known, negative = validation.labels >= 0, validation.labels == NEGATIVE
    offset = 1.0 / n_known if n_outputs == n_known else 0.0
    gamma_plus = _mean(validation.target_probability[known])
    gamma_minus = _mean(1.0 - validation.confidence[negative] + offset)
    curve = oscr_curve_from_predictions(
        validation.labels, validation.predicted, validation.confidence, unknown_label=NEGATIVE
    )
    return {
        "val_loss": float(validation.loss.sum() / validation.weight.sum()),
        "val_accuracy": _mean(validation.predicted[known] == validation.labels[known]),
        "gamma_plus": gamma_plus,
        "gamma_minus": gamma_minus,
        "gamma": float(np.nanmean([gamma_plus, gamma_minus])),
        **{ccr_column(fpr): ccr_at_fpr(curve, fpr) for fpr in FPRS},
        "ccr_sum": ccr_fpr_sum(curve),
    }


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


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
