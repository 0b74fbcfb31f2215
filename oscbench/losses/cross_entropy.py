"""Cross entropy without negatives (SoftMax) and with an extra class for them (Garbage)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oscbench.labels import NEGATIVE
from oscbench.losses.base import LOSSES, LossSpec, TrainingClasses, soft_cross_entropy, soft_targets
from oscbench.registry import About, NoParams

if TYPE_CHECKING:
    from torch import Tensor


class SoftmaxCriterion:
    """Plain cross entropy over the known classes; negatives are left out of training."""

    def __init__(self, classes: TrainingClasses, params: NoParams) -> None:
        self.classes = classes

    def losses(self, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross entropy; a negative sample, met only in validation, counts nothing."""
        import torch

        no_target = torch.zeros(logits.shape[1], dtype=torch.float32, device=logits.device)
        targets = soft_targets(labels, logits.shape[1], no_target, self.classes.label_smoothing)
        return soft_cross_entropy(logits, targets)

    def weights(self, labels: Tensor) -> Tensor:
        """(B,) one for known samples."""
        return (labels > NEGATIVE).float()


class GarbageCriterion:
    """Cross entropy over K + 1 outputs, balanced by class weights ``N / (C * N_c)``.

    As in the published training, the mean over a batch divides by the sum of its weights.
    """

    def __init__(self, classes: TrainingClasses, params: NoParams) -> None:
        self.classes = classes
        self.class_weights = balanced_weights((*classes.counts, classes.n_negative))

    def losses(self, logits: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        """(B,) weighted cross entropy; the target of a negative sample is output K."""
        import torch

        n_outputs = logits.shape[1]
        negative = torch.zeros(n_outputs, dtype=torch.float32, device=logits.device)
        negative[-1] = 1.0
        smoothing = self.classes.label_smoothing
        negative = negative * (1.0 - smoothing) + smoothing / n_outputs
        targets = soft_targets(labels, n_outputs, negative, smoothing)
        return self.weights(labels) * soft_cross_entropy(logits, targets)

    def weights(self, labels: Tensor) -> Tensor:
        """(B,) weight of each sample's class."""
        import torch

        rows = torch.where(labels <= NEGATIVE, len(self.class_weights) - 1, labels)
        return self.class_weights.to(labels.device)[rows]


def balanced_weights(counts: tuple[int, ...]) -> Tensor:
    """(C,) ``N / (C * N_c)``: every class weighs the same in sum.

    >>> balanced_weights((10, 10, 40))
    tensor([2.0000, 2.0000, 0.5000])
    """
    import torch

    tally = torch.tensor(counts, dtype=torch.float64)
    if not bool((tally > 0).all()):
        empty = int(torch.nonzero(tally == 0)[0])
        raise ValueError(f"class {empty} of {len(counts)} has no training sample; the garbage loss weighs by count")
    return (tally.sum() / (len(counts) * tally)).float()


LOSSES.register(
    "softmax",
    label="SoftMax",
    params=NoParams,
    paper="arXiv:2210.06789",
    about=About(
        "Plain cross entropy over the known classes; negatives take no part in training.",
        "-ln softmax(l)_y",
        "Data without negatives; the baseline that the other losses must beat.",
        "Unknowns that resemble known classes: nothing has told the network that there is anything else.",
    ),
)(LossSpec(uses_negatives=False, extra_outputs=0, build=SoftmaxCriterion))
LOSSES.register(
    "garbage",
    label="Garbage",
    params=NoParams,
    paper="arXiv:2210.06789",
    about=About(
        "Cross entropy with one more class for all negatives, every class with the same total weight.",
        "-w_y ln softmax(l)_y over K + 1 outputs, w_c = N / ((K + 1) N_c)",
        "Unknowns that resemble the negatives, scored by methods that hear the extra output (MSS).",
        "Unknowns unlike the negatives, and methods that read the known logits alone (MLS, Energy).",
    ),
)(LossSpec(uses_negatives=True, extra_outputs=1, build=GarbageCriterion))
