"""Ten claims of the two papers, each as figures of a panel and what it says they are.

The figures are those of the evaluation paper's Table 2, except where a claim names searches. Blank rates count as 0.
What the published tables give for each figure stands in ``tests/unit/papers/test_claims.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from oscbench.labels import BoolArray, FloatArray
from oscbench.papers.panel import ALGORITHMS, RATES, TRAININGS, Panel

P1, P2, P3 = range(3)
SOFTMAX, GARBAGE, EOS = range(3)
MSS, MLS, OPENMAX, EVM, PROSER = range(5)
NEGATIVE, UNKNOWN = range(2)
R2, R1 = 1, 2
"""Places of the rates 1e-2 and 1e-1."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A figure, and the range in which a claim says it lies.

    Attributes:
        name: What it is, in words.
        of: The figure for each of a panel's R results; NaN where cells are missing.
        above: What it exceeds if the claim holds.
        below: What it stays under.
    """

    name: str
    of: Callable[[Panel], FloatArray]
    above: float = -math.inf
    below: float = math.inf

    def supports(self, value: float) -> bool:
        """Whether a value is what the claim says."""
        return self.above < value < self.below


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says in words, and the figures that say so."""

    number: int
    text: str
    statistics: tuple[Statistic, ...]


def _sums(panel: Panel) -> FloatArray:
    """(R, protocol, training, algorithm, kind) sums over the three rates."""
    sums: FloatArray = panel.ccr.sum(axis=-1)
    return sums


def _gain(panel: Panel, kind: int) -> FloatArray:
    """(R, protocol, algorithm) what EOS adds to the sum of SoftMax."""
    sums = _sums(panel)[..., kind]
    return sums[:, :, EOS] - sums[:, :, SOFTMAX]


def _mean(values: FloatArray) -> FloatArray:
    """(R,) mean over all cells, NaN where one is missing."""
    mean: FloatArray = values.reshape(len(values), -1).mean(axis=1)
    return mean


def _share_above_zero(values: FloatArray) -> FloatArray:
    """(R,) share of the cells above 0, NaN where one is missing."""
    return _mean(np.where(np.isnan(values), np.nan, values > 0))


def _columns(panel: Panel) -> FloatArray:
    """(R, training x algorithm, 18) CCR of the 15 systems in each column: protocol, kind and rate."""
    systems = panel.ccr.transpose(0, 2, 3, 1, 4, 5)  # training and algorithm first
    return systems.reshape(len(systems), len(TRAININGS) * len(ALGORITHMS), -1)


def _won_by(training: int) -> Callable[[Panel], FloatArray]:
    """Share of the 18 columns whose best system has this training; systems that are equally good share a column."""

    def of(panel: Panel) -> FloatArray:
        columns = _columns(panel)
        best = columns == columns.max(axis=1, keepdims=True)
        first = training * len(ALGORITHMS)
        won = best[:, first : first + len(ALGORITHMS)].sum(axis=1) / np.maximum(best.sum(axis=1), 1)
        return _share_of_reached(won, columns)

    return of


def _share_of_reached(share: FloatArray, columns: FloatArray) -> FloatArray:
    """(R,) mean over the columns in which a system reaches the rate: elsewhere nobody is best. NaN without cells."""
    reached: BoolArray = np.any(columns > 0, axis=1)
    missing = np.isnan(columns).any(axis=(1, 2)) | ~reached.any(axis=1)
    return np.where(missing, np.nan, (share * reached).sum(axis=1) / np.maximum(reached.sum(axis=1), 1))


def _negatives_less_unknowns(training: int, protocol: int) -> Callable[[Panel], FloatArray]:
    """Mean over 1e-2 and 1e-1 and all algorithms."""

    def of(panel: Panel) -> FloatArray:
        ccr = panel.ccr[:, protocol, training, :, :, R2:]
        return _mean(ccr[:, :, NEGATIVE] - ccr[:, :, UNKNOWN])

    return of


def _auroc_of_columns(panel: Panel) -> FloatArray:
    """(R, training x algorithm, 18) AUROC beside ``_columns``."""
    systems = panel.auroc.transpose(0, 2, 3, 1, 4)
    return np.repeat(systems.reshape(len(systems), len(TRAININGS) * len(ALGORITHMS), -1), len(RATES), axis=2)


def _other_winner(panel: Panel) -> FloatArray:
    """Share of the 18 columns in which the best AUROC is not at the best CCR."""
    columns, ranked = _columns(panel), _auroc_of_columns(panel)
    at_best_auroc = np.take_along_axis(columns, ranked.argmax(axis=1)[:, None], axis=1)[:, 0]
    share = _share_of_reached((at_best_auroc < columns.max(axis=1)).astype(np.float64), columns)
    return np.where(np.isnan(ranked).any(axis=(1, 2)), np.nan, share)


