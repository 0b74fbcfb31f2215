"""Tables of results: as data frames for files, as Markdown for people, as plain documents for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import FPRS, Interval, OpenSetConfusion, OperatingPoint
from oscbench.report.evaluation import AgainstKind, SplitFigures, ThresholdReport
from oscbench.runs import RunTitle
from oscbench.scores import ScoreSet

KIND_NAMES = {NEGATIVE: "negative", UNKNOWN: "unknown"}
REJECTED = "unknown"
"""What a decision says of a sample that is taken for none of the known classes."""


def rate_name(fpr: float) -> str:
    """A rate as column names spell it.

    >>> [rate_name(fpr) for fpr in (1e-3, 1e-2, 1e-1, 1.0)]
    ['1e-3', '1e-2', '1e-1', '1']
    """
    return np.format_float_scientific(fpr, trim="-", exp_digits=1).removesuffix("e+0")


# --- for people ---------------------------------------------------------------------------------------------------


def markdown(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table with aligned columns, without its index."""
    header = [str(column) for column in frame.columns]
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    ruler = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), ruler, *map(line, rows)])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return figure(value)
    return str(value).replace("|", "\\|")


def figure(value: float) -> str:
    """A rate with four decimals, a dash where it cannot be reached or has no samples."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def interval_text(interval: Interval) -> str:
    """A figure, followed by its interval where there is one."""
    if math.isnan(interval.level):
        return figure(interval.estimate)
    return f"{figure(interval.estimate)} [{figure(interval.low)}, {figure(interval.high)}]"


def evaluation_table(runs: Iterable[tuple[RunTitle, Iterable[SplitFigures]]]) -> pd.DataFrame:
    """A row per run (given with its title), split and kind of unknown sample; figures as text with intervals.

    Network, recipe and fingerprint of the training follow the algorithm, each where it is known of any run.
    """
    rows = [
        {"algorithm": title.label} | _network(title) | _evaluation_row(part, against)
        for title, splits in runs
        for part in splits
        for against in part.against
    ]
    table = pd.DataFrame(rows)
    unknown = [name for name in _NETWORK if name in table and not any(table[name])]
    return table.drop(columns=unknown)


_NETWORK = ("network", "recipe", "train")


def _network(title: RunTitle) -> dict[str, str]:
    return {name: getattr(title.origin, name) for name in _NETWORK}


def _evaluation_row(part: SplitFigures, against: AgainstKind) -> dict[str, Any]:
    row: dict[str, Any] = {"split": part.split, "against": against.kind, "known": part.n_known, "others": against.n}
    row |= {f"CCR@{rate_name(f)}": interval_text(c) for f, c in zip(FPRS, against.ccr, strict=True)}
    row |= {"sum": interval_text(against.ccr_sum), "accuracy": interval_text(part.accuracy)}
    row |= {"AUROC": interval_text(against.auroc)}
    row |= {"AP": against.average_precision, "AUOSCR (step)": against.auoscr_step}
    return row | {"openness": against.openness}


def confidence_text(part: SplitFigures) -> str:
    """The network's confidence on a split in one line; empty where it was not recorded."""
    if part.confidence is None:
        return ""
    known, negative, mean = (figure(value) for value in part.confidence)
    return f"{part.split}: γ⁺ {known}, γ⁻ {negative}, γ {mean}"


def threshold_table(report: ThresholdReport) -> pd.DataFrame:
    """What a threshold gives where it was chosen, and where it is applied."""
    chosen = report.threshold
    rows = [_point_row(report.chosen_on, "negative", chosen.point, interval_text(chosen.interval))]
    rows += [_point_row(*key, point, figure(point.ccr)) for key, point in report.applied.items()]
    return pd.DataFrame(rows)


def _point_row(split: str, kind: str, point: OperatingPoint, ccr: str) -> dict[str, Any]:
    row: dict[str, Any] = {"split": split, "against": kind, "known": point.n_known, "others": point.n_unknown}
    return row | {"let in": point.n_false_positives, "FPR": f"{point.fpr:.6f}", "CCR": ccr}


# --- for programs -------------------------------------------------------------------------------------------------


