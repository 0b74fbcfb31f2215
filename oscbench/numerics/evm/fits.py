"""Probability of inclusion: Weibull fits of every training row's tail for many settings, and the scores they give.

A query at distance d from row n has x = 1 + κ d_t - d with d_t the row's t-th smallest distance to another class, and

    log score          g = shape · (ln max(x, 1e-6) - ln scale)
    probability        P = 1 - exp(-e^g), 0 where x <= 0

A class takes the largest over its rows (Rudd et al., The Extreme Value Machine, arXiv:1506.06112, eq. 2 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.numerics.weibull import LOG_FLOOR, fit_low_tails, probability_of

InclusionKind = Literal["log", "probability"]

LOG_SCORE_OF_ONE: Final = math.log(54.0 * math.log(2.0))
"""From this g on, 1 - exp(-e^g) is exactly 1 in float64."""
NO_PROBABILITY: Final = -54.0 * math.log(2.0) - 1.0
"""The key of every g whose probability is exactly 0 in float64; any that is not lies at least 1 higher."""
HALF_STEP: Final = 2.0**-54
"""Probabilities are multiples of twice this, as differences from 1 in float64 are."""
X_FLOOR: Final[dict[str, float]] = {"log": LOG_FLOOR, "probability": 1e-30}
"""Where x is clamped. A probability is exactly 0 there: shapes are above 0.9, since ln x spans less than ln 3."""


class TailSetting(Protocol):
    """The hyperparameters that fits and scores depend on."""

    @property
    def tail_size(self) -> int:
        """How many of the smallest distances to other classes are fitted."""
        ...

    @property
    def distance_multiplier(self) -> float:
        """κ, by which the tail's distances are multiplied in the fit."""
        ...

    @property
    def cover_threshold(self) -> float:
        """Inclusion by another row of its class from which on a row is left out; 1 keeps every row."""
        ...


@dataclass(frozen=True)
class FitCounts:
    """What happened in fits: how many there were, how many tails were constant, how many clipped."""

    fits: int = 0
    constant: int = 0
    clipped: int = 0

    def __add__(self, other: FitCounts) -> FitCounts:
        return FitCounts(self.fits + other.fits, self.constant + other.constant, self.clipped + other.clipped)


@dataclass(frozen=True, eq=False)
class Grid:
    """Settings as arrays (S,); ``order`` sorts them by tail size, then multiplier."""

    tail_sizes: NDArray[np.int64]
    multipliers: NDArray[np.float64]

    @classmethod
    def of(cls, settings: Sequence[TailSetting]) -> Grid:
        """The arrays of a sequence of settings, checked."""
        if not settings:
            raise ValueError("at least one setting is needed")
        tails = np.array([s.tail_size for s in settings], np.int64)
        multipliers = np.array([s.distance_multiplier for s in settings], np.float64)
        if tails.min() < 1:
            raise ValueError(f"tail_size must be >= 1, got {tails.min()}")
        if not multipliers.min() > 0:
            raise ValueError(f"distance_multiplier must be > 0, got {multipliers.min()}")
        return cls(tails, multipliers)

    def __len__(self) -> int:
        return len(self.tail_sizes)

    @property
    def order(self) -> NDArray[np.int64]:
        """(S,) the settings by tail size, then multiplier."""
        return np.lexsort((self.multipliers, self.tail_sizes)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class InclusionFits:
    """Fitted rows: ``shape``, ``log_scale``, ``reach`` = 1 + κ d_t, (n, S) float64 each; ``constant`` (n, S) bool."""

    shape: NDArray[np.float64]
    log_scale: NDArray[np.float64]
    reach: NDArray[np.float64]
    constant: NDArray[np.bool_]

    @classmethod
    def empty(cls, n: int, n_settings: int) -> InclusionFits:
        """Room for n rows and S settings."""
        size = (n, n_settings)
        return cls(np.empty(size), np.empty(size), np.empty(size), np.empty(size, bool))

    def __getitem__(self, rows: slice) -> InclusionFits:
        return InclusionFits(self.shape[rows], self.log_scale[rows], self.reach[rows], self.constant[rows])

    def restricted(self, keep: NDArray[np.bool_]) -> InclusionFits:
        """The same fits where rows with ``keep`` (n, S) false score minus infinity."""
        return InclusionFits(self.shape, np.where(keep, self.log_scale, np.inf), self.reach, self.constant)

    def radii(self, thresholds: Sequence[float]) -> NDArray[np.float64]:
        """(n, S) largest distance at which the probability of inclusion is at least the setting's threshold.

        A threshold of 1 is never reached in exact arithmetic: its radius is minus infinity.
        """
        omega = np.asarray(thresholds, np.float64)
        with np.errstate(divide="ignore"):
            exponent_log = np.log(-np.log1p(-omega))
        radii: NDArray[np.float64] = self.reach - np.exp(self.log_scale + exponent_log / self.shape)
        return radii


def lowest_of_equal_probability(g: torch.Tensor) -> torch.Tensor:
    """The lowest log score that has the same probability in float64, ``NO_PROBABILITY`` where that is 0.

    Rows whose probabilities round to the same number tie, and the first of them wins; near 0 and 1 that happens to log
    scores far apart. Between -22 and 3 the step is below the resolution of float32.
    """
    p = probability_of(g.to(torch.float64))
    exponent = torch.where(p < 0.5, -torch.log1p(HALF_STEP - p), -torch.log(1.0 - p + HALF_STEP))
    return torch.where(p > 0.0, torch.minimum(g, exponent.log().to(g.dtype)), NO_PROBABILITY)


def fit_inclusion(tails: torch.Tensor, available: NDArray[np.int64], grid: Grid, out: InclusionFits) -> None:
    """Fits (n, k) ascending tails for all settings in float64 on the tails' device, into ``out``.

    A tail longer than the row has distances (``available``) is clipped to those.
    """
    for s, (size, kappa) in enumerate(zip(grid.tail_sizes, grid.multipliers, strict=True)):
        clipped = np.minimum(size, available)
        for t in np.unique(clipped):
            rows = np.flatnonzero(clipped == t)
            chosen = tails[torch.as_tensor(rows, device=tails.device), :t].to(torch.float64)
            fits = fit_low_tails(chosen, float(kappa))
            out.shape[rows, s] = fits.shape.cpu().numpy()
            out.log_scale[rows, s] = fits.log_scale.cpu().numpy()
            out.constant[rows, s] = fits.constant.cpu().numpy()
            out.reach[rows, s] = 1.0 + kappa * chosen[:, -1].cpu().numpy()
