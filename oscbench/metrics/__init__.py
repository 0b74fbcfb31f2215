"""Open-set metrics as pure functions of labels and scores; every printed number goes through here."""

from oscbench.metrics.bootstrap import BootstrapMetric, Interval, bootstrap
from oscbench.metrics.confidence import Confidence, confidence, confidence_of_samples
from oscbench.metrics.confusion import OpenSetConfusion, open_set_confusion
from oscbench.metrics.oscr import (
    FPRS,
    AreaRule,
    CcrRule,
    OscrCurve,
    auoscr,
    ccr_at_fpr,
    ccr_column,
    ccr_fpr_sum,
    ccr_of_many,
    oscr_curve,
    threshold_index,
)
from oscbench.metrics.predictions import Predictions, Scores, Weights, predict
from oscbench.metrics.ranking import auroc, average_precision, closed_set_accuracy, openness
from oscbench.metrics.threshold import OperatingPoint, Threshold, decide, operating_point, threshold_for_fpr

__all__ = [
    "FPRS",
    "AreaRule",
    "BootstrapMetric",
    "CcrRule",
    "Confidence",
    "Interval",
    "OpenSetConfusion",
    "OperatingPoint",
    "OscrCurve",
    "Predictions",
    "Scores",
    "Threshold",
    "Weights",
    "auoscr",
    "auroc",
    "average_precision",
    "bootstrap",
    "ccr_at_fpr",
    "ccr_column",
    "ccr_fpr_sum",
    "ccr_of_many",
    "closed_set_accuracy",
    "confidence",
    "confidence_of_samples",
    "decide",
    "open_set_confusion",
    "openness",
    "operating_point",
    "oscr_curve",
    "predict",
    "threshold_for_fpr",
    "threshold_index",
]
