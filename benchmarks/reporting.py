"""How every benchmark reports: a table on the terminal, and the same as Markdown and CSV beside the scripts."""

from __future__ import annotations

import csv
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CPUS = len(os.sched_getaffinity(0))


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