def _taus(panel: Panel) -> FloatArray:
    """(R, 18) Kendall's rank correlation (tau-b) of AUROC and CCR in each column, over all pairs of systems.

    NaN where cells are missing, and where all systems are alike: there is no order.
    """
    one, other = np.triu_indices(len(TRAININGS) * len(ALGORITHMS), k=1)
    by_auroc, by_ccr = (
        np.sign(found[:, one] - found[:, other]) for found in (_auroc_of_columns(panel), _columns(panel))
    )
    untied = np.abs(by_auroc).sum(axis=1) * np.abs(by_ccr).sum(axis=1)
    with np.errstate(invalid="ignore"):
        taus: FloatArray = (by_auroc * by_ccr).sum(axis=1) / np.sqrt(untied)
    return taus


def _lowest_tau(panel: Panel) -> FloatArray:
    """(R,) the lowest of those that are there, NaN where cells are missing."""
    missing = np.isnan(panel.values).any(axis=(1, 2, 3, 4, 5))
    return np.where(missing, np.nan, np.fmin.reduce(_taus(panel), axis=1))


def _mean_tau_of_p3(panel: Panel) -> FloatArray:
    """(R,) mean over the rates at which there is an order against unknowns, NaN where cells of P3 are missing."""
    taus = _taus(panel)[:, -len(RATES) :]
    there = ~np.isnan(taus)
    missing = np.isnan(panel.values[:, P3]).any(axis=(1, 2, 3, 4)) | ~there.any(axis=1)
    return np.where(missing, np.nan, np.nansum(taus, axis=1) / np.maximum(there.sum(axis=1), 1))


def _less_mss(algorithm: int, protocol: int, rate: int) -> Callable[[Panel], FloatArray]:
    """What an algorithm adds to MSS against unknowns, mean over the trainings."""

    def of(panel: Panel) -> FloatArray:
        ccr = panel.ccr[:, protocol, :, :, UNKNOWN, rate]
        return _mean(ccr[:, :, algorithm] - ccr[:, :, MSS])

    return of


def _easier(algorithm: int) -> Callable[[Panel], FloatArray]:
    """How much more it adds to MSS on protocol 1, whose unknowns are easy, than on protocol 3."""
    return lambda panel: _less_mss(algorithm, P1, R2)(panel) - _less_mss(algorithm, P3, R2)(panel)


def _evm_less_mss(panel: Panel) -> FloatArray:
    """Mean over the protocols, 1e-2 and 1e-1."""
    return _mean(np.stack([_less_mss(EVM, p, rate)(panel) for p in (P1, P2, P3) for rate in (R2, R1)], axis=1))


def _lead(protocol: int, kind: int, rate: int | None) -> Callable[[Panel], FloatArray]:
    """What PROSER with EOS has more than the best of the other 14 systems; a rate of ``None`` is accuracy."""

    def of(panel: Panel) -> FloatArray:
        figures = panel.accuracy[:, protocol] if rate is None else panel.ccr[:, protocol, :, :, kind, rate]
        others = figures.copy()
        others[:, EOS, PROSER] = -np.inf
        lead: FloatArray = figures[:, EOS, PROSER] - others.max(axis=(1, 2))
        return lead

    return of


def _accuracy_range(panel: Panel) -> FloatArray:
    systems = panel.accuracy.reshape(len(panel.values), 3, -1)
    widest: FloatArray = (systems.max(axis=2) - systems.min(axis=2)).max(axis=1)
    return widest


def _plain(panel: Panel) -> FloatArray:
    """(R, protocol) accuracy of SoftMax with MSS."""
    return panel.accuracy[:, :, SOFTMAX, MSS]


def _kept(panel: Panel) -> FloatArray:
    """(R, protocol) share of its accuracy that SoftMax with MSS keeps at 1e-1 against unknowns."""
    return panel.ccr[:, :, SOFTMAX, MSS, UNKNOWN, R1] / _plain(panel)


