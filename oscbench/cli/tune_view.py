"""What ``oscbench tune`` shows: the best trials while it runs, and the report at the end."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oscbench.progress import LOG_EVERY_SECONDS, duration
from oscbench.tuning.published import SOURCE
from oscbench.tuning.space import edge_warnings
from oscbench.tuning.trials import RATES, best_of, plain_value, ranked, read_trials

if TYPE_CHECKING:
    from oscbench.distributed.tune import Dashboard
    from oscbench.tuning.search import Search, SearchRun

BEST_SHOWN = 5
LOG_WIDTH = 120


class LiveView:
    """The best five trials, done/total and the time left on stderr: a live table on a terminal, lines in a log."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, width=None if sys.stderr.isatty() else LOG_WIDTH)
        self._live: Live | None = None
        self._last = 0.0
        self._told: Dashboard | None = None

    def say(self, text: str) -> None:
        """One line about what happens."""
        print(text, file=sys.stderr, flush=True)

    def dashboard(self, dashboard: Dashboard | None) -> None:
        """Where the cluster can be watched, and how to get in; said once."""
        if dashboard is not None and dashboard != self._told:
            self._told = dashboard
            self.say(f"Ray dashboard: {dashboard.url}  ({dashboard.entry})")

    def begin(self, run: SearchRun) -> None:
        """A search starts or goes on."""
        search = run.search
        self.say(f"{_title(search)}: {search.total} trials by {search.kind}, {run.done} finished before")
        self.say(f"results in {search.folder}; watch them with `oscbench watch --runs {search.directory.runs}`")
        self._last = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(self._picture(run), console=self._console, refresh_per_second=4)
            self._live.start()

    def update(self, run: SearchRun) -> None:
        """A trial has finished."""
        if self._live is not None:
            self._live.update(self._picture(run))
        elif time.monotonic() - self._last >= LOG_EVERY_SECONDS or run.done == run.search.total:
            self._last = time.monotonic()
            self._console.print(self._picture(run))

    def end(self, run: SearchRun) -> None:
        """The search is over."""
        if self._live is not None:
            self._live.update(self._picture(run))
            self._live.stop()
            self._live = None

    def _picture(self, run: SearchRun) -> Group:
        left = run.seconds_left()
        pace = "" if left is None else f", about {duration(left)} left" if run.done < run.search.total else ", done"
        head = Text(f"{run.done}/{run.search.total} trials{pace}")
        best = ranked(run.table()).head(BEST_SHOWN)
        return Group(head, trial_table(best, list(run.search.space.grid))) if len(best) else Group(head)


def trial_table(trials: pd.DataFrame, hyperparameters: list[str]) -> Table:
    """Settings with their CCR, one line each."""
    table = Table(*hyperparameters, *RATES, box=None, pad_edge=False)
    for row in trials.to_dict("records"):
        table.add_row(*(_cell(row[name]) for name in hyperparameters), *(_rate(row[name]) for name in RATES))
    return table