def plain_number(value: float) -> float | str | None:
    """A number that JSON can hold: nothing for NaN, a word for infinity."""
    if math.isnan(value):
        return None
    return float(value) if math.isfinite(value) else str(value)


def interval_document(interval: Interval) -> dict[str, Any]:
    """An interval as a plain mapping; without resamples only the value."""
    document = {"value": plain_number(interval.estimate)}
    if not math.isnan(interval.level):
        document |= {"low": plain_number(interval.low), "high": plain_number(interval.high)}
        document |= {"level": interval.level, "unreachable": interval.unreachable}
    return document


def split_document(part: SplitFigures) -> dict[str, Any]:
    """All figures of a split as a plain mapping."""
    document: dict[str, Any] = {"split": part.split, "n_known": part.n_known}
    document["accuracy"] = interval_document(part.accuracy)
    if part.confidence is not None:
        document["confidence"] = {name: plain_number(value) for name, value in part.confidence._asdict().items()}
    return document | {against.kind: _against_document(against) for against in part.against}


def _against_document(against: AgainstKind) -> dict[str, Any]:
    return {
        "n": against.n,
        "ccr": {rate_name(f): interval_document(c) for f, c in zip(FPRS, against.ccr, strict=True)},
        "sum": interval_document(against.ccr_sum),
        "auroc": interval_document(against.auroc),
        "average_precision": plain_number(against.average_precision),
        "auoscr_step": plain_number(against.auoscr_step),
        "openness": plain_number(against.openness),
    }


def threshold_document(report: ThresholdReport) -> dict[str, Any]:
    """A threshold and what it gives as a plain mapping."""
    chosen = report.threshold
    return {
        "threshold": plain_number(chosen.value),
        "wanted_fpr": chosen.wanted_fpr,
        "chosen_on": report.chosen_on,
        "fpr": plain_number(chosen.point.fpr),
        "ccr": interval_document(chosen.interval),
        "n_known": chosen.point.n_known,
        "n_negative": chosen.point.n_unknown,
        "applied": [
            {
                "split": split,
                "against": kind,
                "fpr": plain_number(point.fpr),
                "ccr": plain_number(point.ccr),
                "let_in": point.n_false_positives,
                "n": point.n_unknown,
            }
            for (split, kind), point in report.applied.items()
        ],
    }


# --- files --------------------------------------------------------------------------------------------------------


def sample_table(splits: Mapping[str, ScoreSet], threshold: float | None = None) -> pd.DataFrame:
    """A row per sample: split, id, label, class, predicted class, its score and, with a threshold, the decision."""
    return pd.concat([_samples(split, scores, threshold) for split, scores in splits.items()], ignore_index=True)


def _samples(split: str, scores: ScoreSet, threshold: float | None) -> pd.DataFrame:
    names = np.array(scores.classes, dtype=object)
    predicted = names[scores.prediction]
    frame = pd.DataFrame(
        {
            "split": split,
            "id": scores.ids,
            "label": scores.labels,
            "class": names[scores.class_index],
            "predicted": predicted,
            "score": scores.score,
            "decision": "",
        }
    )
    if threshold is not None:
        frame["decision"] = np.where(scores.score >= threshold, predicted, REJECTED)
    return frame


def confusion_table(confusion: OpenSetConfusion, classes: Sequence[str]) -> pd.DataFrame:
    """A row per true class and decision that occurs: class, kind, decision, number, share of the class."""
    n_known = len(confusion.known)
    decisions = [*classes[:n_known], REJECTED]
    others = np.column_stack((confusion.taken_in, confusion.rejected))
    truth = [(classes[i], "known") for i in range(n_known)]
    truth += [
        (classes[i], KIND_NAMES[int(label)]) for i, label in zip(confusion.class_index, confusion.label, strict=True)
    ]
    rows = []
    for (name, kind), counts in zip(truth, [*confusion.known, *others], strict=True):
        for column in np.flatnonzero(counts):
            count = int(counts[column])
            rows.append((name, kind, decisions[column], count, count / int(np.sum(counts))))
    return pd.DataFrame(rows, columns=["class", "kind", "decision", "n", "share"])
