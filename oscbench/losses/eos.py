"""Entropic open-set loss: negatives are trained to equal probability for every known class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oscbench.losses.base import LOSSES, LossSpec, TrainingClasses, soft_cross_entropy, soft_targets
from oscbench.registry import About

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EosParams:
    """Weight of a negative sample's loss; known samples weigh 1."""

    negative_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.negative_weight > 0:
            raise ValueError(f"negative_weight must be > 0, got {self.negative_weight}")


class EosCriterion:
    """Cross entropy with target ``w / C`` on every output for negatives (Dhamija et al. 2018, eq. 1).

    As in the published training, the mean divides by the number of samples, whatever the weight.
    """

    def __init__(self, classes: TrainingClasses, params: EosParams) -> None:
        self.classes = classes
        self.params = params

    def losses(self, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross entropy against the one-hot or the uniform target."""
        import torch

        n_outputs = logits.shape[1]
        uniform = torch.full((n_outputs,), self.params.negative_weight / n_outputs, device=logits.device)
        targets = soft_targets(labels, n_outputs, uniform, self.classes.label_smoothing)
        return soft_cross_entropy(logits, targets)

    def weights(self, labels: Tensor) -> Tensor:
        """(B,) ones."""
        import torch

        return torch.ones(len(labels), device=labels.device)


LOSSES.register(
    "eos",
    label="EOS",
    params=EosParams,
    paper="arXiv:1811.04110",
    about=About(
        "Known samples by cross entropy; negatives towards equal probability for every known class.",
        "known: -ln softmax(l)_y; negative: -negative_weight mean_k ln softmax(l)_k",
        "Unknowns that resemble the negatives, scored by how sure the network is (MSS).",
        "Unknowns unlike the negatives: what was learned from those hardly carries over.",
    ),
)(LossSpec(uses_negatives=True, extra_outputs=0, build=EosCriterion))
