"""Open-set metrics as pure functions of labels and scores; every printed number goes through here."""

from oscbench.metrics.oscr import (
    FPRS,
    AreaRule,
    CcrRule,
    OscrCurve,
    auoscr,
    ccr_at_fpr,
    ccr_fpr_sum,
    oscr_curve,
    oscr_curve_from_predictions,
    threshold_index,
)
from oscbench.metrics.predictions import Predictions, Weights, predict

__all__ = [
    "FPRS",
    "AreaRule",
    "CcrRule",
    "OscrCurve",
    "Predictions",
    "Weights",
    "auoscr",
    "ccr_at_fpr",
    "ccr_fpr_sum",
    "oscr_curve",
    "oscr_curve_from_predictions",
    "predict",
    "threshold_index",
]
