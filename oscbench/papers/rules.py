"""Two more ways to read CCR at a rate, for comparison with what the papers print; nothing is ever tuned by them.

The evaluation paper's tables come from its code, which is ``ccr_at_fpr(..., rule="published")``; its equation 14 says
something else (``ccr_by_equation_14``), and the protocols paper's code a third thing (``ccr_near_fpr``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from oscbench.labels import FloatArray
from oscbench.metrics import OscrCurve
from oscbench.metrics.predictions import as_float, check_samples, check_unknown_label

OFF_AT_MOST: Final = 0.1
"""Share of the rate by which the nearest one must miss it to be left blank."""


def ccr_by_equation_14(curve: OscrCurve, fpr: float) -> float:
    """CCR at the smallest FPR that is at or above ``fpr``, thresholds at the scores of unknown samples.

    Equation 14 of "Large-Scale Evaluation of Open-Set Image Classification Techniques". It never gives less than the
    rule its code uses, and lets in more than was asked for. NaN without unknown samples.
    """
    index = np.flatnonzero(curve.at_unknown & (curve.fpr >= fpr))  # FPR falls along the curve
    return float(curve.ccr[index[-1]]) if len(index) else float("nan")


def ccr_near_fpr(labels: ArrayLike, scores: ArrayLike, fpr: float, *, unknown_label: int) -> float:
    """CCR at the FPR nearest to ``fpr``, NaN where that misses it by 10 % of it or more.

    Thresholds lie at the score that each known sample has for its own class, right or wrong, except the highest, and
    scores count above them: the rule behind Table 2 of "Large-Scale Open-Set Classification Protocols for ImageNet".
    Of two rates equally near the larger one counts.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        scores: (N, K), or (N, K + 1) of a garbage network: that paper lets the background output take part in the
            maximum of every row.
        fpr: The rate.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``.

    >>> ccr_near_fpr([0, 0, 1, -2], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]], 1.0, unknown_label=-2)
    0.6666666666666666
    """
    check_unknown_label(unknown_label)
    matrix = as_float(scores, "scores", ndim=2)
    labels, (predicted, highest) = check_samples(labels, matrix)
    known = np.flatnonzero(labels >= 0)
    thresholds = np.unique(matrix[known, labels[known]])[:-1]
    strangers = highest[labels == unknown_label]
    if not len(thresholds) or not len(strangers):
        return float("nan")
    rates = _share_above(strangers, thresholds, len(strangers))
    nearest = int(np.argmin(np.abs(rates - fpr)))  # of equals the first: the lowest threshold
    if abs(rates[nearest] - fpr) >= OFF_AT_MOST * fpr:
        return float("nan")
    right = known[predicted[known] == labels[known]]
    return float(_share_above(highest[right], thresholds[nearest : nearest + 1], len(known))[0])


def _share_above(values: FloatArray, thresholds: FloatArray, total: int) -> FloatArray:
    return 1.0 * (len(values) - np.searchsorted(np.sort(values), thresholds, side="right")) / total
