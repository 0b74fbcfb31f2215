"""The processes that train together, seen from one of them; a single process needs no process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Workers:
    """One process alone: every reduction is the identity."""

    rank = 0
    size = 1

    def wrap(self, network: nn.Module, device: torch.device) -> nn.Module:
        """The network whose backward pass averages gradients over all workers."""
        return network

    def sum_(self, tensor: Tensor) -> Tensor:
        """Adds the tensors of all workers, in place."""
        return tensor

    def average_buffers_(self, network: nn.Module) -> None:
        """Replaces running batch statistics by their mean over all workers."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers, by rank."""
        return [value]


class TorchWorkers(Workers):
    """The workers of torch's default process group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def wrap(self, network: nn.Module, device: torch.device) -> nn.Module:
        """``DistributedDataParallel`` without its broadcast of buffers: statistics are averaged once per epoch.

        DDP regroups gradients after its first step, which changes the order of summation for three and more
        workers, and with it the last bits of a resumed run. On CPUs, where runs repeat exactly, looking for
        unused parameters keeps the first grouping.
        """
        on_gpu = device.type == "cuda"
        return nn.parallel.DistributedDataParallel(
            network,
            device_ids=[device.index] if on_gpu else None,
            broadcast_buffers=False,
            find_unused_parameters=not on_gpu,
            gradient_as_bucket_view=True,  # no copy of every gradient before it is sent
        )

    def sum_(self, tensor: Tensor) -> Tensor:
        """Adds the tensors of all workers, in place."""
        dist.all_reduce(tensor)
        return tensor

    def average_buffers_(self, network: nn.Module) -> None:
        """Replaces running batch statistics by their mean over all workers; counters are equal already."""
        for buffer in network.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= self.size

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers, by rank; for small things."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered
