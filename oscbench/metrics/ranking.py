"""Metrics without an operating point: closed-set accuracy, and known against unknown as a binary ranking."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oscbench.labels import FloatArray, IntArray
from oscbench.metrics.predictions import Scores, Weights, check_samples, check_unknown_label, known_weights


def closed_set_accuracy(labels: ArrayLike, scores: Scores, *, weights: Weights = "sample") -> float:
    """Share of the known samples whose highest score is their own class's; NaN without any.

    Args:
        labels: (N,) known 0..K-1; negative and unknown samples are ignored.
        scores: (N, K), or predictions.
        weights: ``class`` averages over classes instead of samples.
    """
    labels, (predicted, _) = check_samples(labels, scores)
    known = labels >= 0
    correct = predicted[known] == labels[known]
    if not known.any():
        return float("nan")
    if weights == "sample":
        return float(np.count_nonzero(correct) / len(correct))
    return float(known_weights(labels[known], weights) @ correct)


def auroc(labels: ArrayLike, scores: Scores, *, unknown_label: int, weights: Weights = "sample") -> float:
    """Chance that a known sample scores above an unknown one, an equal score counting one half; NaN without either.

    All known samples count, correctly classified or not.

    Args:
        labels: (N,) known 0..K-1, negative -1, unknown -2.
        scores: (N, K), of which the maximum of each row is used, or predictions.
        unknown_label: ``NEGATIVE`` or ``UNKNOWN``; the other kind is ignored.
        weights: ``class`` gives each known class the same weight.
    """
    known_labels, known, unknown = _split(labels, scores, unknown_label)
    if not len(known) or not len(unknown):
        return float("nan")
    ascending = np.sort(unknown)
    # Twice the unknowns below plus those equal: an integer, so that sums are exact.
    wins = np.searchsorted(ascending, known, side="left") + np.searchsorted(ascending, known, side="right")
    if weights == "sample":
        return float(wins.sum() / (2 * len(known) * len(unknown)))
    return float(known_weights(known_labels, weights) @ wins / (2 * len(unknown)))


def average_precision(labels: ArrayLike, scores: Scores, *, unknown_label: int) -> float:
    """Precision averaged over recall, known samples being the positive ones; NaN without either kind.

    The sum of (R_i - R_{i-1}) P_i over the distinct scores from above, without interpolation. It depends on how many
    unknown samples there are: compare only figures of the same test set. Arguments as for ``auroc``.
    """
    _, known, unknown = _split(labels, scores, unknown_label)
    if not len(known) or not len(unknown):
        return float("nan")
    known, unknown = np.sort(known), np.sort(unknown)
    thresholds = np.unique(known)  # elsewhere recall does not change
    true_positives = len(known) - np.searchsorted(known, thresholds, side="left")
    false_positives = len(unknown) - np.searchsorted(unknown, thresholds, side="left")
    gained = true_positives - np.append(true_positives[1:], 0)
    return float(np.sum(gained / len(known) * true_positives / (true_positives + false_positives)))


def _split(labels: ArrayLike, scores: Scores, unknown_label: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels and maximum scores of the known samples, and maximum scores of the unknown ones."""
    check_unknown_label(unknown_label)
    labels, (_, score) = check_samples(labels, scores)
    known = labels >= 0
    return labels[known], score[known], score[labels == unknown_label]


def openness(n_training: int, n_testing: int, n_target: int | None = None) -> float:
    """How open a task is: 1 - sqrt(2 T / (G + E)), 0 for a closed set.

    Args:
        n_training: T, classes seen in training.
        n_testing: E, classes met in testing.
        n_target: G, classes to be told apart; default T.

    Reference: Scheirer et al., Toward Open Set Recognition, TPAMI 2013, equation 1.

    >>> round(openness(116, 116 + 166), 4)
    0.2365
    """
    target = n_training if n_target is None else n_target
    if min(n_training, n_testing, target) < 1:
        raise ValueError(f"openness needs at least one class of each, got {n_training}, {n_testing}, {target}")
    return float(1.0 - np.sqrt(2.0 * n_training / (target + n_testing)))
