"""What the cells would have been on other test samples: many panels at once, each of one resample.

All cells of a protocol are read on the same resamples, so that their differences are those of systems and not of
samples. The scheme is that of ``metrics.bootstrap``: known, negative and unknown samples are drawn separately, each as
many as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oscbench.labels import NEGATIVE, UNKNOWN, FloatArray, IntArray
from oscbench.papers.panel import ALGORITHMS, MEASURES, RATES, TRAININGS
from oscbench.protocols.base import PUBLISHED
from oscbench.report.compare.cells import FPRS, KINDS
from oscbench.report.results import Cell
from oscbench.scores import ScoreSet

RESAMPLES = 500
"""Enough for 95 % intervals that say on which side of a bound a claim lies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """How often each test sample is in each resample.

    Attributes:
        rows: Of the samples of a kind, by its label; 0 stands for known ones.
        counts: (n, samples) likewise.
    """

    rows: dict[int, IntArray]
    counts: dict[int, NDArray[np.int32]]

    @classmethod
    def of(cls, labels: IntArray, n: int, seed: int) -> Draws:
        """The resamples that ``metrics.bootstrap`` draws with this seed against negatives; unknowns have their own."""
        known = np.flatnonzero(labels >= 0)
        known = known[np.argsort(labels[known], kind="stable")]
        rows = {0: known} | {label: np.flatnonzero(labels == label) for label in (NEGATIVE, UNKNOWN)}
        streams = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
        counts = {
            label: _counted(n, len(own), stream) for (label, own), stream in zip(rows.items(), streams, strict=True)
        }
        return cls(rows=rows, counts=counts)


def _counted(n: int, size: int, stream: np.random.Generator) -> NDArray[np.int32]:
    drawn = stream.integers(0, max(1, size), size=(n, size)) + np.arange(n)[:, None] * size
    return np.bincount(drawn.ravel(), minlength=n * size).astype(np.int32).reshape(n, size)


def resampled_panel(cells: Sequence[Cell], n: int = RESAMPLES) -> FloatArray:
    """(n, protocol, training, algorithm, kind, measure) of the cells of one seed, as ``papers.Panel`` takes it.

    Cells that are missing are NaN; a rate that is not reached counts as 0.
    """
    values = np.full((n, len(PUBLISHED), len(TRAININGS), len(ALGORITHMS), len(KINDS), len(MEASURES)), np.nan)
    drawn: dict[tuple[str, bytes], Draws] = {}
    for cell in cells:
        protocol, scores = cell.origin.protocol, cell.splits["test"]
        place = PUBLISHED.index(protocol)
        same = (protocol, scores.labels.tobytes())
        if same not in drawn:
            drawn[same] = Draws.of(np.asarray(scores.labels), n, seed=place)
        found = resampled_figures(scores, drawn[same])
        found[..., : len(RATES)] = np.nan_to_num(found[..., : len(RATES)])
        values[:, place, TRAININGS.index(cell.origin.training), ALGORITHMS.index(cell.algorithm)] = found
    return values


def resampled_figures(scores: ScoreSet, draws: Draws) -> FloatArray:
    """(n, kind, measure) of one cell in each resample, by the rule of the published code; NaN where not reached."""
    known, counts = draws.rows[0], draws.counts[0]
    order = np.argsort(scores.score[known], kind="stable")
    ranked, counts = np.asarray(scores.score)[known][order], counts[:, order]
    correct = (scores.prediction == scores.labels)[known][order]
    below = _cumulated(counts)
    right_below = _cumulated(np.where(correct, counts, 0))
    values = np.full((len(counts), len(KINDS), len(MEASURES)), np.nan)
    if not len(known):
        return values
    values[..., MEASURES.index("accuracy")] = (right_below[:, -1] / len(known))[:, None]
    for kind, label in enumerate(KINDS.values()):
        strangers = np.asarray(scores.score)[draws.rows[label]]
        if len(strangers):
            distinct, drawn = _by_score(strangers, draws.counts[label])
            values[:, kind, : len(RATES)] = _ccr(ranked, right_below, distinct, drawn)
            values[:, kind, MEASURES.index("auroc")] = _auroc(ranked, below, distinct, drawn)
    return values


def _cumulated(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n, m + 1) how many lie before each place."""
    total = np.zeros((len(counts), counts.shape[1] + 1), np.int32)
    np.cumsum(counts, axis=1, out=total[:, 1:])
    return total


def _by_score(strangers: FloatArray, counts: NDArray[np.int32]) -> tuple[FloatArray, NDArray[np.int32]]:
    """Distinct scores, ascending, and how many drawn samples have each."""
    order = np.argsort(strangers, kind="stable")
    distinct, first = np.unique(strangers[order], return_index=True)
    return distinct, np.add.reduceat(counts[:, order], first, axis=1, dtype=np.int32)


def _ccr(
    ranked: FloatArray, right_below: NDArray[np.int32], distinct: FloatArray, drawn: NDArray[np.int32]
) -> FloatArray:
    """(n, rates): of the thresholds at drawn strangers the lowest that keeps the rate; NaN where none does."""
    let_in = drawn.sum(axis=1, keepdims=True, dtype=np.int32) - _cumulated(drawn)[:, :-1]
    n_strangers, rows = int(let_in[0, 0]), np.arange(len(drawn))
    shares = np.arange(1, n_strangers + 1) / n_strangers
    places = np.searchsorted(ranked, distinct, side="left")
    values = np.full((len(drawn), len(RATES)), np.nan)
    for column, fpr in enumerate(FPRS.values()):
        allowed = int(np.searchsorted(shares, fpr, side="left"))
        first = np.minimum(np.count_nonzero(let_in > allowed, axis=1), len(distinct) - 1)
        most = let_in[rows, first]
        # where the stranger at the first place was not drawn, the threshold is the next one's that was
        last = np.count_nonzero(let_in >= most[:, None], axis=1) - 1
        reached = (right_below[:, -1] - right_below[rows, places[last]]) / (right_below.shape[1] - 1)
        values[:, column] = np.where((most > 0) & (most <= allowed), reached, np.nan)
    return values


def _auroc(ranked: FloatArray, below: NDArray[np.int32], distinct: FloatArray, drawn: NDArray[np.int32]) -> FloatArray:
    """(n,) chance that a drawn known sample lies above a drawn stranger, an equal score counting one half."""
    left, right = (np.searchsorted(ranked, distinct, side=side) for side in ("left", "right"))
    total = below.shape[1] - 1
    # twice the known samples above each score, and those at it
    wins = 2 * total - below[:, left] - below[:, right]
    won: FloatArray = np.einsum("ij,ij->i", wins.astype(np.float64), drawn) / (2 * total * int(drawn[0].sum()))
    return won
