"""From a false positive rate one can afford to a threshold, and from a threshold to decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics.bootstrap import Interval, bootstrap
from oscbench.metrics.oscr import oscr_curve, threshold_index
from oscbench.metrics.predictions import Scores, Weights, check_samples, check_unknown_label, known_weights, predict


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """What a threshold does to a set of samples; rates are NaN without samples of their kind."""

    threshold: float
    ccr: float
    fpr: float
    n_known: int
    n_unknown: int
    n_false_positives: int


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A threshold chosen for a false positive rate.

    Attributes:
        wanted_fpr: The rate asked for.
        point: The threshold and the rates it gives on the samples it was chosen on.
        interval: CCR with its bootstrap interval, the threshold chosen anew in each resample.
    """

    wanted_fpr: float
    point: OperatingPoint
    interval: Interval

    @property
    def value(self) -> float:
        """The threshold: accept a sample when its highest score is at or above it."""
        return self.point.threshold


def threshold_for_fpr(
    labels: ArrayLike,
    scores: Scores,
    fpr: float,
    *,
    unknown_label: int = NEGATIVE,
    weights: Weights = "sample",
    n: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Threshold:
    """The lowest score that occurs and keeps the false positive rate at or below ``fpr``: the largest CCR allowed.

    Args:
        labels: (N,) of the validation samples.
        scores: (N, K), higher means more known, or predictions.
        fpr: The rate one can afford, within 0..1; at 1 the threshold is minus infinity.
        unknown_label: On which samples the rate is kept; negatives unless told otherwise.
        weights: ``class`` gives each known class the same weight in CCR.
        n: Resamples behind the interval.
        seed: Of the resamples.
        level: Of the interval.

    Raises:
        ValueError: There are no such samples, or even the highest score lets in more.
    """
    curve = oscr_curve(labels, scores, unknown_label=unknown_label, weights=weights)
    if curve.n_unknown == 0:
        raise ValueError(f"no sample has label {unknown_label}: without any, no false positive rate can be kept")
    index = threshold_index(curve, fpr)
    if index is None:
        raise ValueError(
            f"no threshold keeps the false positive rate at or below {fpr:g}: the highest score already lets in "
            f"{curve.fpr[-1]:.6g} of {curve.n_unknown} samples; ask for a higher rate"
        )
    value = float(curve.thresholds[index])
    point = operating_point(labels, scores, value, unknown_label=unknown_label, weights=weights)
    (interval,) = bootstrap(
        "ccr", labels, scores, n=n, seed=seed, unknown_label=unknown_label, fprs=[fpr], weights=weights, level=level
    )
    return Threshold(wanted_fpr=fpr, point=point, interval=interval)


def operating_point(
    labels: ArrayLike, scores: Scores, threshold: float, *, unknown_label: int, weights: Weights = "sample"
) -> OperatingPoint:
    """CCR and FPR of a given threshold, ``>=`` on both sides."""
    check_unknown_label(unknown_label)
    labels, found = check_samples(labels, scores)
    decisions = decide(found, threshold)
    known, unknown = labels >= 0, labels == unknown_label
    n_known, n_unknown = int(np.count_nonzero(known)), int(np.count_nonzero(unknown))
    correct = decisions[known] == labels[known]
    ccr, fpr = float("nan"), float("nan")
    if n_known:
        by_class = weights == "class"
        ccr = (
            float(known_weights(labels[known], weights) @ correct) if by_class else np.count_nonzero(correct) / n_known
        )
    n_false_positives = int(np.count_nonzero(decisions[unknown] != UNKNOWN))
    if n_unknown:
        fpr = n_false_positives / n_unknown
    return OperatingPoint(
        threshold=threshold,
        ccr=ccr,
        fpr=fpr,
        n_known=n_known,
        n_unknown=n_unknown,
        n_false_positives=n_false_positives,
    )


def decide(scores: Scores, threshold: float) -> NDArray[np.int64]:
    """(N,) the class with the highest score where that reaches ``threshold``, else ``UNKNOWN`` (-2).

    >>> decide([[0.9, 0.1], [0.4, 0.6]], 0.7).tolist()
    [0, -2]
    """
    if np.isnan(threshold):
        raise ValueError("the threshold is NaN")
    predicted, score = predict(scores)
    # A numpy scalar: a Python float would be rounded to the type of the scores before it is compared.
    accepted = score >= np.float64(threshold)
    return np.where(accepted, predicted, UNKNOWN).astype(np.int64)
