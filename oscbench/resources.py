"""What there is to compute with, and what each worker asks for and gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oscbench.numerics.threads import usable_cpus

GPU_TRACES: Final = ("dev/nvidia*", "proc/driver/nvidia", "dev/dxg", "dev/kfd")
"""What the drivers of GPUs that torch works with leave below ``/``: those of NVIDIA, WSL and AMD."""


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
        return cls(usable_cpus(), gpu_count())


def gpu_count() -> int:
    """GPUs that torch can use here; it is not asked where no driver has left a trace."""
    if not any(next(Path("/").glob(trace), None) for trace in GPU_TRACES):
        return 0
    import torch

    return torch.cuda.device_count()


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
