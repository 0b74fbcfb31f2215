"""Times EVM's whole grid on one and on two shards of one CPU each, at protocol-2 size.

    python benchmarks/shards.py

prints a table and writes benchmarks/shards_<n>cpu_<date>.md and .csv; ``--quick`` is a small run that only
prints.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import ray
from reporting import circumstances, markdown, publish
from synthetic import closed_set_accuracy, tree_features

from oscbench.distributed.shards import ShardedSource
from oscbench.postprocessors.evm import Evm, EvmParams

FULL, QUICK = (28_895, 15_173, 5), (6_000, 3_000, 3)  # training rows, queries, runs
DIM, N_CLASSES = 30, 30
TAIL_SIZES = (10, 25, 50, 75, 100, 200, 300, 500, 750, 1000)
MULTIPLIERS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
SETTINGS = [EvmParams(tail_size=t, distance_multiplier=k) for t in TAIL_SIZES for k in MULTIPLIERS]
BAR = 1.8
COLUMNS = (
    "shards", "in the actors", "fit", "score", "all runs, in the actors", "times faster",
    "queries in", "answers out", "start", "rows in",
)  # fmt: skip


def timed_question(source: ShardedSource, queries: np.ndarray) -> tuple[dict[str, float], tuple[np.ndarray, ...]]:
    """Seconds of one question by phase, and its answer; the slowest shard counts."""
    before, started = source.work(), time.perf_counter()
    answer = source.best(queries, SETTINGS)
    wall = time.perf_counter() - started
    spent = [
        {phase: after.seconds[phase] - then.seconds[phase] for phase in after.seconds}
        for then, after in zip(before, source.work(), strict=True)
    ]
    slowest = max(spent, key=lambda phases: phases["fit"] + phases["score"])
    inside = slowest["fit"] + slowest["score"]
    return slowest | {"inside": inside, "out": wall - inside - slowest["transfer"]}, answer


def compare(n_train: int, n_queries: int, n_runs: int) -> tuple[list[dict[str, Any]], str]:
    """One and two shards in turn, tails computed afresh each time; the answers must agree to the last bit."""
    train, validation = tree_features(n_train, n_queries, DIM, N_CLASSES)
    gallery = Evm.gallery(train, SETTINGS[0])
    queries = validation.embedding
    options: dict[str, Any] = {"cpus_per_shard": 1, "keep_tails": False}
    with closing(ShardedSource(gallery, 1, **options)) as one, closing(ShardedSource(gallery, 2, **options)) as two:
        for source in (one, two):  # compiled code is loaded once per process
            source.best(queries[:256], SETTINGS)
        runs: list[list[dict[str, float]]] = [[], []]
        for _ in range(n_runs):
            alone, expected = timed_question(one, queries)
            shared, found = timed_question(two, queries)
            if any(a.tobytes() != b.tobytes() for a, b in zip(expected, found, strict=True)):
                raise SystemExit("one and two shards answer differently")
            runs[0].append(alone)
            runs[1].append(shared)
        rows = [table_row(source, seconds, runs[0]) for source, seconds in zip((one, two), runs, strict=True)]
    accuracy = closed_set_accuracy(validation)
    size = f"{n_train:,} rows, {n_queries:,} queries, D = {DIM}, {N_CLASSES} classes, {len(SETTINGS)} settings"
    return rows, f"{size}, closed-set accuracy {accuracy:.2f}"


def table_row(source: ShardedSource, runs: list[dict[str, float]], alone: list[dict[str, float]]) -> dict[str, Any]:
    """One line of the table; seconds are medians."""

    def median(phase: str, of: Sequence[dict[str, float]] = runs) -> float:
        return statistics.median(run[phase] for run in of)

    every = " ".join(f"{run['inside']:.2f}" for run in runs)
    factor = median("inside", alone) / median("inside")
    seconds = [f"{median(phase):.2f}" for phase in ("inside", "fit", "score")]
    around = [f"{value:.3f}" for value in (median("transfer"), median("out"), source.start_seconds, source.put_seconds)]
    values = (len(source.ranges), *seconds, every, f"{factor:.2f}", *around)
    return dict(zip(COLUMNS, values, strict=True))


def as_text(rows: list[dict[str, Any]], size: str) -> str:
    """The table in Markdown, with how it was made."""
    return (
        "# EVM on sharded actors\n\n"
        f"`python benchmarks/shards.py`, {circumstances('ray', 'numba')}. {size}.\n\n"
        "Seconds, medians of alternating runs. One thread per shard; of two shards the slower counts. Aim: two shards "
        f"at least {BAR} times as fast as one, inside the actors. Answers equal to the last bit.\n\n{markdown(rows)}"
    )


def main() -> None:
    """Runs the comparison and writes its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that only prints")
    quick = parser.parse_args().quick
    os.environ.setdefault("RAY_worker_niceness", "0")  # as when oscbench starts Ray itself
    # Three logical CPUs: both sources stay open, only one of them computes at a time.
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    rows, size = compare(*(QUICK if quick else FULL))
    ray.shutdown()
    if quick:
        print(as_text(rows, size))
    else:
        publish("shards", as_text(rows, size), rows)


if __name__ == "__main__":
    main()
