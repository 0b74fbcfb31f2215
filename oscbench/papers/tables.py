"""The papers' printed figures as data frames, with the names that our own tables use.

"Large-Scale Evaluation of Open-Set Image Classification Techniques" is the evaluation paper, "Large-Scale Open-Set
Classification Protocols for ImageNet" the protocols paper. Figures were transcribed from the printed tables; a blank
is a rate that was not reached, or not reported. What is damaged is marked: ``printed_searches`` says which rows do not
add up to their printed sum, and in which ones cells that were shifted by a column were put back.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Final

import pandas as pd

HYPERPARAMETERS: Final = ("tail_size", "distance_multiplier", "alpha", "cover_threshold", "dummies")
_WHOLE: Final = dict.fromkeys(("tail_size", "alpha", "dummies"), "Int64")
KINDS: Final = ("negative", "unknown")


@functools.cache
def _read(name: str) -> pd.DataFrame:
    with (resources.files("oscbench.papers") / "data" / name).open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=_WHOLE if name == "searches.csv" else None)


def printed_results() -> pd.DataFrame:
    """Table 2 of the evaluation paper, a row for each protocol, algorithm, training and kind of sample.

    Columns ``auroc``, ``ccr_1e-3``, ``ccr_1e-2``, ``ccr_1e-1`` against that kind, and ``accuracy``.
    """
    table = _read("test_results.csv")
    key = ["protocol", "algorithm", "training", "accuracy"]
    measures = ("auroc", "ccr_1e-3", "ccr_1e-2", "ccr_1e-1")
    of_kind = [
        table.rename(columns={f"{kind}_{name}": name for name in measures})[[*key, *measures]].assign(kind=kind)
        for kind in KINDS
    ]
    return pd.concat(of_kind, ignore_index=True)


def printed_searches() -> pd.DataFrame:
    """Tables 3 to 11 of the evaluation paper: every setting with its CCR on validation negatives.

    ``ok`` is 1 where the cells add up to the printed sum, ``note`` says what is wrong elsewhere. The three OpenMax
    tables are cut off: 68, 70 and 76 of their 96 settings are there.
    """
    return _read("searches.csv").copy()


def printed_networks() -> pd.DataFrame:
    """Table 2 of the protocols paper's supplement: confidences and CCR of last and best epoch, on test unknowns."""
    return _read("networks.csv").copy()
