"""Times the OSCR curve beside the loop over thresholds, and the bootstrap, at protocol-1 size.

    python benchmarks/oscr.py

prints a table and writes benchmarks/oscr_<n>cpu_<date>.md and .csv.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
from reporting import circumstances, markdown, publish, timed

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import OscrCurve, bootstrap, oscr_curve

N_CLASSES = 116
RUNS = 5
COLUMNS = ("what", "samples", "seconds", "runs", "times faster", "bar")


def draw_scores(n_known: int, n_negative: int, n_unknown: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and float32 softmax scores in mixed order; about two thirds of the known samples are correct."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, NEGATIVE, UNKNOWN], [n_known, n_negative, n_unknown])
    labels[:n_known] = rng.integers(0, N_CLASSES, n_known)
    rng.shuffle(labels)
    logits = rng.normal(size=(len(labels), N_CLASSES)).astype(np.float32)
    logits[np.arange(len(labels)), np.maximum(labels, 0)] += np.where(labels >= 0, 3.0, 0.0).astype(np.float32)
    exponentials = np.exp(2 * logits)
    return labels, exponentials / exponentials.sum(axis=1, keepdims=True)


def naive_curve(labels: np.ndarray, scores: np.ndarray, *, tight: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same curve by a loop over thresholds, each compared with all scores at once.

    Args:
        labels: (N,) labels.
        scores: (N, K) scores.
        tight: Whether the wrongly classified samples are left out before the loop, instead of masked inside it.
    """
    predicted, confidence = scores.argmax(axis=1), scores.max(axis=1)
    known = confidence[labels >= 0]
    correct = (predicted == labels)[labels >= 0]
    unknown = confidence[labels == NEGATIVE]
    thresholds = np.unique(np.concatenate((np.array([-np.inf], scores.dtype), known[correct], unknown)))
    ccr, fpr = np.empty(len(thresholds)), np.empty(len(thresholds))
    kept = known[correct]
    for i, threshold in enumerate(thresholds):
        reached = kept >= threshold if tight else correct & (known >= threshold)
        ccr[i] = np.count_nonzero(reached) / len(known)
        fpr[i] = np.count_nonzero(unknown >= threshold) / len(unknown)
    return thresholds, ccr, fpr


def compare_curves() -> list[dict[str, Any]]:
    """Alternating runs of both; the curves must agree to the last bit."""
    labels, scores = draw_scores(29_055, 17_420, 0, seed=0)
    plain, tight, fast = [], [], []
    for _ in range(RUNS):
        seconds, expected = timed(lambda: naive_curve(labels, scores, tight=False))
        plain.append(seconds)
        tight.append(timed(lambda: naive_curve(labels, scores, tight=True))[0])
        seconds, curve = timed(lambda: oscr_curve(labels, scores, unknown_label=NEGATIVE))
        fast.append(seconds)
        check_equal(curve, *expected)
    size = "29,055 known, 17,420 negative, 116 classes, float32"
    factors = [f"{statistics.median(slow) / statistics.median(fast):.0f}" for slow in (plain, tight)]
    loop = f"loop over {len(expected[0]):,} thresholds"
    return [
        row(loop, size, plain, "", ""),
        row(f"{loop}, only correct samples kept", size, tight, "", ""),
        row("oscr_curve", size, fast, " / ".join(factors), "at least 30 times; equal to the last bit"),
    ]


def check_equal(curve: OscrCurve, *expected: np.ndarray) -> None:
    """Refuses any difference at all."""
    for found, wanted in zip((curve.thresholds, curve.ccr, curve.fpr), expected, strict=True):
        if found.dtype != wanted.dtype or found.tobytes() != wanted.tobytes():
            raise SystemExit("the two curves differ")


def time_bootstrap() -> list[dict[str, Any]]:
    """1000 resamples of CCR at four rates, against negatives and against unknowns."""
    labels, scores = draw_scores(5_800, 3_350, 8_300, seed=1)
    rows = []
    for kind, label in (("negatives", NEGATIVE), ("unknowns", UNKNOWN)):
        resample = partial(bootstrap, "ccr", labels, scores, n=1000, unknown_label=label)
        seconds = [timed(resample)[0] for _ in range(RUNS)]
        size = "5,800 known, 3,350 negative, 8,300 unknown"
        rows.append(row(f"bootstrap, 1000 resamples of CCR, {kind}", size, seconds, "", "under 20 s"))
    return rows


def row(what: str, size: str, seconds: list[float], factor: str, bar: str) -> dict[str, Any]:
    """One line of the table; seconds are the median."""
    values = (what, size, f"{statistics.median(seconds):.4f}", len(seconds), factor, bar)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Runs both and reports."""
    rows = compare_curves() + time_bootstrap()
    head = f"`python benchmarks/oscr.py`, {circumstances('numpy')}; median seconds, runs alternating."
    publish("oscr", f"# OSCR and bootstrap\n\n{head}\n\n{markdown(rows)}", rows)


if __name__ == "__main__":
    main()
