"""The evaluation paper's searches, setting by setting, beside those that were run here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import pandas as pd

from oscbench.metrics import FPRS, ccr_column
from oscbench.papers.panel import TRAININGS
from oscbench.papers.tables import HYPERPARAMETERS, printed_searches
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.protocols.base import PUBLISHED
from oscbench.report.blocks import Column, Table
from oscbench.report.compare.cells import SYSTEM, mean_and_deviation
from oscbench.report.compare.orders import kendall
from oscbench.report.results import Results, Search
from oscbench.tuning.published import published_best
from oscbench.tuning.trials import COLUMNS, RATES

CCR: Final = tuple(map(ccr_column, FPRS))
KEY: Final = [*SYSTEM, *HYPERPARAMETERS]
RULE: Final = "published"
"""The rule and kind of score behind the printed sums."""


def measured_searches(results: Results) -> pd.DataFrame:
    """A row per setting: its rates and sum, means over seeds; with how many seeds, under which rule and score."""
    tables = [_settings(search) for search in results.searches]
    if not tables:
        return pd.DataFrame(columns=[*KEY, *RATES, "seeds", "rule", "score_kind"])
    said = {"seed": "seeds", "ccr_rule": "rule", "score_kind": "score_kind"}
    return mean_and_deviation(pd.concat(tables, ignore_index=True), KEY, list(RATES), said)


def _settings(search: Search) -> pd.DataFrame:
    """The finished trials of a search that differ in published hyperparameters alone, the others at their defaults."""
    trials = search.trials[search.trials["status"] == "done"].assign(
        protocol=search.origin.protocol, training=search.origin.training, algorithm=search.algorithm
    )
    usual = {field.name: field.default for field in dataclasses.fields(POSTPROCESSORS.info(search.algorithm).params)}
    for name in trials.columns.difference(list(COLUMNS)):
        if trials[name].nunique(dropna=False) > 1:
            trials = trials[trials[name] == usual.get(name)]
    return trials[[*KEY, *RATES, "seed", "ccr_rule", "score_kind"]].astype(dict.fromkeys(HYPERPARAMETERS, "float64"))


def settings_beside_printed(measured: pd.DataFrame) -> pd.DataFrame:
    """Every printed row (``_printed``) with what the same setting reached here.

    Measured less printed (``_less``) where the search went by the paper's rule and score, blank elsewhere.
    """
    names = [*CCR, "sum"]
    printed = printed_searches().rename(columns={name: f"{name}_printed" for name in names})
    printed = printed.astype(dict.fromkeys(HYPERPARAMETERS, "float64"))
    both = printed.merge(measured, on=KEY, how="left")
    both[["rule", "score_kind"]] = both[["rule", "score_kind"]].fillna("")
    comparable = (both["rule"] == RULE) & (both["score_kind"] == RULE)
    for name in names:
        both[f"{name}_less"] = (both[name] - both[f"{name}_printed"]).where(comparable)
    return both


def best_beside_printed(measured: pd.DataFrame) -> pd.DataFrame:
    """A row for each published search: its best setting, what that reaches here, and the best setting here."""
    rows = [
        _best(measured, protocol, algorithm, training)
        for algorithm in dict.fromkeys(printed_searches()["algorithm"])
        for protocol in PUBLISHED
        for training in TRAININGS
    ]
    return pd.DataFrame(rows)


def _best(measured: pd.DataFrame, protocol: str, algorithm: str, training: str) -> dict[str, Any]:
    published = published_best(algorithm, protocol, training)
    assert published is not None, "every printed search has its best setting in Table 1"
    own = measured[(measured[SYSTEM] == [protocol, algorithm, training]).all(axis=1)]
    same = own[(own[list(published.setting)] == list(published.setting.values())).all(axis=1)]
    row: dict[str, Any] = {
        "protocol": protocol,
        "algorithm": algorithm,
        "training": training,
        "printed_setting": _text(published.setting),
        "sum_printed": published.sum,
        "sum_there": float(same["sum"].iloc[0]) if len(same) else math.nan,
        "setting": "",
        "sum": math.nan,
        "settings": len(own),
        "place": math.nan,
        "tau": math.nan,
        "rule": "",
        "score_kind": "",
    }
    if own["sum"].notna().any():
        first = own.sort_values("sum", ascending=False, kind="stable").iloc[0].to_dict()
        row |= {"setting": _text({name: first[name] for name in published.setting})}
        row |= {name: first[name] for name in ("sum", "rule", "score_kind")}
        row["place"] = 1 + int((own["sum"] > row["sum_there"]).sum()) if len(same) else math.nan
    return row


def _text(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} {float(value):g}" for name, value in setting.items())


def with_orders(best: pd.DataFrame, settings: pd.DataFrame) -> pd.DataFrame:
    """Beside each search how alike the order of the settings is that both sides tried (rows that add up)."""
    there = settings[settings["sum"].notna() & settings["sum_printed"].notna() & (settings["ok"] == 1)]
    taus = {place: kendall(own["sum_printed"], own["sum"]) for place, own in there.groupby(SYSTEM)}
    places = best[SYSTEM].itertuples(index=False, name=None)
    return best.assign(tau=[taus.get(place, math.nan) for place in places])


# --- tables --------------------------------------------------------------------------------------------------------

_PLACE = tuple(Column(key=name, title=name, choice=True) for name in SYSTEM)
_SAID = (Column(key="rule", title="rule here"), Column(key="score_kind", title="score here"))


def best_table(best: pd.DataFrame, *, orders_alone: bool) -> Table:
    """Best settings; sums only where they can be compared."""
    sums = [
        Column(key="sum_printed", title="printed sum", decimals=4),
        Column(key="sum_there", title="the same setting here", decimals=4),
        Column(key="sum", title="best here", decimals=4),
    ]
    frame = best.drop(columns=[column.key for column in sums]) if orders_alone else best
    return Table(
        name="paper_best_settings",
        title="Best settings: Table 1 of the evaluation paper",
        frame=frame,
        columns=(
            *_PLACE,
            Column(key="printed_setting", title="printed best"),
            Column(key="setting", title="best here"),
            Column(key="place", title="place of the printed best here", decimals=0),
            Column(key="settings", title="of settings", decimals=0),
            Column(key="tau", title="Kendall's τ of all settings", decimals=2),
            *([] if orders_alone else sums),
            *_SAID,
        ),
        note="Validation negatives. Printed sums are by the rule and score of the paper's code; those here by what "
        "their search used. τ of the settings that both sides tried, damaged rows left out. Means over seeds.",
    )


def settings_table(settings: pd.DataFrame) -> Table:
    """Every printed setting."""
    figures = [
        Column(key=f"{name}{end}", title=f"{name.removeprefix('ccr_')} {said}", decimals=4)
        for name in (*CCR, "sum")
        for end, said in (("_printed", "printed"), ("", "here"), ("_less", "less"))
    ]
    return Table(
        name="paper_settings",
        title="Every setting: Tables 3 to 11 of the evaluation paper",
        frame=settings,
        columns=(
            *_PLACE,
            *(Column(key=name, title=name, decimals=1 if name in ("distance_multiplier", "cover_threshold") else 0)
              for name in HYPERPARAMETERS),
            *figures,
            *_SAID,
            Column(key="ok", title="adds up", decimals=0),
            Column(key="note", title="damage in print"),
        ),
        note="CCR on validation negatives at each rate, and the sum. Where the search here went by another rule or "
        "score than the paper's code, no difference is given. A printed row that does not add up says why; the three "
        "OpenMax tables are cut off.",
        marks={(row, "sum_printed"): "open" for row, ok in enumerate(settings["ok"]) if not ok},
        folded=True,
    )  # fmt: skip
