"""What ``oscbench tune`` shows: the best trials while it runs, and the report at the end."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oscbench.cli.common import print_rows
from oscbench.errors import UsageError
from oscbench.progress import LOG_EVERY_SECONDS, duration
from oscbench.tuning.trials import RATES, plain_value, ranked, trial_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oscbench.distributed.cluster import Dashboard
    from oscbench.progress import PassProgress
    from oscbench.tuning.search import Search, SearchRun
    from oscbench.tuning.space import Setting

BEST_SHOWN = 5
LOG_WIDTH = 120


class LiveView:
    """The best five trials, done/total and the time left on stderr: a live table on a terminal, lines in a log."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._console = Console(stderr=True, width=None if sys.stderr.isatty() else LOG_WIDTH)
        self._live: Live | None = None
        self._last = 0.0
        self._doing = ""
        self._trials: dict[str, str] = {}
        """How far each trial is that trains."""

    def say(self, text: str) -> None:
        """One line about what happens."""
        print(text, file=sys.stderr, flush=True)

    def dashboard(self, dashboard: Dashboard) -> None:
        """Where the cluster can be watched, and how to get in."""
        self.say(f"Ray dashboard: {dashboard.url}  ({dashboard.entry})")

    def wants_to_go_on(self, state: str) -> bool:
        """Asks on a terminal; elsewhere the answer has to be given beforehand."""
        if not sys.stdin.isatty():
            raise UsageError(f"an unfinished search is there ({state}); add --resume to go on with it")
        return typer.confirm(f"An unfinished search is there ({state}). Go on with it?", default=True, err=True)

    def begin(self, run: SearchRun) -> None:
        """A search starts or goes on."""
        search = run.search
        self.say(f"{_title(search)}: {search.total} trials by {search.kind}, {run.done} finished before")
        self.say(f"results in {search.folder}; watch them with `oscbench watch --runs {self._runs}`")
        self._last = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(self._picture(run), console=self._console, refresh_per_second=4)
            self._live.start()

    def update(self, run: SearchRun) -> None:
        """A trial has finished."""
        self._doing = ""
        self._trials = {name: text for name, text in self._trials.items() if name not in run.sums()}
        if self._live is not None:
            self._live.update(self._picture(run))
        elif time.monotonic() - self._last >= LOG_EVERY_SECONDS or run.done == run.search.total:
            self._last = time.monotonic()
            self._console.print(self._picture(run))

    def progress(self, run: SearchRun, current: PassProgress) -> None:
        """A pass over several settings goes on."""
        self._show(run, str(current))

    def step(self, run: SearchRun, setting: Setting, step: int, values: Mapping[str, float]) -> None:
        """A trial that trains has finished an epoch."""
        searched = _searched(run)
        chosen = _setting({name: value for name, value in setting.items() if name in searched})
        shown = {name: value for name, value in values.items() if name == "sum" or name not in RATES}
        figures = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        self._trials[trial_id(setting)] = f"{chosen}: epoch {step}, {figures}"
        self._show(run, self._trials[trial_id(setting)])

    def _show(self, run: SearchRun, doing: str) -> None:
        """What is being done: under the heading of the live table, or now and then a line in the log."""
        self._doing = "" if self._trials else doing
        if self._live is not None:
            self._live.update(self._picture(run))
        elif time.monotonic() - self._last >= LOG_EVERY_SECONDS:
            self._last = time.monotonic()
            self.say(doing)

    def end(self, run: SearchRun) -> None:
        """The search is over."""
        self._doing, self._trials = "", {}
        if self._live is not None:
            self._live.update(self._picture(run))
            self._live.stop()
            self._live = None

    def _picture(self, run: SearchRun) -> Group:
        left = run.seconds_left()
        pace = "" if left is None else f", about {duration(left)} left" if run.done < run.search.total else ", done"
        head = Text(f"{run.done}/{run.search.total} trials{pace}" + (f"; {self._doing}" if self._doing else ""))
        lines = [head, *map(Text, self._trials.values())]
        best = ranked(run.table()).head(BEST_SHOWN)
        return Group(*lines, trial_table(best, _searched(run))) if len(best) else Group(*lines)


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


# --- the report ----------------------------------------------------------------------------------------------------


def print_report(report: dict[str, Any]) -> None:
    """The report for people, on stdout."""
    _print_data(report)
    for search in report["searches"]:
        _print_search(report["algorithm"], search)
    for row in report.get("over_seeds", []):
        _print_spread(report["algorithm"], row)


def print_reports(reports: Sequence[dict[str, Any]]) -> None:
    """The best settings of several algorithms, a line for each search, the best first."""
    _print_data(reports[0])
    found = [(report["algorithm"], search) for report in reports for search in report["searches"]]
    rows = [
        {
            "algorithm": algorithm,
            "training": search["training"],
            "seed": search["seed"],
            **{name: _rate(search[name]) for name in RATES},
            "trials": search["trials"],
            "setting": _setting(search["params"]),
        }
        for algorithm, search in sorted(found, key=lambda pair: -pair[1]["sum"])
    ]
    print()
    print_rows(rows)
    for report in reports:
        for row in report.get("over_seeds", []):
            _print_spread(report["algorithm"], row)


def _print_data(report: dict[str, Any]) -> None:
    demo = " (embedded demonstration images, not ImageNet)" if report["demo"] else ""
    print(f"Data: {report['data']}{demo}, protocol {report['protocol']}")


def _print_search(algorithm: str, search: dict[str, Any]) -> None:
    early = f", of which {search['stopped_early']} were stopped early" if search["stopped_early"] else ""
    print(f"\n{algorithm}, {search['training']}, seed {search['seed']}: best of {search['trials']} trials{early}")
    if search["network"]:
        print(f"  network    {search['network']}, recipe {search['recipe']}, training {search['train']}")
    print(f"  setting    {_setting(search['params'])}")
    print(f"  CCR@FPR    {_rates({name: _rate(search[name]) for name in RATES})}")
    print(
        f"             {search['n_known']} known and {search['n_negative']} negative validation samples, "
        f"rule {search['ccr_rule']}, score {search['score_kind']}"
    )
    if "published" in search:
        published = search["published"]
        here = _beside_published(search)
        print(f"  published  {_setting(published['params'])}: sum {published['sum']:.4f} on ImageNet{here}")
    print(f"  files      {search['folder']}/{{trials.csv,trials.parquet,best.yaml}}")


def _beside_published(search: dict[str, Any]) -> str:
    """What can be said beside the published sum, which is by a rule and a kind of score of its own."""
    published = search["published"]
    if published["sum_here"] is not None:
        here, best = published["sum_here"], published["best_here"]
        return f"; by the same rule it reaches {here:.4f} here, the setting above {best:.4f}"
    same = search["ccr_rule"] == search["score_kind"] == published["rule"]
    return "" if same else ", by another rule or score than the sum above"


def print_warnings(report: dict[str, Any], *, several: bool) -> None:
    """What is missing, what lies on an edge and what the method had to bend, on stderr.

    Args:
        report: Of one algorithm.
        several: Whether it is one of several that were searched.
    """
    for search in report["searches"]:
        named = [report["algorithm"]] if several else []
        named += [search["training"], f"seed {search['seed']}"] if len(report["searches"]) > 1 else []
        whose = f"{', '.join(named)}: " if named else ""
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


def _searched(run: SearchRun) -> list[str]:
    """Hyperparameters that differ between trials."""
    space = run.search.space
    return list(space.grid if run.search.is_exhaustive else space.ranges)


def _setting(params: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in params.items()) or "no hyperparameters"