CLAIMS: Final = (
    Claim(
        number=1,
        text="EOS helps almost every post-processor",
        statistics=(
            Statistic(
                name="share of protocols and algorithms whose sum EOS raises, negatives",
                of=lambda panel: _share_above_zero(_gain(panel, NEGATIVE)),
                above=0.5,
            ),
            Statistic(name="the same, unknowns", of=lambda panel: _share_above_zero(_gain(panel, UNKNOWN)), above=0.5),
            Statistic(name="mean gain, negatives", of=lambda panel: _mean(_gain(panel, NEGATIVE)), above=0),
            Statistic(name="mean gain, unknowns", of=lambda panel: _mean(_gain(panel, UNKNOWN)), above=0),
        ),
    ),
    Claim(
        number=2,
        text="Garbage is never best and lies below EOS",
        statistics=(
            Statistic(
                name="share of the 90 cells in which Garbage lies above EOS",
                of=lambda panel: _share_above_zero(panel.ccr[:, :, GARBAGE] - panel.ccr[:, :, EOS]),
                below=0.5,
            ),
            Statistic(
                name="the same of the 30 sums",
                of=lambda panel: _share_above_zero(_sums(panel)[:, :, GARBAGE] - _sums(panel)[:, :, EOS]),
                below=0.5,
            ),
            Statistic(name="share of the 18 columns that EOS wins", of=_won_by(EOS), above=0.5),
            Statistic(name="share of the 18 columns that Garbage wins", of=_won_by(GARBAGE), below=1 / 3),
        ),
    ),
    Claim(
        number=3,
        text="Negatives do not stand for unknowns: they are harder for SoftMax and easier for EOS",
        statistics=tuple(
            Statistic(
                name=f"CCR on negatives less that on unknowns, {label}, P{protocol + 1}",
                of=_negatives_less_unknowns(training, protocol),
                above=0 if training == EOS else -math.inf,
                below=0 if training == SOFTMAX else math.inf,
            )
            for training, label in ((SOFTMAX, "SoftMax"), (EOS, "EOS"))
            for protocol in (P1, P2, P3)
        ),
    ),
    Claim(
        number=4,
        text="AUROC misleads",
        statistics=(
            Statistic(
                name="share of the 18 columns whose best CCR is not at the best AUROC", of=_other_winner, above=0.5
            ),
            Statistic(
                name="smallest Kendall correlation of AUROC with CCR",
                of=_lowest_tau,
                below=0.5,
            ),
            Statistic(
                name="mean of it on P3, unknowns",
                of=_mean_tau_of_p3,
                below=0.5,
            ),
        ),
    ),
    Claim(
        number=5,
        text="OpenMax and MLS beat MSS where unknowns are easy, and only there",
        statistics=tuple(
            statistic
            for algorithm, label in ((OPENMAX, "OpenMax"), (MLS, "MLS"))
            for statistic in (
                Statistic(name=f"{label} less MSS, unknowns, 1e-2, P1", of=_less_mss(algorithm, P1, R2), above=0),
                Statistic(name=f"{label}: that less the same on P3", of=_easier(algorithm), above=0),
            )
        ),
    ),
    Claim(
        number=6,
        text="EVM does not beat MSS, and gains nothing from EOS on unknowns",
        statistics=(
            Statistic(name="EVM less MSS, unknowns, mean of 1e-2 and 1e-1", of=_evm_less_mss, below=0),
            Statistic(
                name="EVM's gain from EOS, unknowns", of=lambda panel: _mean(_gain(panel, UNKNOWN)[:, :, EVM]), below=0
            ),
        ),
    ),
    Claim(
        number=7,
        text="PROSER with EOS is best at high rates on P1, and not on P3",
        statistics=(
            Statistic(name="its lead at 1e-1, P1, negatives", of=_lead(P1, NEGATIVE, R1), above=0),
            Statistic(name="its lead at 1e-1, P1, unknowns", of=_lead(P1, UNKNOWN, R1), above=0),
            Statistic(name="its lead at 1, P1", of=_lead(P1, UNKNOWN, None), above=0),
            Statistic(name="its lead at 1e-1, P3, unknowns", of=_lead(P3, UNKNOWN, R1), below=0),
        ),
    ),
    Claim(
        number=8,
        text="Closed-set accuracy is alike",
        statistics=(
            Statistic(name="largest range of accuracies in a protocol", of=_accuracy_range, below=0.1),
            Statistic(
                name="largest difference of EOS and SoftMax, MSS",
                of=lambda panel: np.abs(panel.accuracy[:, :, EOS, MSS] - panel.accuracy[:, :, SOFTMAX, MSS]).max(
                    axis=1
                ),
                below=0.05,
            ),
        ),
    ),
    Claim(
        number=9,
        text="P3 is the easiest closed set; P1 has the easiest unknowns, then P3, then P2",
        statistics=(
            Statistic(
                name="accuracy on P3 less the better of P1 and P2",
                of=lambda panel: _plain(panel)[:, P3] - _plain(panel)[:, [P1, P2]].max(axis=1),
                above=0,
            ),
            Statistic(
                name="share of accuracy kept at 1e-1, unknowns: P1 less P3",
                of=lambda panel: _kept(panel)[:, P1] - _kept(panel)[:, P3],
                above=0,
            ),
            Statistic(name="the same: P3 less P2", of=lambda panel: _kept(panel)[:, P3] - _kept(panel)[:, P2], above=0),
        ),
    ),
    Claim(
        number=10,
        text="Settings do not transfer",
        statistics=(
            Statistic(name="EVM: mean regret of a setting taken elsewhere", of=lambda p: p.transfer.mean, above=0.05),
            Statistic(
                name="EVM: the same from P2 to P1 and P3, same training", of=lambda p: p.transfer.within, above=0.05
            ),
            Statistic(
                name="OpenMax: smallest best distance multiplier",
                of=lambda p: p.transfer.openmax_multiplier,
                above=1.4,
            ),
            Statistic(name="EVM: largest best distance multiplier", of=lambda p: p.transfer.evm_multiplier, below=0.8),
        ),
    ),
)
