"""What a post-processor is, and the registry through which everything else finds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray, ProgressFn, check_finite
from oscbench.registry import Registry

ScoreKind = Literal["log", "probability", "logit"]
"""``log``: a logarithm, never saturating; ``probability``: as published; ``logit``: the network's own output."""

NEVER_WINS = {"probability": -1.0, "log": float(np.finfo(np.float64).min)}
"""Score of a class without a correct training row: finite, and below any other even where probabilities are 0."""

T = TypeVar("T")


class PostProcessor(Protocol):
    """Turns network outputs into scores: fitted on training rows, blind to the labels of what it scores.

    The constructor takes the algorithm's parameter record and the score kind, stores them, computes nothing.
    A class that gives other kinds than ``log`` and ``probability`` lists them in ``score_kinds``.
    One that reads pooled features sets ``uses_pooled``: a search sends them to the cluster only then.
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


POSTPROCESSORS: Registry[Callable[..., PostProcessor]] = Registry("postprocessors", "algorithm")


@dataclass(frozen=True, kw_only=True)
class NoParams:
    """The parameter record of a method that has no hyperparameters."""


def usable_score_kind(algorithm: str, wanted: ScoreKind) -> ScoreKind:
    """The kind in which ``algorithm`` answers a request for ``wanted``.

    A method with a single kind answers in that one, whatever is asked; tables name the kind that was used.
    """
    kinds: tuple[ScoreKind, ...] = getattr(POSTPROCESSORS.get(algorithm), "score_kinds", ("log", "probability"))
    return kinds[0] if len(kinds) == 1 else require_score_kind(algorithm, wanted, kinds)


def require_score_kind(who: str, kind: ScoreKind, kinds: tuple[ScoreKind, ...]) -> ScoreKind:
    """``kind``, or a clear refusal when it is none of ``kinds``."""
    if kind not in kinds:
        raise UsageError(f"{who} has no score kind {kind!r}; use {' or '.join(kinds)}")
    return kind


def require_fitted(state: T | None, who: str) -> T:
    """What ``fit`` left behind, or a clear refusal before ``fit``."""
    if state is None:
        raise OscbenchError(f"{who} is not fitted yet; call fit(train) before score(inputs)")
    return state


def require_width(array: FloatArray, width: int, what: str) -> FloatArray:
    """``array``, or a clear refusal when it is not as wide as in training."""
    if array.shape[1] != width:
        raise UsageError(
            f"{what} to be scored have {array.shape[1]} columns, the training rows had {width}; "
            "both must come from the same network"
        )
    return array


def finite_logits(inputs: Inputs, who: str) -> FloatArray:
    """(N, C) the logits, refused when there are none or a row holds NaN or infinity."""
    logits = inputs.require_logits(who)
    check_finite(logits, "logits")
    return logits
