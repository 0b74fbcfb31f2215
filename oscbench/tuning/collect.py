"""All trials below a runs folder as one table, and the best setting an algorithm has found there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from oscbench.errors import UsageError
from oscbench.tuning.trials import COLUMNS, ranked, read_trials


def collect_trials(runs: Path) -> pd.DataFrame:
    """Every trial of every search below ``runs``, running ones included, in order of their folders.

    Columns that only some methods have follow the common ones and are blank elsewhere.
    """
    if not runs.is_dir():
        raise UsageError(f"runs folder {runs} does not exist; give the --runs folder of the searches")
    paths = sorted(runs.glob("*/*/tune-*/trials.csv"))
    if not paths:
        older = next(runs.glob("*/*/*/s*/*/tune-*/trials.csv"), None)
        if older is not None:
            raise UsageError(f"{older} was written by an earlier version; search again in another --runs folder")
        raise UsageError(f"there is no search below {runs}; `oscbench tune` makes one")
    return merge_trials([read_trials(path) for path in paths])


def merge_trials(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Trial tables one below the other, with the types of the schema."""
    extra = dict.fromkeys(name for table in tables for name in table.columns if name not in COLUMNS)
    filled = [table.reindex(columns=[*COLUMNS, *extra]) for table in tables if len(table)]
    if not filled:
        return tables[0]
    return pd.concat(filled, ignore_index=True).astype(COLUMNS)


def best_trials(table: pd.DataFrame) -> pd.DataFrame:
    """The best finished trial of each search."""
    best = [ranked(group).head(1) for _, group in table.groupby("run_id", sort=False)]
    return pd.concat(best, ignore_index=True)
