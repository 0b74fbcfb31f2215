"""How long training and extraction take, roughly: arithmetic of the network over an assumed speed of the machine."""

from __future__ import annotations

from functools import cache
from typing import Final

FLOPS_PER_CPU = 3e10
"""Useful operations per second of one core, a rough figure for asking: 1.2 images of ResNet-50 training."""
FLOPS_PER_GPU = 2e13
"""The same of one recent GPU in half precision: about 800 images of ResNet-50 training."""


COUNTED: Final = {("tiny", 40): 7.77e6, ("resnet50", 224): 8.18e9}
"""Operations of the usual networks at their usual side, so that a plan need not load torch."""


@cache
def forward_flops(network: str, crop: int) -> float:
    """Operations of one image's forward pass, counted without computing it."""
    if (network, crop) in COUNTED:
        return COUNTED[network, crop]
    return _count_flops(network, crop)


def _count_flops(network: str, crop: int) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from oscbench.training.model import network_without_weights

    built = network_without_weights(network, 1000).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(torch.empty(1, 3, crop, crop, device="meta"))
    return float(counter.get_total_flops())


def training_seconds(
    network: str, crop: int, *, epochs: int, n_train: int, n_val: int, workers: int, cpus: float, gpus: float
) -> float:
    """Expected time of a training from its first epoch; the backward pass costs twice the forward pass.

    Args:
        network: Architecture.
        crop: Side of its input.
        epochs: How many.
        n_train: Training images of an epoch.
        n_val: Validation images of an epoch.
        workers: Processes that train together.
        cpus: Of each.
        gpus: Of each.
    """
    operations = forward_flops(network, crop) * (3 * n_train + n_val) * epochs
    return operations / (_speed(cpus, gpus) * workers)


def extraction_seconds(network: str, crop: int, n_images: int, *, cpus: float, gpus: float) -> float:
    """Expected time of running the network over images on everything there is."""
    return forward_flops(network, crop) * n_images / _speed(cpus, gpus)


def _speed(cpus: float, gpus: float) -> float:
    return gpus * FLOPS_PER_GPU if gpus else cpus * FLOPS_PER_CPU
