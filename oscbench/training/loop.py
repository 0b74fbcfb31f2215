"""One epoch of training and of validation, on any device and any number of workers; knows nothing of Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oscbench.data.loading import Batch
from oscbench.errors import OscbenchError
from oscbench.losses import Criterion
from oscbench.training.workers import Workers

N = TypeVar("N", bound=nn.Module)

CHECK_EVERY_STEPS = 50
"""Steps between checks for a loss that is not finite: each check waits for a GPU to catch up."""


@dataclass(frozen=True)
class Place:
    """Where the arithmetic happens: the device, and half precision on GPUs."""

    device: torch.device
    mixed_precision: bool = True

    @property
    def half(self) -> bool:
        """Whether forward passes run in half precision."""
        return self.mixed_precision and self.device.type == "cuda"

    def network(self, network: N) -> N:
        """The network on the device, channels last: convolutions prefer it, on CPUs by a fifth for ``tiny``."""
        placed: N = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return placed

    def images(self, images: Tensor) -> Tensor:
        """Images on the device, channels last."""
        return images.to(self.device, non_blocking=True, memory_format=torch.channels_last)

    def labels(self, labels: Tensor) -> Tensor:
        """Labels, or other whole numbers, on the device."""
        return labels.to(self.device, non_blocking=True)

    def autocast(self) -> torch.autocast:
        """Context of a forward pass."""
        return torch.autocast(self.device.type, dtype=torch.float16, enabled=self.half)


class TrainingStep(Protocol):
    """What a batch contributes to the loss: one or more terms, each a mean over rows.

    The loss of an update is the sum over its terms of ``sum(sums) / sum(weights)``, over all workers and accumulated
    batches. Weights depend on the labels alone, so that they are known before the first gradient is computed.
    """

    def weights(self, batch: Batch, epoch: int) -> Tensor:
        """(T,) denominator of each term, on the CPU as the batch is."""
        ...

    def sums(self, network: nn.Module, batch: Batch, place: Place, epoch: int) -> Tensor:
        """(T,) numerator of each term; calls the network once, since workers exchange gradients after each call."""
        ...


@dataclass(frozen=True)
class CriterionStep:
    """One term: a loss of logits and labels."""

    criterion: Criterion

    def weights(self, batch: Batch, epoch: int) -> Tensor:
        """See ``TrainingStep.weights``."""
        return self.criterion.weights(batch.labels).sum()[None]

    def sums(self, network: nn.Module, batch: Batch, place: Place, epoch: int) -> Tensor:
        """See ``TrainingStep.sums``."""
        with place.autocast():
            logits, embedding, _ = network(place.images(batch.images))
        return self.criterion.losses(logits, embedding, place.labels(batch.labels)).sum()[None]


def train_epoch(
    network: nn.Module,
    steps: Iterable[Sequence[Batch]],
    step: TrainingStep,
    optimizer: torch.optim.Optimizer,
    *,
    place: Place,
    workers: Workers,
    scaler: torch.amp.GradScaler,
    rate_at_step: Callable[[int], float],
    epoch: int,
) -> float:
    """Trains on all steps and returns the mean loss over them, equal on all workers.

    The gradient of a step is that of the mean over the samples of all workers and all accumulated batches: sums
    are divided by the weight of all of them together, so unequal last batches and class weights count exactly.

    Args:
        network: As wrapped by ``workers``.
        steps: Batches of each update; more than one where gradients are accumulated.
        step: What a batch contributes to the loss.
        optimizer: Updated in place.
        place: Device and precision.
        workers: The processes that train together.
        scaler: Loss scaling of half precision; disabled elsewhere.
        rate_at_step: Learning rate by step.
        epoch: For the message when the loss is not finite.
    """
    network.train()
    shares: list[Tensor] = []  # this worker's part of each step's loss; they add up over the workers
    checked = 0
    for number, batches in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at_step(number)
        optimizer.zero_grad(set_to_none=True)
        shares.append(_accumulate_gradients(network, batches, step, epoch, place, workers, scaler))
        scaler.step(optimizer)
        scaler.update()
        if len(shares) - checked == CHECK_EVERY_STEPS:
            shares[checked:] = _checked_losses(shares[checked:], workers, epoch, checked)
            checked = len(shares)
    shares[checked:] = _checked_losses(shares[checked:], workers, epoch, checked)
    return float(torch.stack(shares).mean())


def _accumulate_gradients(
    network: nn.Module,
    batches: Sequence[Batch],
    step: TrainingStep,
    epoch: int,
    place: Place,
    workers: Workers,
    scaler: torch.amp.GradScaler,
) -> Tensor:
    """Adds the gradients of one update; returns this worker's part of its loss."""
    parts = [step.weights(batch, epoch) for batch in batches]
    weights = workers.sum_(torch.stack(parts).sum(dim=0).to(place.device))
    weights = torch.where(weights > 0, weights, 1.0)  # a term without rows is 0
    share = torch.zeros((), device=place.device)
    for number, batch in enumerate(batches):
        with _gradient_exchange(network, last=number == len(batches) - 1):
            loss = (step.sums(network, batch, place, epoch) / weights).sum()
            # the backward pass averages over workers, the weight is already that of all of them
            scaler.scale(loss * workers.size).backward()  # type: ignore[no-untyped-call]
        share += loss.detach()
    return share


