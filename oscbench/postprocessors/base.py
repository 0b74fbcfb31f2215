"""What a post-processor is, and the registry through which everything else finds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from oscbench.registry import Registry
from oscbench.types import FeatureSet, Inputs, ProgressFn

ScoreKind = Literal["log", "probability", "logit"]
"""``log``: a logarithm that never saturates; ``probability``: as published; ``logit``: the network's own output."""


class PostProcessor(Protocol):
    """Turns network outputs into scores: fitted on training rows, blind to the labels of what it scores.

    The constructor takes the algorithm's parameter record and the score kind, stores them and computes nothing.
    """

    score_kind: ScoreKind

    def fit(self, train: FeatureSet) -> Self:
        """Learns from the training rows and returns itself."""
        ...

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N, K) scores: higher is more known, argmax is the predicted class, max goes to the threshold."""
        ...


class GridPostProcessor(PostProcessor, Protocol):
    """A post-processor whose settings share most of their work and can be evaluated in one pass."""

    @classmethod
    def best_of_settings(
        cls,
        train: FeatureSet,
        queries: Inputs,
        settings: Sequence[Any],
        *,
        score_kind: ScoreKind,
        source: Any = None,
        progress: ProgressFn | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Predicted class and its score, both (Q, S): the argmax and max of ``score`` for each setting."""
        ...


POSTPROCESSORS: Registry[Callable[..., PostProcessor]] = Registry("postprocessors")
