"""Which settings a budgeted search tries: Optuna's samplers, asked so that the sequence can be repeated exactly.

A sampler that learns from whatever happens to be finished gives another sequence on every run. Here the n-th setting
depends on the seed, on n and on the values of all *generations* but the last two alone, so it is the same after a
crash, on a faster machine, and with trials that finish in another order. The generation before the present one is left
out so that there is always something to run while it finishes: Tune ends trial processes that have no successor.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial, TrialState

from oscbench.errors import UsageError
from oscbench.tuning.space import Range, SearchSpace, Setting

SampledSearch = Literal["optuna", "random"]

GENERATION = 4
"""Settings proposed before the sampler looks at their values; a larger ``--max-concurrent`` widens it."""

_ATTEMPTS = 200
"""Draws in a row that may repeat an earlier setting before the space counts as exhausted."""


def distribution(limits: Range) -> BaseDistribution:
    """The Optuna form of a range."""
    if limits.type == "choice":
        return CategoricalDistribution(limits.values)
    low, high = limits.low or 0.0, limits.high or 0.0
    if limits.type == "int":
        return IntDistribution(int(low), int(high), log=limits.log)
    return FloatDistribution(low, high, log=limits.log)


class Proposer:
    """Settings by number, each different from all earlier ones.

    Args:
        space: Its ``ranges`` are drawn from.
        search: ``optuna`` for TPE, ``random`` for independent draws.
        seed: Seed of the search.
        generation: How many settings are proposed from one state of knowledge.
        warm_start: The setting tried first; left out when it lies outside the ranges.
    """

    def __init__(
        self,
        space: SearchSpace,
        search: SampledSearch,
        seed: int,
        *,
        generation: int = GENERATION,
        warm_start: Setting | None = None,
    ) -> None:
        if not space.ranges:
            raise UsageError(
                f"the search space of {space.algorithm} has no ranges: section; add one or use --search grid"
            )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._ranges = {name: distribution(limits) for name, limits in space.ranges.items()}
        self._search = search
        self._seed = seed
        self._generation = generation
        self._study = optuna.create_study(direction="maximize")
        self._trials: list[Trial] = []
        self._values: dict[int, float | None] = {}
        self._told = 0
        inside = warm_start is not None and all(
            name in warm_start and limits.contains(warm_start[name]) for name, limits in space.ranges.items()
        )
        if warm_start is not None and inside:
            self._study.enqueue_trial({name: warm_start[name] for name in self._ranges})

    @property
    def size(self) -> float:
        """How many different settings there are."""
        sizes = []
        for limits in self._ranges.values():
            if isinstance(limits, CategoricalDistribution):
                sizes.append(float(len(limits.choices)))
            elif isinstance(limits, IntDistribution):
                sizes.append(float(limits.high - limits.low + 1))
            else:
                sizes.append(math.inf)
        return math.prod(sizes)

    def ready(self) -> bool:
        """Whether the next setting can be proposed, or must wait for values of the generation before it."""
        return self._search == "random" or all(earlier in self._values for earlier in range(self._known))

    @property
    def _known(self) -> int:
        """How many settings the sampler knows the values of when it proposes the next one."""
        generation = len(self._trials) // self._generation
        return max(0, generation - 1) * self._generation

    def propose(self) -> Setting | None:
        """The next setting; ``None`` when no new one can be found. Call only when ``ready``."""
        number = len(self._trials)
        if self._search == "optuna":
            self._learn()
        earlier = [trial.params for trial in self._trials]
        for attempt in range(_ATTEMPTS):
            self._study.sampler = self._sampler(number, attempt)
            trial = self._study.ask(self._ranges)
            if trial.params not in earlier:
                self._trials.append(trial)
                return {name: trial.params[name] for name in self._ranges}
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def tell(self, number: int, value: float | None) -> None:
        """Says what the ``number``-th setting reached; ``None`` when it failed."""
        self._values[number] = value

    def _learn(self) -> None:
        """Passes on finished generations, always in the order of their numbers."""
        while self._told < self._known:
            value = self._values[self._told]
            state = TrialState.COMPLETE if value is not None else TrialState.FAIL
            self._study.tell(self._trials[self._told], value, state=state)
            self._told += 1

    def _sampler(self, number: int, attempt: int) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence([self._seed, number, attempt]).generate_state(1)[0])
        if self._search == "random" or attempt > _ATTEMPTS // 2:
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed)
