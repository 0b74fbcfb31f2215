"""Weibull fits of many short tails at once, by maximum likelihood in float64, and their distribution functions.

A tail of t distances is shifted so that its least extreme member becomes 1 (the convention of the published code):

    EVM, smallest distances:     x_i = 1 + κ (d_t - d_i)   with d_t the t-th smallest
    OpenMax, largest distances:  x_i = 1 + κ (d_i - d_t)   with d_t the t-th largest

so that every x is at least 1 and the fit can work on v = ln x >= 0 alone. The likelihood equation of the shape k,

    Σ v e^{kv} / Σ e^{kv}  -  1/k  -  mean(v)  =  0,

has a left side that increases in k, hence exactly one root; the scale is then (mean x^k)^{1/k}.
Shapes run into the thousands, so x^k is only ever formed as e^{k (v - max v)}, which cannot overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray

STEP_SHAPE: Final = 1e6
"""Shape of a tail without spread; with scale 1 its distribution function is a step at x = 1."""
CONSTANT_SPAN: Final = 1e-6
"""A tail whose ln x spans no more than this counts as constant: its own shape would be above STEP_SHAPE."""
LOG_FLOOR: Final = 1e-6
"""In log scores x is clamped here, so that they are finite for any distance."""

_MAX_STEPS: Final = 100
_TOLERANCE: Final = 1e-10
_NEGLIGIBLE: Final = -100.0  # e to this adds nothing to a sum that contains 1


@dataclass(frozen=True, eq=False)
class WeibullFits:
    """Parameters of M fitted tails, float64.

    Attributes:
        shape: (M,) k.
        log_scale: (M,) logarithm of the scale, which is what the scores need.
        constant: (M,) which tails had no spread (or a single member) and got the step: shape 1e6, scale 1.
    """

    shape: torch.Tensor
    log_scale: torch.Tensor
    constant: torch.Tensor

    @property
    def scale(self) -> torch.Tensor:
        """(M,) scale."""
        return self.log_scale.exp()

    def __len__(self) -> int:
        return len(self.shape)


def fit_low_tails(distances: NDArray[Any] | torch.Tensor, multiplier: float) -> WeibullFits:
    """Fits of (M, t) smallest distances: x = 1 + κ (max - d) along each row, in any order (EVM)."""
    d = torch.as_tensor(distances, dtype=torch.float64)
    _check_tails(d, multiplier)
    return fit_log_tails(torch.log1p(multiplier * (d.amax(dim=1, keepdim=True) - d)))


def fit_log_tails(log_x: torch.Tensor) -> WeibullFits:
    """Fits of (M, t) tails given as v = ln x >= 0.

    Newton from the moment estimate of v (a Gumbel variable has standard deviation π / (√6 k)), held inside a bracket
    that shrinks with every evaluation; a step that leaves it is replaced by bisection. Rows are independent: a row's
    result does not depend on the rows it is fitted with.

    >>> fits = fit_log_tails(torch.tensor([[0.0, 0.1, 0.2, 0.4]], dtype=torch.float64))
    >>> round(float(fits.shape), 4), round(float(fits.scale), 4)
    (6.8642, 1.2862)
    """
    v = log_x.to(torch.float64)
    top = v.amax(dim=1)
    constant = top - v.amin(dim=1) <= CONSTANT_SPAN
    shape = torch.full_like(top, STEP_SHAPE)
    log_scale = torch.zeros_like(top)
    rows = torch.nonzero(~constant).squeeze(1)
    if len(rows):
        spread = v[rows]
        shape[rows] = k = _solve_shape(spread)
        high = top[rows]
        mean_power = torch.exp((k[:, None] * (spread - high[:, None])).clamp(min=_NEGLIGIBLE)).mean(dim=1)
        log_scale[rows] = high + mean_power.log() / k
    return WeibullFits(shape, log_scale, constant)


def log_exponent(
    x: torch.Tensor, shape: torch.Tensor, log_scale: torch.Tensor, floor: float = LOG_FLOOR
) -> torch.Tensor:
    """Logarithm of the Weibull exponent, k (ln x - ln scale), with x clamped at ``floor``: the score kind ``log``."""
    return shape * (x.clamp(min=floor).log() - log_scale)


def probability_of(exponent_log: torch.Tensor) -> torch.Tensor:
    """1 - exp(-e^g), computed as published, so that it saturates at exactly 0 (g < -37) and 1 (g > 3.6)."""
    # Nothing changes beyond these limits, but exp is slow by orders of magnitude where it over- or underflows.
    return 1.0 - torch.exp(-torch.exp(exponent_log.clamp(-40.0, 5.0)))


def _check_tails(d: torch.Tensor, multiplier: float) -> None:
    if d.ndim != 2 or d.shape[1] < 1:
        raise ValueError(f"tails must be (rows, tail size >= 1), got shape {tuple(d.shape)}")
    if not multiplier > 0:
        raise ValueError(f"distance_multiplier must be > 0, got {multiplier}")
    finite = torch.isfinite(d).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"tail {int(torch.nonzero(~finite)[0])} holds NaN or infinity")


def _solve_shape(v: torch.Tensor) -> torch.Tensor:
    """(M,) roots of the likelihood equation for (M, t) rows that are not constant."""
    centred = v - v.amax(dim=1, keepdim=True)  # <= 0, its weighted mean moves from mean to 0 as k grows
    gap = -centred.mean(dim=1)
    k = (math.pi / math.sqrt(6.0)) / v.std(dim=1, correction=0)
    low = 1.0 / gap  # the left side is never positive here: the weighted mean is at most the maximum
    high = torch.full_like(k, torch.inf)
    k = torch.maximum(k, low)
    active = torch.arange(len(v), device=v.device)
    for _ in range(_MAX_STEPS):
        rows = centred[active]
        weights = torch.exp((k[active, None] * rows).clamp(min=_NEGLIGIBLE))
        total = weights.sum(dim=1)
        first = (weights * rows).sum(dim=1) / total
        variance = (weights * rows * rows).sum(dim=1) / total - first * first
        here = k[active]
        value = first + gap[active] - 1.0 / here
        low[active] = torch.where(value <= 0, here, low[active])
        high[active] = torch.where(value >= 0, here, high[active])
        step = value / (variance.clamp(min=0.0) + 1.0 / (here * here))
        new = here - step
        inside = (new >= low[active]) & (new <= high[active])
        middle = torch.where(high[active].isinf(), 2.0 * here, 0.5 * (low[active] + high[active]))
        k[active] = torch.where(inside, new, middle)
        active = active[(k[active] - here).abs() > _TOLERANCE * here]
        if not len(active):
            break
    return k
