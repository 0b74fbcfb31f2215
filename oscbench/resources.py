"""What there is to compute with, and what each worker asks for and gets."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What there is to compute with, in use or not."""

    cpus: int
    gpus: int
    nodes: int = 1

    def __str__(self) -> str:
        return f"{self.cpus} CPUs and {self.gpus} GPUs on {self.nodes} node{'s' if self.nodes != 1 else ''}"

    @classmethod
    def here(cls) -> Resources:
        """Those of this machine."""
        import torch

        return cls(len(os.sched_getaffinity(0)), torch.cuda.device_count())


@dataclass(frozen=True, kw_only=True)
class WorkerAsk:
    """What a user asks for each worker; ``None`` leaves it to who executes."""

    cpus: int | None = None
    gpus: float | None = None

    def gpus_of(self, have: Resources) -> float:
        """GPUs of each worker: as asked, else one where there are any."""
        return self.gpus if self.gpus is not None else float(have.gpus > 0)


@dataclass(frozen=True, kw_only=True)
class WorkerShare:
    """What each worker gets."""

    cpus: int = 1
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus} CPU{'s' if self.cpus != 1 else ''}" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
