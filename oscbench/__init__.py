"""Open-set classification benchmarks on Ray: protocols, trainings, post-processors and one honest measure.

The verbs of the command line are functions of this package. Each is loaded when it is first used, so that importing
the package takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see of _PUBLIC
    from oscbench.api.benchmark import benchmark
    from oscbench.api.evaluate import evaluate
    from oscbench.api.extract import extract
    from oscbench.api.methods import methods
    from oscbench.api.report import write_report
    from oscbench.api.session import open_session
    from oscbench.api.threshold import threshold
    from oscbench.api.train import train
    from oscbench.api.tune import tune
    from oscbench.runs import load_features, load_scores

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "benchmark",
    "evaluate",
    "extract",
    "load_features",
    "load_scores",
    "methods",
    "open_session",
    "threshold",
    "train",
    "tune",
    "write_report",
]

_PUBLIC = {
    "benchmark": "oscbench.api.benchmark",
    "evaluate": "oscbench.api.evaluate",
    "extract": "oscbench.api.extract",
    "load_features": "oscbench.runs",
    "load_scores": "oscbench.runs",
    "methods": "oscbench.api.methods",
    "open_session": "oscbench.api.session",
    "threshold": "oscbench.api.threshold",
    "train": "oscbench.api.train",
    "tune": "oscbench.api.tune",
    "write_report": "oscbench.api.report",
}
"""The module that each public name is loaded from.

No name may be that of a module of this package, which takes its place as soon as it is imported: what writes reports
cannot be called ``report``.
"""


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
