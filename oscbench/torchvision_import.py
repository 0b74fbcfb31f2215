"""``torchvision``, also where its compiled operators do not fit the installed torch build.

A torchvision built for CUDA, imported beside a CPU build of torch, fails with "operator torchvision::nms does not
exist", because it registers properties of detection operators whose library did not load. Declaring those operators
cures that; classification models, weights and transforms do not use them. Where the library loads, nothing is
declared. Use ``from oscbench.torchvision_import import torchvision`` before any other torchvision import.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch


def _import_with_declared_operators() -> ModuleType:
    """Forgets the half-imported package, declares what it misses and imports it again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for operator in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)
    import torchvision

    module: ModuleType = torchvision
    return module


try:
    import torchvision
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    torchvision = _import_with_declared_operators()

__all__ = ["torchvision"]
