"""The design of the evaluation paper as one array, so that its claims are asked of any results, and of many at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from oscbench.labels import FloatArray
from oscbench.papers.tables import HYPERPARAMETERS, KINDS
from oscbench.protocols.base import PUBLISHED

TRAININGS: Final = ("softmax", "garbage", "eos")
ALGORITHMS: Final = ("mss", "mls", "openmax", "evm", "proser")
RATES: Final = ("ccr_1e-3", "ccr_1e-2", "ccr_1e-1")
MEASURES: Final = (*RATES, "accuracy", "auroc")
_AXES: Final = {"protocol": PUBLISHED, "training": TRAININGS, "algorithm": ALGORITHMS, "kind": KINDS}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What best settings of searches do elsewhere; each (R,), NaN where there are no such searches.

    Attributes:
        mean: Mean regret of taking an EVM search's best setting to another protocol or training.
        within: The same from protocol 2 to the others, of one training.
        openmax_multiplier: Smallest distance multiplier among the best OpenMax settings.
        evm_multiplier: Largest one among the best EVM settings.
    """

    mean: FloatArray
    within: FloatArray
    openmax_multiplier: FloatArray
    evm_multiplier: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """R results of the same 45 cells: of one paper, of several seeds, or of resamples.

    Attributes:
        values: (R, protocol, training, algorithm, kind, measure); NaN where a cell is not there. A rate that a cell
            did not reach counts as 0, as in the papers' own sums.
        transfer: Of the searches behind them.
    """

    values: FloatArray
    transfer: Transfer = field(default_factory=lambda: transfers([None]))

    @property
    def ccr(self) -> FloatArray:
        """(R, protocol, training, algorithm, kind, 3) at 1e-3, 1e-2 and 1e-1."""
        return self.values[..., : len(RATES)]

    @property
    def accuracy(self) -> FloatArray:
        """(R, protocol, training, algorithm)."""
        return self.values[..., 0, MEASURES.index("accuracy")]

    @property
    def auroc(self) -> FloatArray:
        """(R, protocol, training, algorithm, kind)."""
        return self.values[..., MEASURES.index("auroc")]


def panel(results: Sequence[pd.DataFrame], searches: Sequence[pd.DataFrame | None] = ()) -> Panel:
    """The panel of one or more tables of results; rows that are none of the 45 cells are left out.

    Args:
        results: Each with a row for each protocol, training, algorithm and kind, and the measures as columns.
        searches: The trials behind each of them, for what settings do elsewhere.
    """
    values = np.full((len(results), *map(len, _AXES.values()), len(MEASURES)), np.nan)
    for table, of_table in zip(results, values, strict=True):
        places = {name: table[name].map({value: i for i, value in enumerate(axis)}) for name, axis in _AXES.items()}
        cells = pd.DataFrame(places)
        own = cells.notna().all(axis=1).to_numpy()
        found = table.loc[own, list(MEASURES)].fillna(dict.fromkeys(RATES, 0.0))
        of_table[tuple(cells[own].to_numpy(int).T)] = found.to_numpy(float)
    return Panel(values=values, transfer=transfers(searches or [None] * len(results)))


# --- settings elsewhere -----------------------------------------------------------------------------------------------


def transfers(searches: Sequence[pd.DataFrame | None]) -> Transfer:
    """What best settings do elsewhere, for each table of trials."""
    found = np.array([_transfer(trials) for trials in searches])
    return Transfer(mean=found[:, 0], within=found[:, 1], openmax_multiplier=found[:, 2], evm_multiplier=found[:, 3])


def _transfer(trials: pd.DataFrame | None) -> tuple[float, float, float, float]:
    if trials is None:
        return (np.nan,) * 4
    lost = regrets(trials, "evm")
    within = lost[(lost["from_protocol"] == "p2") & (lost["from_training"] == lost["to_training"])]
    within = within[within["to_protocol"] != "p2"]
    multipliers = [best_settings(trials, name)["distance_multiplier"].astype(float) for name in ("openmax", "evm")]
    return lost["regret"].mean(), within["regret"].mean(), multipliers[0].min(), multipliers[1].max()


def best_settings(trials: pd.DataFrame, algorithm: str) -> pd.DataFrame:
    """The first best setting of each protocol and training."""
    own = trials[(trials["algorithm"] == algorithm) & trials["sum"].notna()]
    return own.loc[own.groupby(["protocol", "training"], sort=False)["sum"].idxmax()]


def regrets(trials: pd.DataFrame, algorithm: str) -> pd.DataFrame:
    """What each search's best setting lacks of the best elsewhere, for every ordered pair of searches.

    Columns ``from_protocol``, ``from_training``, ``to_protocol``, ``to_training``, ``regret``; NaN where the setting
    was not tried there.
    """
    own = trials[(trials["algorithm"] == algorithm) & trials["sum"].notna()]
    used = [name for name in HYPERPARAMETERS if name in own and own[name].notna().any()]
    reached = own.pivot_table(index=used, columns=["protocol", "training"], values="sum", sort=False)
    best = reached.idxmax()
    rows = [
        (*here, *there, reached[there].max() - reached[there][best[here]])
        for here, there in itertools.permutations(reached.columns.tolist(), 2)
    ]
    return pd.DataFrame(rows, columns=["from_protocol", "from_training", "to_protocol", "to_training", "regret"])
