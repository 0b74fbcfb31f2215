"""The published best setting of each algorithm, protocol and training, for warm starts and for comparison."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

from oscbench.tuning.space import Setting

SOURCE = "Table 1 of 'Large-Scale Evaluation of Open-Set Image Classification Techniques', on ImageNet"

_WHOLE = ("tail_size", "alpha", "dummies")
_REAL = ("distance_multiplier", "cover_threshold")


@dataclass(frozen=True)
class Published:
    """One row of that table: the setting with the largest sum of the four CCR on the validation set."""

    setting: Setting
    sum: float


def published_best(algorithm: str, protocol: str, training: str) -> Published | None:
    """The published optimum, or ``None`` where none was published.

    Args:
        algorithm: For example ``evm``.
        protocol: ``p1``, ``p2`` or ``p3``, as the runs folder names them; any other has no published figures.
        training: ``softmax``, ``garbage`` or ``eos``.

    >>> published_best("evm", "p1", "softmax")
    Published(setting={'tail_size': 1000, 'distance_multiplier': 0.4, 'cover_threshold': 1.0}, sum=1.5068)
    """
    text = (resources.files("oscbench.tuning") / "data" / "published_best.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if (row["algorithm"], f"p{row['protocol']}", row["training"]) == (algorithm, protocol, training):
            setting: Setting = {name: int(row[name]) for name in _WHOLE if row[name]}
            setting |= {name: float(row[name]) for name in _REAL if row[name]}
            ordered = {name: setting[name] for name in row if name in setting}
            return Published(ordered, float(row["sum"]))
    return None
