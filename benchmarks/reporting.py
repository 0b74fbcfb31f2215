"""How every benchmark reports: a table on the terminal, and the same as Markdown and CSV beside the scripts."""

from __future__ import annotations

import argparse
import csv
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from scipy.stats import t as student

T = TypeVar("T")
CPUS = len(os.sched_getaffinity(0))

Row = dict[str, object]


def come_to_rest() -> None:
    """Waits until the threads of what ran before sleep: OpenMP's spin for some 20 ms after their last product.

    Called before either side of a comparison is timed, so that none pays for the other. The wait itself is a loop,
    because a core that has slept takes milliseconds to come back.
    """
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        pass


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds and result of one call, begun with all cores at rest."""
    come_to_rest()
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def circumstances(*packages: str) -> str:
    """The day, the machine and the versions that a table was made with."""
    versions = [f"{package} {version(package)}" for package in packages]
    return ", ".join(
        [str(date.today()), f"{CPUS} CPUs ({platform.machine()})", f"Python {platform.python_version()}", *versions]
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows with the same keys."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def row(part: str, measure: str, value: float, unit: str, required: str = "", met: bool | None = None) -> Row:
    """One line of the table of a benchmark in parts."""
    verdict = "" if met is None else "yes" if met else "NO"
    return {
        "part": part,
        "measure": measure,
        "value": f"{value:.4g}",
        "unit": unit,
        "required": required,
        "met": verdict,
    }


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of their mean, by Student's t."""
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


def run_parts(
    name: str, title: str, description: str, parts: Mapping[str, Callable[[bool], list[Row]]], packages: Sequence[str]
) -> None:
    """Runs the parts that the command line names, by default all; after each the table is printed and written.

    Args:
        name: Of the script, and of its tables.
        title: Heading of the table.
        description: What ``--help`` says.
        parts: Each called with whether ``--quick`` was given, which runs less and writes nothing.
        packages: Whose versions are named.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help=", ".join(parts))
    parser.add_argument("--quick", action="store_true", help="less of everything, nothing is written")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    for part in arguments.parts or parts:
        rows = parts[part](arguments.quick)
        if arguments.quick:
            print(markdown(rows), flush=True)
            continue
        figures = with_earlier_parts(name, rows, list(parts))
        head = f"`python benchmarks/{name}.py`, {circumstances(*packages)}."
        publish(name, f"# {title}\n\n{head}\n\n{markdown(figures)}", figures)


def with_earlier_parts(name: str, rows: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> list[Mapping[str, Any]]:
    """The rows, and those of parts that were not run this time but earlier today; ``parts`` gives the order."""
    run = {row["part"] for row in rows}
    table = _stem(name).with_suffix(".csv")
    earlier: list[Mapping[str, Any]] = []
    if table.exists():
        with table.open(newline="") as file:
            earlier = [row for row in csv.DictReader(file) if row["part"] not in run]
    return sorted([*earlier, *rows], key=lambda row: parts.index(row["part"]))


def publish(name: str, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the text and writes it, and the rows as CSV, as ``<name>_<n>cpu_<date>``."""
    print(text)
    stem = _stem(name)
    stem.with_suffix(".md").write_text(text)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _stem(name: str) -> Path:
    return Path(__file__).with_name(f"{name}_{CPUS}cpu_{date.today()}")
