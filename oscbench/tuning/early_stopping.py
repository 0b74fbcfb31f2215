"""Which trials that train are stopped before their end: those that fall behind (ASHA, Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

KEPT = 1 / 3
"""Share of the trials that have come as far which goes on."""


class Rungs:
    """The steps after which trials are compared, and what each trial had reached there.

    The first comparison is after a tenth of the longest trial's steps, each further one three times as late. Not Ray's
    own scheduler, since that begins anew when a search is taken up again.

    Args:
        longest: Steps of the longest trial.
        earlier: What trials reported before this run, sum by step, by trial id.
    """

    def __init__(self, longest: int, earlier: Mapping[str, Mapping[int, float]]) -> None:
        self._reached: dict[int, dict[str, float]] = {}
        step = max(1, longest // 10)
        while step < longest:
            self._reached[step] = {}
            step *= 3
        for trial, sums in earlier.items():
            for step in sorted(sums):
                self.keeps_up(trial, step, sums[step])

    def keeps_up(self, trial: str, step: int, sum_: float) -> bool:
        """Whether a trial goes on that has come to this step; it is compared once at each rung with those before it."""
        passed = [rung for rung in self._reached if rung <= step]
        if not passed or trial in self._reached[passed[-1]]:
            return True
        others = list(self._reached[passed[-1]].values())
        self._reached[passed[-1]][trial] = sum_
        return not others or sum_ >= float(np.percentile(others, 100 * (1 - KEPT)))
