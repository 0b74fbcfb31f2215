"""How long a stage will take, roughly: arithmetic of the network over an assumed speed of the machine."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from oscbench.distributed.cluster import Resources
from oscbench.distributed.train import WorkerShare
from oscbench.training.model import build_network
from oscbench.training.run import TrainingJob

FLOPS_PER_CPU = 3e10
"""Useful operations per second of one core, a rough figure for asking: 1.2 images of ResNet-50 training."""
FLOPS_PER_GPU = 2e13
"""The same of one recent GPU in half precision: about 800 images of ResNet-50 training."""


def forward_flops(network: str, crop: int) -> float:
    """Operations of one image's forward pass, counted without computing it."""
    with torch.device("meta"):
        built = build_network(network, 1000).eval()
        images = torch.empty(1, 3, crop, crop)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(images)
    return float(counter.get_total_flops())


def training_seconds(job: TrainingJob, share: WorkerShare) -> float:
    """Expected time of a training from its first epoch; the backward pass costs twice the forward pass."""
    per_epoch = 3 * len(job.train_ids) + len(job.val)
    operations = forward_flops(job.config.network, job.config.crop) * per_epoch * job.config.recipe.epochs
    return operations / (_speed(share) * job.config.workers)


def extraction_seconds(network: str, crop: int, n_images: int, share: WorkerShare, have: Resources) -> float:
    """Expected time of running the network over images on the whole cluster."""
    slots = have.gpus / share.gpus if share.gpus else have.cpus / share.cpus
    return forward_flops(network, crop) * n_images / (_speed(share) * max(slots, 1.0))


def _speed(share: WorkerShare) -> float:
    return share.gpus * FLOPS_PER_GPU if share.gpus else share.cpus * FLOPS_PER_CPU
