"""Times the whole comparison on embedded data: every cell from an empty folder, again with nothing to do, the report.

    python benchmarks/benchmark.py published    # the 45 cells of the evaluation paper
    python benchmarks/benchmark.py all          # with every registered algorithm

prints a table, with the share of the CPUs that was busy, and writes benchmarks/benchmark_<n>cpu_<date>.md and .csv.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from reporting import Row, row, run_parts

LONGEST = {"published": 1500.0, "all": 2100.0}
BUSY = 85.0
QUICK = ("--protocols", "2", "--losses", "softmax,eos")


def cpu_times() -> tuple[int, int]:
    """Busy and all jiffies of this machine since it was started."""
    times = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)


def run(folder: str, *arguments: str) -> tuple[float, float]:
    """Seconds of a command from its start to its end, and how busy all CPUs were meanwhile, in percent."""
    busy, total = cpu_times()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "oscbench", *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - started
    now = cpu_times()
    return seconds, 100 * (now[0] - busy) / max(1, now[1] - total)


def time_all(algorithms: str, quick: bool) -> list[Row]:
    """Everything that a user would do, in one empty folder."""
    verb = ("benchmark", "--yes", "--algorithms", algorithms, *(QUICK if quick else ()))
    rows: list[Row] = []

    def add(measure: str, value: float, unit: str, bar: str, met: bool) -> None:
        rows.append(row(algorithms, measure, value, unit, bar, None if quick else met))

    def add_seconds(measure: str, most: float, *arguments: str) -> float:
        seconds, busy = run(folder, *arguments)
        add(measure, seconds, "s", f"< {most:g}", seconds < most)
        return busy

    with tempfile.TemporaryDirectory() as folder:
        add_seconds("--dry-run, nothing there", 2.0, *verb, "--dry-run")
        busy = add_seconds("every cell from nothing", LONGEST[algorithms], *verb)
        add("CPUs busy meanwhile", busy, "%", f"> {BUSY:g}", busy > BUSY)
        add_seconds("the same again, nothing to do", 5.0, *verb)
        add_seconds("--dry-run, all there", 2.0, *verb, "--dry-run")
        add_seconds("report", 60.0, "report", "--out", "report")
        add_seconds("report --compare paper", 60.0, "report", "--compare", "paper", "--out", "compared")
    return rows


if __name__ == "__main__":
    parts = {name: partial(time_all, name) for name in LONGEST}
    run_parts("benchmark", "The whole comparison on embedded data", __doc__ or "", parts, ("torch", "ray"))
