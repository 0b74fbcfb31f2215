"""All figures of a set of scores: accuracy, and CCR, AUROC and areas against negatives and against unknowns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from oscbench.errors import OscbenchError
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import (
    FPRS,
    CcrRule,
    Confidence,
    Interval,
    OperatingPoint,
    OscrCurve,
    Threshold,
    Weights,
    auoscr,
    auroc,
    average_precision,
    bootstrap,
    ccr_at_fpr,
    ccr_fpr_sum,
    closed_set_accuracy,
    openness,
    operating_point,
    oscr_curve,
    threshold_for_fpr,
)
from oscbench.scores import ScoreSet

KINDS: Final = {"negative": NEGATIVE, "unknown": UNKNOWN}
"""Kinds of sample that count as unknown, each evaluated on its own."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How figures are taken.

    Attributes:
        rule: How CCR is read at a rate.
        weights: Whether known samples or known classes count the same.
        resamples: Number of bootstrap resamples behind the intervals; 0 for none.
        seed: Of the resamples.
    """

    rule: CcrRule = "inclusive"
    weights: Weights = "sample"
    resamples: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AgainstKind:
    """Figures of the known samples against one kind of other samples; intervals have no ends without resamples.

    The openness counts the classes of that kind; NaN for own scores, which do not say how many there are.
    """

    kind: str
    n: int
    openness: float
    ccr: tuple[Interval, ...]
    ccr_sum: Interval
    auroc: Interval
    average_precision: float
    auoscr_step: float
    curve: OscrCurve


@dataclass(frozen=True, kw_only=True)
class SplitFigures:
    """Figures of one split; kinds without samples are left out.

    The confidence (γ⁺, γ⁻, γ) is that of the network behind the scores; ``None`` where it was not recorded.
    """

    split: str
    n_known: int
    accuracy: Interval
    confidence: Confidence | None
    against: tuple[AgainstKind, ...]


def evaluate_split(split: str, scores: ScoreSet, options: Options) -> SplitFigures:
    """All figures of one set of scores."""
    labels = scores.labels
    accuracy = closed_set_accuracy(labels, scores.predictions, weights=options.weights)
    (interval,) = _intervals("accuracy", scores, [accuracy], options, None)
    return SplitFigures(
        split=split,
        n_known=int(np.count_nonzero(labels >= 0)),
        accuracy=interval,
        confidence=_recorded_confidence(scores),
        against=tuple(
            _against(kind, label, scores, options) for kind, label in KINDS.items() if np.any(labels == label)
        ),
    )


def _recorded_confidence(scores: ScoreSet) -> Confidence | None:
    recorded = scores.info.confidence if scores.info is not None else None
    if recorded is None:
        return None
    values = (recorded[name] for name in Confidence._fields)
    return Confidence(*(math.nan if value is None else value for value in values))


def _against(kind: str, label: int, scores: ScoreSet, options: Options) -> AgainstKind:
    labels, found = scores.labels, scores.predictions
    curve = oscr_curve(labels, found, unknown_label=label, weights=options.weights)
    n_classes = len(np.unique(scores.class_index[labels == label]))
    ccr = [ccr_at_fpr(curve, fpr, rule=options.rule) for fpr in FPRS]
    total = ccr_fpr_sum(curve, rule=options.rule) if np.any(labels >= 0) else math.nan
    area = auroc(labels, found, unknown_label=label, weights=options.weights)
    return AgainstKind(
        kind=kind,
        n=curve.n_unknown,
        openness=openness(scores.n_known, scores.n_known + n_classes) if scores.info is not None else math.nan,
        ccr=_intervals("ccr", scores, ccr, options, label),
        ccr_sum=_intervals("ccr_sum", scores, [total], options, label)[0],
        auroc=_intervals("auroc", scores, [area], options, label)[0],
        average_precision=average_precision(labels, found, unknown_label=label),
        auoscr_step=auoscr(curve, rule="step"),
        curve=curve,
    )


def _intervals(
    metric: Any, scores: ScoreSet, estimates: list[float], options: Options, label: int | None
) -> tuple[Interval, ...]:
    if options.resamples == 0:
        return tuple(Interval(estimate, math.nan, math.nan, math.nan, math.nan) for estimate in estimates)
    return bootstrap(
        metric,
        scores.labels,
        scores.predictions,
        n=options.resamples,
        seed=options.seed,
        unknown_label=label,
        rule=options.rule,
        weights=options.weights,
    )


@dataclass(frozen=True, kw_only=True)
class ThresholdReport:
    """A threshold chosen on validation negatives, and what it does on other splits, by (split, kind)."""

    chosen_on: str
    threshold: Threshold
    applied: Mapping[tuple[str, str], OperatingPoint]


def choose_threshold(
    splits: Mapping[str, ScoreSet], fpr: float, *, resamples: int = 1000, seed: int = 0
) -> ThresholdReport:
    """The threshold that keeps the false positive rate on the negatives of ``val`` (or the only split) at ``fpr``."""
    chosen_on = "val" if "val" in splits else next(iter(splits))
    scores = splits[chosen_on]
    try:
        threshold = threshold_for_fpr(scores.labels, scores.predictions, fpr, n=resamples, seed=seed)
    except ValueError as error:
        raise OscbenchError(f"split {chosen_on}: {error}") from error
    applied = {
        (split, kind): operating_point(other.labels, other.predictions, threshold.value, unknown_label=label)
        for split, other in splits.items()
        for kind, label in KINDS.items()
        if split != chosen_on and np.any(other.labels == label)
    }
    return ThresholdReport(chosen_on=chosen_on, threshold=threshold, applied=applied)
