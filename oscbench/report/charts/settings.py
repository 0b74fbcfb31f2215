"""What hyperparameters do: every search as a heat map over two of them, and as lines through all of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from oscbench.report.blocks import Chart
from oscbench.report.charts.base import (
    NAMES,
    Series,
    chart_of,
    heading_of,
    label_of,
    make_document,
    origin_keys,
    rounded,
)
from oscbench.report.results import Results, Search, ordered
from oscbench.tuning.published import published_best
from oscbench.tuning.trials import COLUMNS, HYPERPARAMETERS

_MOST_VALUES = 24
"""More values of a hyperparameter than this were drawn, not listed: no heat map shows them."""
_MOST_FACETS = 12
_BEST, _EACH = "best", "each"
_MEASURE = "sum of CCR"

HEAT_NOTE = (
    "Sum of CCR at FPR 1e-3, 1e-2, 1e-1 and 1 on validation negatives: for two hyperparameters the best over all "
    "others, or one map for each value of the third. A frame marks the best setting, a dashed one "
    "the published optimum."
)
LINES_NOTE = "A line for each setting, the stronger its colour the better; the thick one is the best."


def heat_charts(results: Results) -> list[Chart]:
    """A figure for each algorithm whose searches went over listed values."""
    return [
        chart
        for algorithm in dict.fromkeys(search.algorithm for search in results.searches)
        if (chart := _heat_chart(algorithm, results)) is not None
    ]


def _heat_chart(algorithm: str, results: Results) -> Chart | None:
    searches = [search for search in results.searches if search.algorithm == algorithm]
    series = [one for search in searches for one in _maps(search)]
    if not series:
        return None
    ranges = {place: _range([one for one in series if _place(one) == place]) for place in set(map(_place, series))}
    for one in series:
        one["range"] = ranges[_place(one)]
    facets = sorted({one["keys"]["facet"] for one in series}, key=_facet_order)
    document = make_document(
        "heat",
        series,
        choose=("protocol", "axes", "form", "seed", "network"),
        arrangements=(("training", ("training", "facet"), None, None),),
        names={**NAMES, "axes": "axes", "form": "others", "facet": "of"},
        values={
            "form": {_BEST: "best over the others", _EACH: "each value"},
            "facet": {facet: facet for facet in facets},
        },
    )
    title = f"{label_of('algorithm', algorithm)}: hyperparameters"
    name = f"settings-{algorithm}"
    return chart_of(name, title, document, note=HEAT_NOTE, heading=heading_of(results), apart=("protocol",))


def _place(one: Series) -> str:
    """What has a range of colours in common: all maps of a search and its sisters of other trainings."""
    return str(one["keys"]["protocol"])


def _range(maps: list[Series]) -> list[float]:
    values = [value for one in maps for row in one["z"] for value in row if value is not None]
    return [min(values), max(values)]


def _facet_order(facet: str) -> tuple[str, float, str]:
    name, _, value = facet.rpartition(" ")
    try:
        return name, float(value), value
    except ValueError:
        return name, 0.0, value


def hyperparameters_of(search: Search) -> list[str]:
    """Columns of the trials that differ between settings."""
    extra = [name for name in search.trials if name not in COLUMNS]
    return [name for name in map(str, (*HYPERPARAMETERS, *extra)) if search.trials[name].nunique() > 1]


def _maps(search: Search) -> list[Series]:
    """Maps of every pair of hyperparameters: the best over the others, and one for each value of the only other."""
    trials = search.trials[search.trials["sum"].notna()]
    names = hyperparameters_of(search)
    if trials.empty or not names or any(trials[name].nunique() > _MOST_VALUES for name in names):
        return []
    keys = origin_keys(search.origin)
    found = []
    for pair in itertools.combinations(names, 2) if len(names) > 1 else [(names[0], None)]:
        others = [name for name in names if name not in pair]
        shown = " × ".join(_words(name) for name in pair if name is not None)
        best = f"best over {', '.join(map(_words, others))}" if others else "all settings"
        more = keys | {"axes": shown, "form": _BEST, "facet": best}
        found.append({"keys": more, **_map(trials, pair, search)})
        if len(others) == 1 and trials[others[0]].nunique() <= _MOST_FACETS:
            for value, rows in trials.groupby(others[0]):
                more = keys | {"axes": shown, "form": _EACH, "facet": f"{_words(others[0])} {_text(value)}"}
                found.append({"keys": more, **_map(rows, pair, search)})
    return found


def _map(rows: pd.DataFrame, pair: tuple[str, str | None], search: Search) -> Series:
    across, up = pair
    columns = sorted(rows[across].dropna().unique())
    levels = sorted(rows[up].dropna().unique()) if up is not None else [None]
    names = [name for name in pair if name is not None]
    best = {
        place if isinstance(place, tuple) else (place,): value
        for place, value in rows.groupby(names)["sum"].max().to_dict().items()
    }
    z = [
        rounded([best.get((column,) if up is None else (column, level), np.nan) for column in columns], 4)
        for level in levels
    ]
    return {
        "x": list(map(_text, columns)),
        "y": ["" if level is None else _text(level) for level in levels],
        "z": z,
        "axes": [_words(across), _words(up) if up is not None else ""],
        "value": _MEASURE,
        "marks": _marks(rows, pair, columns, levels, search),
    }


def _marks(
    rows: pd.DataFrame, pair: tuple[str, str | None], columns: list[Any], levels: list[Any], search: Search
) -> list[list[Any]]:
    """Places of the best setting of the search, where these rows have it, and of the published optimum."""
    best = search.trials.iloc[int(search.trials["sum"].argmax())]
    found: list[tuple[dict[str, Any], str, bool]] = []
    if best.name in rows.index:
        found.append(({str(name): value for name, value in best.items()}, "best setting", False))
    origin = search.origin
    published = published_best(search.algorithm, origin.protocol, origin.training)
    if published is not None and _has(rows, published.setting):
        found.append((published.setting, "published optimum", True))
    across, up = pair
    return [
        [columns.index(setting[across]), levels.index(setting[up]) if up is not None else 0, text, dashed]
        for setting, text, dashed in found
        if setting.get(across) in columns and (up is None or setting.get(up) in levels)
    ]


def _has(rows: pd.DataFrame, setting: dict[str, Any]) -> bool:
    chosen = pd.Series(data=True, index=rows.index)
    for name, value in setting.items():
        chosen &= (rows[name] == value).fillna(False).astype(bool)
    return bool(chosen.any())


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float | np.number) and not isinstance(value, bool) else str(value)


# --- parallel coordinates ------------------------------------------------------------------------------------------


def line_charts(results: Results) -> list[Chart]:
    """One figure for all searches with several settings."""
    series = [one for search in results.searches if (one := _lines(search)) is not None]
    if not series:
        return []
    algorithms = ordered({one["keys"]["algorithm"] for one in series}, lambda name: (name,))
    document = make_document(
        "parallel",
        series,
        choose=("algorithm", "protocol", "seed", "network"),
        arrangements=(("training", ("training",), None, None),),
        values={"algorithm": {name: label_of("algorithm", name) for name in algorithms}},
        wide=24,
    )
    heading = heading_of(results)
    return [
        chart_of(
            "settings-lines",
            "Settings of every search",
            document,
            note=LINES_NOTE,
            heading=heading,
            apart=("algorithm", "protocol"),
        )
    ]


def _lines(search: Search) -> Series | None:
    trials = search.trials[search.trials["sum"].notna()]
    names = hyperparameters_of(search)
    if trials.empty or not names:
        return None
    columns = [_axis(trials[name], _words(name)) for name in names]
    columns.append(_axis(trials["sum"], _MEASURE, listed=False))
    shares = np.column_stack([share for _, share in columns])
    values = trials["sum"].to_numpy(float)
    texts = [", ".join(f"{_words(name)} {_text(row[name])}" for name in names) for _, row in trials.iterrows()]
    return {
        "keys": origin_keys(search.origin) | {"algorithm": search.algorithm},
        "axes": [axis for axis, _ in columns],
        "lines": [rounded(line, 4) for line in shares],
        "values": rounded(values, 5),
        "names": texts,
        "range": [float(values.min()), float(values.max())],
        "value": _MEASURE,
    }


def _axis(column: pd.Series[Any], label: str, *, listed: bool = True) -> tuple[dict[str, Any], Any]:
    """An axis, and the share of its height at which each value stands: listed values equally far apart."""
    found = sorted(column.dropna().unique())
    if not pd.api.types.is_numeric_dtype(column) or (listed and len(found) <= _MOST_VALUES):
        share = {value: i / max(1, len(found) - 1) for i, value in enumerate(found)}
        places = column.map(share).fillna(0.0).to_numpy(float)
        shown = found if len(found) <= 12 else found[:: -(-len(found) // 12)]
        return {"label": label, "ticks": [[round(share[value], 4), _text(value)] for value in shown]}, places
    values = column.to_numpy(float, na_value=np.nan)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    # Drawn values that span decades were drawn on a logarithmic scale.
    log = listed and low > 0 and high / low > 30
    ends = np.log10([low, high]) if log else np.array([low, high])
    width = float(ends[1] - ends[0]) or 1.0
    places = np.nan_to_num(((np.log10(values) if log else values) - ends[0]) / width)
    ticks = [
        (share, 10 ** (ends[0] + share * width) if log else ends[0] + share * width)
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    return {"label": label, "ticks": [[share, f"{value:.3g}"] for share, value in ticks]}, places
