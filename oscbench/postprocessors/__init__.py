"""Post-processors; every module in this folder registers what it holds, so there is no list to keep."""

import pkgutil
from importlib import import_module

from oscbench.postprocessors.base import POSTPROCESSORS, GridAnswer, OnePass, PostProcessor, ScoreKind

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["POSTPROCESSORS", "GridAnswer", "OnePass", "PostProcessor", "ScoreKind"]
