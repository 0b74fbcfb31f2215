"""The papers' claims asked of what was measured: values, intervals, and whether each claim holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from oscbench.labels import FloatArray
from oscbench.papers.claims import CLAIMS, Claim, Statistic
from oscbench.papers.panel import TRAININGS, Panel, panel, transfers
from oscbench.papers.tables import printed_results, printed_searches
from oscbench.protocols.base import PUBLISHED
from oscbench.report.blocks import HIGH, LOW, Column, Mark, Table
from oscbench.report.compare.cells import seeds_of
from oscbench.report.compare.resampled import RESAMPLES, resampled_panel
from oscbench.report.results import Results

Verdict = Literal["holds", "does not", "cannot be told"]

MARKS: Final[dict[Verdict, Mark]] = {"holds": "holds", "does not": "fails", "cannot be told": "open"}
LEVEL: Final = 0.95
SEARCHED: Final = ("openmax", "evm")
"""Whose searches a claim is about."""

Ends = tuple[float, float]
NOWHERE: Final[Ends] = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A statistic as it was measured.

    Attributes:
        value: Mean over the seeds that have all its cells; NaN where none has.
        seeds: How many those are.
        over_seeds: Student's interval of that mean; NaN for a single seed.
        resampled: Bootstrap interval over test samples; NaN for what is not read from test samples.
    """

    statistic: Statistic
    value: float
    seeds: int
    over_seeds: Ends = NOWHERE
    resampled: Ends = NOWHERE

    @property
    def verdict(self) -> Verdict:
        """What can be said: nothing where an interval, or the value beside it, lies on both sides of a bound.

        Nor where all of it is a bound itself: then no system was better than another, as where none reaches a rate.
        """
        found = [each for each in (self.value, *self.over_seeds, *self.resampled) if not math.isnan(each)]
        if math.isnan(self.value) or set(found) <= {self.statistic.above, self.statistic.below}:
            return "cannot be told"
        if all(map(self.statistic.supports, found)):
            return "holds"
        one_side = min(found) >= self.statistic.below or max(found) <= self.statistic.above
        return "does not" if one_side else "cannot be told"


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """A claim holds if all its statistics do, and does not if one does not."""
    verdicts = {finding.verdict for finding in findings}
    if "does not" in verdicts:
        return "does not"
    return "cannot be told" if "cannot be told" in verdicts else "holds"


# --- what was measured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Panels of the same seeds: as they are, and resampled.

    Attributes:
        seeds: One result each.
        resamples: For each seed n results, each on the same resamples.
    """

    seeds: Panel
    resamples: tuple[Panel, ...]

    @classmethod
    def of(cls, results: Results, figures: pd.DataFrame, n: int = RESAMPLES) -> Measured:
        """What one network's cells and searches have reached.

        Args:
            results: Of one design, see ``cells.same_design``.
            figures: Its cells' figures, see ``cells.measured``.
            n: Resamples.
        """
        seeds = seeds_of(results) or [0]  # without cells one result that lacks them all
        tables = [figures[figures["seed"] == seed] for seed in seeds]
        resamples = (
            resampled_panel([cell for cell in results.cells if (cell.origin.seed or 0) == seed], n) for seed in seeds
        )
        nothing = transfers([None] * n)
        return cls(
            seeds=panel(tables, [_searches(results, seed) for seed in seeds]),
            resamples=tuple(Panel(values=values, transfer=nothing) for values in resamples),
        )

    def finding(self, statistic: Statistic) -> Finding:
        """A statistic over the seeds that have all its cells."""
        values = statistic.of(self.seeds)
        there = np.flatnonzero(~np.isnan(values))
        if not len(there):
            return Finding(statistic=statistic, value=math.nan, seeds=0)
        drawn = np.mean([statistic.of(self.resamples[seed]) for seed in there], axis=0)
        return Finding(
            statistic=statistic,
            value=float(values[there].mean()),
            seeds=len(there),
            over_seeds=student_interval(values[there]),
            resampled=percentiles(drawn),
        )


def _searches(results: Results, seed: int) -> pd.DataFrame | None:
    """The trials behind a seed's cells; nothing where a search is missing that a claim is about."""
    own = [search for search in results.searches if (search.origin.seed or 0) == seed]
    there = {(search.algorithm, search.origin.protocol, search.origin.training) for search in own}
    wanted = {(name, protocol, training) for name in SEARCHED for protocol in PUBLISHED for training in TRAININGS}
    if not wanted <= there:
        return None
    return pd.concat([search.trials[search.trials["status"] == "done"] for search in own], ignore_index=True)


