"""What a loss is: which samples train, how many outputs the network has, and the criterion itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oscbench.labels import NEGATIVE
from oscbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Criterion(Protocol):
    """Loss of each sample, and the weight with which it counts in the mean over a batch.

    The loss of a batch is ``sum(losses) / sum(weights)``. Weights depend on the labels alone, so that the mean
    over all workers and accumulated batches is known before the first gradient is computed.
    """

    def losses(self, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        """(B,) loss of each sample, its weight included; labels are 0..K-1 and -1 for negatives."""
        ...

    def weights(self, labels: Tensor) -> Tensor:
        """(B,) share of each sample in the denominator of the mean."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingClasses:
    """What a criterion may know about the training set.

    Attributes:
        n_known: K.
        counts: Samples per known class, in label order.
        n_negative: Number of negative samples.
        label_smoothing: Share of a known sample's target that is spread evenly over all outputs.
    """

    n_known: int
    counts: tuple[int, ...]
    n_negative: int
    label_smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """One loss.

    Attributes:
        uses_negatives: Whether negative samples take part in training.
        extra_outputs: Outputs beyond one per known class; output K is the class of the negatives.
        build: Makes the criterion from the training classes and the loss's parameter record.
    """

    uses_negatives: bool
    extra_outputs: int
    build: Callable[[TrainingClasses, Any], Criterion]

    def n_outputs(self, n_known: int) -> int:
        """C, the width of the logits: the only place that decides it."""
        return n_known + self.extra_outputs


LOSSES: Registry[LossSpec] = Registry("losses", "loss")


def weighted_mean(criterion: Criterion, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    """The loss of one batch on one worker."""
    return criterion.losses(logits, embedding, labels).sum() / criterion.weights(labels).sum()


def soft_targets(labels: Tensor, n_outputs: int, negative_row: Tensor, label_smoothing: float) -> Tensor:
    """(B, C) target distributions: one-hot (smoothed) for known samples, ``negative_row`` for negatives."""
    import torch

    known = torch.nn.functional.one_hot(labels.clamp(min=0), n_outputs).to(negative_row.dtype)
    known = known * (1.0 - label_smoothing) + label_smoothing / n_outputs
    return torch.where((labels <= NEGATIVE)[:, None], negative_row[None, :], known)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(B,) ``-sum(targets * log_softmax(logits))``, computed in at least single precision."""
    import torch

    exact = logits if logits.dtype == torch.float64 else logits.float()
    return -(targets * torch.log_softmax(exact, dim=1)).sum(dim=1)
