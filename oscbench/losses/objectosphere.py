"""Objectosphere: EOS plus a term that keeps negatives near the origin and known samples away from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oscbench.labels import NEGATIVE
from oscbench.losses.base import LOSSES, LossSpec, TrainingClasses
from oscbench.losses.eos import EosCriterion, EosParams
from oscbench.registry import About

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ObjectosphereParams:
    """Hyperparameters of Objectosphere; starting values, none are published for these protocols.

    Attributes:
        radius: Beyond it the embeddings of known samples shall lie.
        magnitude_weight: Weight of the term on the embeddings' length beside EOS.
    """

    radius: float = 10.0
    magnitude_weight: float = 1e-4

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius must be > 0, got {self.radius}")
        if not self.magnitude_weight >= 0:
            raise ValueError(f"magnitude_weight must be >= 0, got {self.magnitude_weight}")


class ObjectosphereCriterion:
    """``EOS + a * max(radius - |z|, 0)^2`` for known samples, ``EOS + a * |z|^2`` for negatives.

    Dhamija et al. 2018, eq. 2, on the embedding z.
    """

    def __init__(self, classes: TrainingClasses, params: ObjectosphereParams) -> None:
        self.entropic = EosCriterion(classes, EosParams())
        self.params = params

    def losses(self, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        """(B,) entropic loss plus the magnitude term."""
        import torch

        exact = embedding if embedding.dtype == torch.float64 else embedding.float()
        # the square root has no gradient at the origin, where an embedding may lie exactly
        magnitude = torch.sqrt((exact**2).sum(dim=1) + 1e-24)
        missing = (self.params.radius - magnitude).clamp(min=0)
        term = torch.where(labels <= NEGATIVE, magnitude**2, missing**2)
        return self.entropic.losses(logits, embedding, labels) + self.params.magnitude_weight * term

    def weights(self, labels: Tensor) -> Tensor:
        """(B,) ones."""
        return self.entropic.weights(labels)


LOSSES.register(
    "objectosphere",
    label="Objectosphere",
    params=ObjectosphereParams,
    paper="arXiv:1811.04110",
    about=About(
        "EOS that also draws the embeddings of negatives to the origin and keeps those of known samples away from it.",
        "known: EOS + magnitude_weight max(radius - |z|, 0)^2; negative: EOS + magnitude_weight |z|^2",
        "Methods that read how long features or how large logits are (MLS, Energy).",
        "Networks without a search for its settings: the radius must fit the usual length of embeddings.",
    ),
)(LossSpec(uses_negatives=True, extra_outputs=0, build=ObjectosphereCriterion))
