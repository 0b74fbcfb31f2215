"""The result of searches as one document: best settings, what they reach, what is published, what to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from oscbench.tuning.published import SOURCE, SameRule, by_the_paper
from oscbench.tuning.search import Search
from oscbench.tuning.space import edge_warnings
from oscbench.tuning.trials import RATES, Best, best_of, plain_value, ranked, read_trials


def report_of(searches: Sequence[Search]) -> dict[str, Any]:
    """The result of all searches as one document, read from what is on disk."""
    reports = [_search_report(search) for search in searches]
    first = searches[0]
    document: dict[str, Any] = {
        "data": first.origin.data,
        "protocol": first.origin.protocol,
        "demo": first.origin.demo,
        "algorithm": first.algorithm,
        "search": first.kind,
        "searches": reports,
    }
    if len({search.seed for search in searches}) > 1:
        document["over_seeds"] = _over_seeds(searches)
    return document


def _search_report(search: Search) -> dict[str, Any]:
    table = read_trials(search.folder / "trials.csv")
    best = best_of(table, search.hyperparameters)
    failed = table[table["status"] == "failed"]
    report: dict[str, Any] = {
        "training": search.origin.training,
        "seed": search.seed,
        "network": search.origin.network,
        "recipe": search.origin.recipe,
        "train": search.origin.train,
        "trials": len(table) - len(failed),
        "stopped_early": int((table["status"] == "pruned").sum()),
        "failed": len(failed),
        "error": str(failed["error"].iloc[0]) if len(failed) else None,
        "total": search.total,
        "params": best.params,
        **best.ccr,
        "sum": best.sum,
        "ccr_rule": best.ccr_rule,
        "score_kind": best.score_kind,
        "n_known": int(table["n_known"].iloc[0]),
        "n_negative": int(table["n_negative"].iloc[0]),
        "warnings": edge_warnings(
            search.space, "grid" if search.is_exhaustive else search.kind, best.params, search.params
        ),
        "notes": list(map(str, search.notes())),
        "folder": str(search.folder),
    }
    if search.published is not None:
        here = _same_rule(search, table, best)
        report["published"] = {
            "params": search.published.setting,
            "sum": search.published.sum,
            "rule": "published",
            # by the same rule and kind of score; nothing where they were not computed: other sums are no comparison
            "score_kind": here.score_kind if here is not None else None,
            "sum_here": here.published if here is not None else None,
            "best_here": here.best if here is not None else None,
            "source": SOURCE,
        }
    return report


def _same_rule(search: Search, table: pd.DataFrame, best: Best) -> SameRule | None:
    """What the published setting and the best one reach by the rule of the published sum; ``None`` if unknown."""
    if search.published is None or not by_the_paper(best.ccr_rule, best.score_kind):
        return SameRule.read(search.folder)
    chosen = table["status"] == "done"
    for name, value in search.complete(search.published.setting).items():
        chosen &= table[name] == value
    found = table.loc[chosen.fillna(False).astype(bool), "sum"]
    return SameRule(published=float(found.iloc[0]), best=best.sum) if len(found) else None


def _over_seeds(searches: Sequence[Search]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of each training; without those that share no finished setting yet."""
    kinds = dict.fromkeys(map(_network, searches))
    groups = [[search for search in searches if _network(search) == kind] for kind in kinds]
    return [row for group in groups if (row := _spread(group)) is not None]


def _network(search: Search) -> tuple[str, str, str]:
    """What the searches of one mean have in common: seeds of another network or recipe are another matter."""
    return search.origin.training, search.origin.network, search.origin.recipe


def _spread(group: Sequence[Search]) -> dict[str, Any] | None:
    """Of a grid: the setting with the largest mean sum. Of drawn settings, which differ from seed to seed: the best."""
    names = group[0].hyperparameters if group[0].is_exhaustive else []
    tables = [ranked(read_trials(search.folder / "trials.csv")) for search in group]
    chosen = _best_common(tables, names) if names else pd.concat([table.head(1) for table in tables])
    if chosen.empty:
        return None
    params = {name: plain_value(chosen[name].iloc[0]) for name in names} if names else None
    spread = {
        name: {
            # One seed that does not reach a rate leaves no mean.
            "mean": plain_value(chosen[name].mean(skipna=False)),
            "std": plain_value(chosen[name].std(ddof=1, skipna=False)),
        }
        for name in RATES
    }
    return {
        "training": group[0].origin.training,
        "seeds": [search.seed for search in group],
        "params": params,
        **spread,
    }


def _best_common(tables: list[pd.DataFrame], names: list[str]) -> pd.DataFrame:
    """The rows, one per table, of the setting with the largest mean sum among those that every table has."""
    trials = pd.concat(tables)
    groups = [rows for _, rows in trials.groupby(names, dropna=False) if len(rows) == len(tables)]
    return max(groups, key=lambda rows: float(rows["sum"].mean()), default=trials.head(0))