def _cell(value: Any) -> str:
    value = plain_value(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _rate(value: float | None) -> str:
    return "—" if value is None or math.isnan(value) else f"{value:.4f}"


def _title(search: Search) -> str:
    key = search.key
    return f"{key['algorithm']} on {key['data']} {key['protocol']}, {key['training']}, seed {key['seed']}"


# --- the report --------------------------------------------------------------------------------------------------


def report_of(searches: list[Search]) -> dict[str, Any]:
    """The result of all searches as one document, read from what is on disk."""
    reports = [_search_report(search) for search in searches]
    first = searches[0]
    document: dict[str, Any] = {
        "data": first.directory.data,
        "protocol": first.directory.protocol,
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
        "training": search.training,
        "seed": search.seed,
        "trials": len(table) - len(failed),
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
        "warnings": edge_warnings(search.space, "grid" if search.is_exhaustive else search.kind, best.params),
        "notes": list(search.notes()),
        "folder": str(search.folder),
    }
    if search.published is not None:
        report["published"] = {
            "params": search.published.setting,
            "sum": search.published.sum,
            "sum_here": _sum_of(table, search.published.setting),
            "source": SOURCE,
        }
    return report


def _sum_of(table: pd.DataFrame, setting: dict[str, Any]) -> float | None:
    """What a setting reached in this table; ``None`` when it was not tried."""
    chosen = table["status"] == "done"
    for name, value in setting.items():
        chosen &= table[name] == value
    found = table.loc[chosen.fillna(False).astype(bool), "sum"]
    return float(found.iloc[0]) if len(found) else None


def _over_seeds(searches: list[Search]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of each training; without those that share no finished setting yet."""
    trainings = dict.fromkeys(search.training for search in searches)
    groups = [[search for search in searches if search.training == training] for training in trainings]
    return [row for group in groups if (row := _spread(group)) is not None]


def _spread(group: list[Search]) -> dict[str, Any] | None:
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
    return {"training": group[0].training, "seeds": [search.seed for search in group], "params": params, **spread}


def _best_common(tables: list[pd.DataFrame], names: list[str]) -> pd.DataFrame:
    """The rows, one per table, of the setting with the largest mean sum among those that every table has."""
    trials = pd.concat(tables)
    groups = [rows for _, rows in trials.groupby(names, dropna=False) if len(rows) == len(tables)]
    return max(groups, key=lambda rows: float(rows["sum"].mean()), default=trials.head(0))


def print_report(report: dict[str, Any]) -> None:
    """The report for people, on stdout."""
    if report["data"].startswith("demo"):
        print(f"Data: {report['data']} (embedded demonstration images, not ImageNet), protocol {report['protocol']}")
    else:
        print(f"Data: {report['data']}, protocol {report['protocol']}")
    for search in report["searches"]:
        _print_search(report["algorithm"], search)
    for row in report.get("over_seeds", []):
        _print_spread(report["algorithm"], row)


def _print_search(algorithm: str, search: dict[str, Any]) -> None:
    print(f"\n{algorithm}, {search['training']}, seed {search['seed']}: best of {search['trials']} trials")
    print(f"  setting    {_setting(search['params'])}")
    print(f"  CCR@FPR    {_rates({name: _rate(search[name]) for name in RATES})}")
    print(
        f"             {search['n_known']} known and {search['n_negative']} negative validation samples, "
        f"rule {search['ccr_rule']}, score {search['score_kind']}"
    )
    if "published" in search:
        published = search["published"]
        here = f"; here it reaches {published['sum_here']:.4f}" if published["sum_here"] is not None else ""
        print(f"  published  {_setting(published['params'])}: sum {published['sum']:.4f} on ImageNet{here}")
    print(f"  files      {search['folder']}/{{trials.csv,trials.parquet,best.yaml}}")


def print_warnings(report: dict[str, Any]) -> None:
    """What is missing, what lies on an edge and what the method had to bend, on stderr."""
    for search in report["searches"]:
        whose = f"{search['training']}, seed {search['seed']}: " if len(report["searches"]) > 1 else ""
        missing = search["total"] - search["trials"]
        if missing:
            reason = f" ({search['failed']} failed: {search['error']})" if search["failed"] else ""
            _warn(
                f"{whose}{missing} of {search['total']} trials are missing{reason}; run the same command with --resume"
            )
        for line in search["warnings"]:
            _warn(f"{whose}{line}")
        for line in search["notes"]:
            print(f"note: {whose}{line}", file=sys.stderr)


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _print_spread(algorithm: str, row: dict[str, Any]) -> None:
    print(f"\n{algorithm}, {row['training']}: mean ± std over seeds {', '.join(map(str, row['seeds']))}")
    print(f"  setting    {_setting(row['params']) if row['params'] else 'the best of each seed'}")
    rates = {name: f"{_rate(row[name]['mean'])} ± {_rate(row[name]['std'])}" for name in RATES}
    print(f"  CCR@FPR    {_rates(rates)}")


def _rates(shown: dict[str, str]) -> str:
    rates = "  ".join(f"{name.removeprefix('ccr_')}: {shown[name]}" for name in RATES if name != "sum")
    return f"{rates}   sum {shown['sum']}"


def _setting(params: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in params.items()) or "no hyperparameters"