def student_interval(values: FloatArray) -> Ends:
    """Of the mean of several seeds; NaN for a single one."""
    if len(values) < 2:
        return NOWHERE
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def percentiles(values: FloatArray) -> Ends:
    """Between which ``LEVEL`` of the resamples lie; NaN where the statistic is not read from test samples."""
    if np.isnan(values).any():
        return NOWHERE
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)


# --- tables --------------------------------------------------------------------------------------------------------


def claims_tables(measured: Measured, claims: Sequence[Claim] = CLAIMS) -> tuple[Table, Table]:
    """A row for each claim, and one for each of its statistics."""
    findings = [(claim, [measured.finding(statistic) for statistic in claim.statistics]) for claim in claims]
    printed = panel([printed_results()], [printed_searches().query("ok == 1")])
    statistics = pd.DataFrame([_row(claim, finding, printed) for claim, own in findings for finding in own])
    verdicts = pd.DataFrame(
        [{"claim": claim.number, "text": claim.text, "verdict": verdict_of(own)} for claim, own in findings]
    )
    return (
        Table(
            name="claims",
            title="The papers' claims",
            frame=verdicts,
            columns=(
                Column(key="claim", title="claim", decimals=0),
                Column(key="text", title="says"),
                Column(key="verdict", title="here it"),
            ),
            marks=_marks(verdicts),
            note="A claim holds if all its statistics lie where it says, and so do their intervals; it does not if one "
            "statistic lies elsewhere with all its intervals; else, and where cells are missing, it cannot be told.",
        ),
        Table(
            name="claim_statistics",
            title="What each claim rests on",
            frame=statistics,
            columns=(
                Column(key="claim", title="claim", decimals=0, choice=True),
                Column(key="statistic", title="statistic"),
                Column(key="range", title="the claim"),
                Column(key="printed", title="printed", decimals=3),
                Column(key="measured", title="measured", decimals=3),
                Column(key="over_seeds", title="interval over seeds"),
                Column(key="seeds", title="seeds", decimals=0),
                Column(key="verdict", title="here it"),
            ),
            marks=_marks(statistics),
            note=f"The measured value is the mean over seeds; behind it its bootstrap interval ({LEVEL:.0%}, known, "
            "negative and unknown test samples drawn again, the same ones for all systems of a protocol), beside it "
            "Student's interval over seeds. Claim 10 is about searches and has the latter alone; a value without any "
            "interval is judged as it is. A rate that is not reached counts as 0. Printed figures are of one seed.",
        ),
    )


def _row(claim: Claim, finding: Finding, printed: Panel) -> dict[str, Any]:
    statistic, (low, high) = finding.statistic, finding.over_seeds
    return {
        "claim": claim.number,
        "statistic": statistic.name,
        "range": range_text(statistic),
        "printed": float(statistic.of(printed)[0]),
        "measured": finding.value,
        "measured" + LOW: finding.resampled[0],
        "measured" + HIGH: finding.resampled[1],
        "over_seeds": "" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
        "seeds_low": low,
        "seeds_high": high,
        "seeds": finding.seeds,
        "verdict": finding.verdict,
    }


def range_text(statistic: Statistic) -> str:
    """Where a claim says that its statistic lies."""
    bounds = [(">", statistic.above), ("<", statistic.below)]
    return " and ".join(f"{sign} {bound:.3g}" for sign, bound in bounds if math.isfinite(bound))


def _marks(frame: pd.DataFrame) -> dict[tuple[int, str], Mark]:
    return {(row, "verdict"): MARKS[verdict] for row, verdict in enumerate(frame["verdict"])}
