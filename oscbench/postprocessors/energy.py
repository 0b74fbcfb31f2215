"""Energy and temperature scaling: the logits at another temperature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.features import Inputs
from oscbench.numerics.softmax import log_softmax, softmax
from oscbench.postprocessors.base import POSTPROCESSORS, About, best_class
from oscbench.postprocessors.posthoc import Array, Posthoc, Rows, log_sum_exp


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < np.inf:
        raise UsageError(f"temperature must be > 0 and finite, got {temperature}")


@dataclass(frozen=True, kw_only=True)
class EnergyParams:
    """Divides the logits before their exponentials are added up; 1 as published."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


@POSTPROCESSORS.register(
    "energy",
    label="Energy",
    params=EnergyParams,
    paper="arXiv:2010.03759",
    needs={"logits"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="logits",
    about=About(
        "Minus the free energy, a soft maximum of the logits: large where any class speaks for the row.",
        "T ln sum_k exp(l_k / T), T the temperature",
        "Logits whose size means something, as in networks that were taught to be small on negatives.",
        "Networks whose logits grow with the size of the features alone; it cannot see that two classes disagree.",
    ),
)
class Energy(Posthoc):
    """T ln sum_k exp(l_k / T) over the known classes (Liu et al. 2020)."""

    name = "energy"

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        temperatures = [setting.temperature for setting in self.settings]
        return np.stack([t * log_sum_exp(rows.logits / t) for t in temperatures], axis=1)


@dataclass(frozen=True, kw_only=True)
class TempScaleParams:
    """Divides the logits; the default is OpenOOD's starting point."""

    temperature: float = 1.5

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


@POSTPROCESSORS.register(
    "tempscale",
    label="TempScale",
    params=TempScaleParams,
    paper="arXiv:1706.04599",
    needs={"logits"},
    score_kinds=("log", "probability"),
    per_class=True,
    one_pass=True,
    cost="logits",
    about=About(
        "The maximum softmax at another temperature: a high one listens to all logits, a low one to the two largest.",
        "max_k softmax(l / T)_k, T the temperature",
        "Wherever MSS is good; the temperature trades the margin to the second class against that to all.",
        "Networks that are sure of what they never saw: no temperature tells those rows from known ones.",
    ),
)
class TempScale(Posthoc):
    """Softmax of the known logits divided by a temperature, of which the largest counts (Guo et al. 2017).

    The temperature is searched for, never fitted: OpenOOD fits it by 50 steps of LBFGS with a rate of 0.01 on T itself,
    which does not arrive (on the golden data at T = -78.9, which turns the order around; the optimum is 0.29).
    """

    name = "tempscale"

    def decide(self, rows: Rows) -> tuple[NDArray[np.int32], Array]:
        """See ``Posthoc``."""
        found = [best_class(self._of(rows, setting.temperature)) for setting in self.settings]
        return np.stack([label for label, _ in found], axis=1), np.stack([score for _, score in found], axis=1)

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) logarithms of probabilities, or probabilities."""
        return self._of(self.checked_rows(inputs), self.params.temperature)

    def _of(self, rows: Rows, temperature: float) -> Array:
        scale = log_softmax if self.score_kind == "log" else softmax
        return scale(rows.logits / temperature)