def _gradient_exchange(network: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
    """Workers exchange gradients once per step, with its last batch."""
    if last or not isinstance(network, nn.parallel.DistributedDataParallel):
        return contextlib.nullcontext()
    exchange: contextlib.AbstractContextManager[None] = network.no_sync()
    return exchange


def _checked_losses(shares: list[Tensor], workers: Workers, epoch: int, first: int) -> list[Tensor]:
    """The losses of some steps over all workers; raises on all of them when one is not finite."""
    if not shares:
        return []
    losses = workers.sum_(torch.stack(shares)).cpu()
    bad = torch.nonzero(~torch.isfinite(losses))
    if len(bad):
        step = first + int(bad[0])
        raise OscbenchError(
            f"the loss became {float(losses[bad[0]])} in epoch {epoch + 1}, step {step + 1}; stopped, the "
            f"checkpoint of epoch {epoch} stays; lower the learning rate and check the images"
        )
    return list(losses)


@dataclass(frozen=True)
class Validation:
    """What the metrics need of each sample, in the order of the ids.

    Attributes:
        ids: (N,) int64.
        labels: (N,) int64.
        predicted: (N,) class with the largest of the first K probabilities.
        confidence: (N,) that probability, of a softmax over all C outputs.
        target_probability: (N,) probability of a known sample's own class, 0 for others.
        loss: (N,) numerators of the mean loss.
        weight: (N,) denominators.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    target_probability: NDArray[np.float64]
    loss: NDArray[np.float64]
    weight: NDArray[np.float64]


def validate(
    network: nn.Module, batches: Iterator[Batch], criterion: Criterion, n_known: int, place: Place, workers: Workers
) -> Validation:
    """Per-sample results over all workers, each sample once, sorted by id; equal on all workers."""
    network.eval()
    parts: list[tuple[Tensor, ...]] = []
    with torch.inference_mode():
        for batch in batches:
            with place.autocast():
                logits, embedding, _ = network(place.images(batch.images))
            parts.append(
                (batch.ids, batch.labels, *_sample_results(logits, embedding, batch.labels, criterion, n_known))
            )
    own = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    columns = [np.concatenate(column) for column in zip(*(o for o in workers.gather(own) if o), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    if np.any(np.diff(columns[0][order]) == 0):
        raise AssertionError("a validation sample was counted twice")
    return Validation(*(column[order] for column in columns))


def _sample_results(
    logits: Tensor, embedding: Tensor, labels: Tensor, criterion: Criterion, n_known: int
) -> tuple[Tensor, ...]:
    on_device = labels.to(logits.device)
    probabilities = torch.softmax(logits.double(), dim=1)[:, :n_known]
    confidence, predicted = probabilities.max(dim=1)
    target = probabilities.gather(1, on_device.clamp(min=0)[:, None])[:, 0] * (on_device >= 0)
    loss = criterion.losses(logits, embedding, on_device)
    results = (predicted, confidence, target, loss.double(), criterion.weights(on_device).double())
    return tuple(result.cpu() for result in results)
