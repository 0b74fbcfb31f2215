"""The best hyperparameters of all searches, as the evaluation paper's Table 1, and all grids, as its Tables 3 to 11."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from oscbench.metrics import CcrRule
from oscbench.origin import Origin
from oscbench.report.blocks import Column, Mark, Section, Table
from oscbench.report.charts.base import label_of
from oscbench.report.measures import RATES, Measures
from oscbench.report.results import Results, Search, ordered, score_kinds_of
from oscbench.report.sections.base import PRINTED, SYMBOLS, in_order, marks_of_best, name_columns, named
from oscbench.tuning.trials import HYPERPARAMETERS, hyperparameter_columns, plain_value, ranked

_ROW: Final = ("protocol", "network", "recipe", "seed")
_SHORT: Final = dict(zip(RATES, ("1e-3", "1e-2", "1e-1", "1"), strict=True)) | {"sum": "Σ"}
_NO_SEARCH: Final = "There is no finished search."
_ABOUT_SUM: Final = "Σ is the sum of CCR at the four rates against validation negatives, unreachable rates as 0."


def best_settings_section(results: Results, measures: Measures) -> Section:
    """What searches have found: a table for each post-processor, trainings side by side."""
    searches = chosen_searches(results, measures.rule)
    tables = [_best_table(algorithm, list(own)) for algorithm, own in _by_algorithm(searches)]
    text = "" if tables else _NO_SEARCH
    return Section(name="settings", title="Best hyperparameters", blocks=tuple(tables), text=text)


def grids_section(results: Results, measures: Measures) -> Section:
    """Every setting that was tried, a table for each post-processor and protocol."""
    searches = chosen_searches(results, measures.rule)
    tables = [
        _grid_table(algorithm, list(own))
        for algorithm, found in _by_algorithm(searches)
        for _, own in itertools.groupby(_sorted(found, _place), _place)
    ]
    text = "" if tables else _NO_SEARCH
    return Section(name="grids", title="All settings", blocks=tuple(tables), text=text)


def chosen_searches(results: Results, rule: CcrRule) -> list[Search]:
    """One search of each network and post-processor: by this rule, of the method's first kind of score, then the best.

    As ``evaluate`` chooses among finished searches. Where none was made by this rule, another one is shown.
    """
    newest: dict[Origin, str] = {}
    for search in sorted(results.searches, key=lambda search: search.created):
        newest[_anyones(search.origin)] = search.origin.train
    found: dict[tuple[Origin, str], Search] = {}
    for search in sorted(results.searches, key=lambda search: _fitness(search, rule)):
        if newest[_anyones(search.origin)] == search.origin.train:
            found[(search.origin, search.algorithm)] = search
    return [search for search in results.searches if found.get((search.origin, search.algorithm)) is search]


def _anyones(origin: Origin) -> Origin:
    """What two trainings of one network, recipe and seed have in common; the newer one counts."""
    return dataclasses.replace(origin, train="")


def _fitness(search: Search, rule: CcrRule) -> tuple[bool, int, float, str]:
    kinds, kind = score_kinds_of(search.algorithm), search.config["score_kind"]
    place = -kinds.index(kind) if kind in kinds else -len(kinds)
    best = float(search.trials["sum"].max())
    return search.config["ccr_rule"] == rule, place, best, search.created


def _by_algorithm(searches: Iterable[Search]) -> Iterable[tuple[str, Iterable[Search]]]:
    def algorithm(search: Search) -> str:
        return search.algorithm

    return itertools.groupby(ordered(searches, lambda search: (search.algorithm,)), algorithm)


def _place(search: Search) -> tuple[str, ...]:
    origin = search.origin
    return (origin.protocol, origin.network, origin.recipe, "" if origin.seed is None else f"{origin.seed:09d}")


def _sorted(searches: Iterable[Search], key: Any) -> list[Search]:
    return ordered(searches, lambda search: (*key(search), search.origin.training))


# --- best hyperparameters ---------------------------------------------------------------------------------------------


def _best_table(algorithm: str, searches: Sequence[Search]) -> Table:
    varied = _varied(searches)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for search in searches:
        row = rows.setdefault(_place(search), _named_row(search))
        best = ranked(search.trials)
        if best.empty:  # every trial has failed
            continue
        values = {name: plain_value(best.iloc[0][name]) for name in (*varied, "sum")}
        values |= {
            "trials": len(best),
            "score_kind": search.config["score_kind"],
            "ccr_rule": search.config["ccr_rule"],
        }
        row |= {f"{search.origin.training}:{name}": value for name, value in values.items()}
    frame = in_order(pd.DataFrame(list(rows.values())), _ROW)
    columns = [*name_columns(frame, _ROW)]
    for training in _trainings(searches):
        label = label_of("training", training)
        columns += [_setting_column(f"{training}:{name}", name, label) for name in varied]
        columns.append(Column(key=f"{training}:sum", title=f"Σ, {label}", decimals=PRINTED))
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *(column.key for column in columns)])))
    return Table(
        name=f"best-settings-{algorithm}",
        title=f"Best hyperparameters of {label_of('algorithm', algorithm)}",
        frame=named(frame),
        columns=tuple(columns),
        note=" ".join(filter(None, (_legend(varied), _ABOUT_SUM, _other_rules(searches)))),
        marks=_best_of_row(frame, [f"{training}:sum" for training in _trainings(searches)]),
    )


def _best_of_row(frame: pd.DataFrame, columns: Sequence[str]) -> dict[tuple[int, str], Mark]:
    """The best training of each row."""
    found = frame[[*columns]].to_numpy(float)
    return {
        (row, column): "best"
        for row, values in enumerate(found)
        for column, value in zip(columns, values, strict=True)
        if len(columns) > 1 and value == max(values[values == values], default=None)
    }


def _varied(searches: Sequence[Search]) -> list[str]:
    """Hyperparameters that any of the searches has a value of; of others than the papers' those that differ, if any."""
    trials = [search.trials for search in searches]
    names = dict.fromkeys(name for table in trials for name in hyperparameter_columns(table))
    values = {name: {plain_value(v) for table in trials if name in table for v in table[name]} for name in names}
    shown = [name for name in names if len(values[name] - {None}) > (0 if name in HYPERPARAMETERS else 1)]
    return shown or [name for name in names if values[name] - {None}]


