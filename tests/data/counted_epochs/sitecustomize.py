"""In every process that has this folder on its path: epochs that are trained, and stages that are made, leave a line.

``COUNTED_EPOCHS`` and ``COUNTED_STAGES`` name the logs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Counting(MetaPathFinder):
    """Finds a module as ever, and counts in it as soon as it is loaded."""

    def __init__(self, name: str, count: Callable[[Any], None]) -> None:
        self._name, self._count = name, count

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._name else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_count(module: ModuleType) -> None:
            load(module)
            self._count(module)

        spec.loader.exec_module = load_and_count  # type: ignore[method-assign]
        return spec


def _write(variable: str, line: str) -> None:
    with open(os.environ[variable], "a", encoding="utf-8") as log:  # one write: whole lines
        log.write(line + "\n")


def _count_epochs(module: Any) -> None:
    next_epoch = module._Session.next_epoch

    def counted(session: Any) -> None:
        next_epoch(session)
        if session.workers.rank == 0:
            _write("COUNTED_EPOCHS", f"{session.job.folder.name} {len(session.history)}")

    module._Session.next_epoch = counted


def _count_stages(module: Any) -> None:
    """A stage takes its place to work only when it is really made."""
    workplace = module.Stage._workplace

    def counted(stage: Any, *arguments: Any) -> Any:
        _write("COUNTED_STAGES", stage.folder.name)
        return workplace(stage, *arguments)

    module.Stage._workplace = counted


if "COUNTED_EPOCHS" in os.environ:
    sys.meta_path.insert(0, _Counting("oscbench.training.run", _count_epochs))
if "COUNTED_STAGES" in os.environ:
    sys.meta_path.insert(0, _Counting("oscbench.stages.stage", _count_stages))