def _trainings(searches: Iterable[Search]) -> list[str]:
    return ordered({search.origin.training for search in searches}, lambda training: (training,))


def _named_row(search: Search) -> dict[str, Any]:
    origin = search.origin
    return {"protocol": origin.protocol, "network": origin.network, "recipe": origin.recipe, "seed": origin.seed}


def _setting_column(key: str, name: str, label: str) -> Column:
    symbol, _ = SYMBOLS.get(name, (name, ""))
    return Column(key=key, title=f"{symbol}, {label}" if label else symbol)


def _legend(names: Iterable[str]) -> str:
    known = [" ".join(SYMBOLS[name]) for name in names if name in SYMBOLS]
    return f"{', '.join(known)}." if known else ""


def _other_rules(searches: Iterable[Search]) -> str:
    found = {f"{search.config['ccr_rule']} rule, {search.config['score_kind']} score" for search in searches}
    return f"CCR by the {', '.join(sorted(found))}."


# --- grids ------------------------------------------------------------------------------------------------------------


def _grid_table(algorithm: str, searches: Sequence[Search]) -> Table:
    first = searches[0]
    varied = _varied(searches)
    tables = {search.origin.training: _tried(search, varied) for search in searches}
    frame = pd.concat(tables.values(), axis=1).reset_index()
    frame = in_order(frame, varied) if varied else frame
    columns = [_setting_column(name, name, "") for name in varied]
    for training in tables:
        label = label_of("training", training)
        columns += [
            Column(key=f"{training}:{name}", title=f"{title}, {label}", decimals=PRINTED)
            for name, title in _SHORT.items()
        ]
    place = [label_of("protocol", first.origin.protocol)]
    place += [part for part in (first.origin.network, first.origin.recipe) if part]
    place += [f"seed {first.origin.seed}"] if first.origin.seed is not None else []
    failed = sum(int((search.trials["status"] == "failed").sum()) for search in searches)
    return Table(
        name="-".join(filter(None, ("grid", algorithm, *map(_file_part, _place(first))))),
        title=f"{label_of('algorithm', algorithm)}, {', '.join(place)}",
        frame=frame,
        columns=tuple(columns),
        note=" ".join(
            filter(
                None,
                (
                    "CCR at each rate against validation negatives.",
                    _legend(varied),
                    _ABOUT_SUM,
                    _other_rules(searches),
                    f"{failed} trials failed." if failed else "",
                ),
            )
        ),
        marks=marks_of_best(frame.assign(_all=""), [f"{training}:sum" for training in tables], ["_all"]),
        folded=True,
    )


def _tried(search: Search, varied: Sequence[str]) -> pd.DataFrame:
    """The trials that ran to their end, by setting; without a hyperparameter by their number."""
    table = search.trials[search.trials["status"] == "done"]
    table = table.reindex(columns=[*varied, *_SHORT])
    table = table.astype({name: "object" for name in varied})
    indexed = table.set_index([*varied]) if varied else table
    prefix: Mapping[str, str] = {name: f"{search.origin.training}:{name}" for name in _SHORT}
    return indexed.rename(columns=prefix)


def _file_part(text: str) -> str:
    """A text as a file name may have it.

    >>> _file_part("demo, epochs=2"), _file_part("000000003")
    ('demo-epochs-2', 's3')
    """
    if text.isdigit():
        return f"s{int(text)}"
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in text).split())
