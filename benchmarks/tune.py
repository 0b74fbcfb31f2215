"""Times searches through Ray Tune on the features of embedded protocol 1, and compares Optuna with the whole grid.

    python benchmarks/tune.py                 # makes the features first where they are missing (not timed)
    python benchmarks/tune.py --from-empty    # also times the whole job from an empty folder

prints a table and writes benchmarks/tune_<n>cpu_<date>.md and .csv.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from reporting import circumstances, markdown, publish

COLUMNS = ("what", "trials", "seconds", "overhead per trial (s)", "best sum", "bar")
OPTUNA_SEEDS = range(5)
OPTUNA_TRIALS = 60


def oscbench(*arguments: str) -> tuple[float, Any]:
    """Wall-clock seconds of a command, from its start to its end, and its JSON document."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "oscbench", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - started, json.loads(done.stdout)


def time_grid(algorithm: str, features: Path, bar: str) -> dict[str, Any]:
    """The published grid by `oscbench tune`, Ray's start included."""
    with tempfile.TemporaryDirectory() as runs:
        seconds, document = oscbench("tune", "--alg", algorithm, "--features", str(features), "--runs", runs)
        (search,) = document["searches"]
        folder = Path(search["folder"])
        table = pd.read_parquet(folder / "trials.parquet")
        per_trial = overhead(folder, table)
    return row(f"{algorithm}, whole grid", len(table), seconds, per_trial, search["sum"], bar)


def overhead(folder: Path, table: pd.DataFrame) -> float:
    """Seconds per trial from Tune's start to the last result that were not spent evaluating settings."""
    (experiment,) = [path for path in (folder / "ray").iterdir() if path.is_dir()]
    started = datetime.strptime(experiment.name, "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)
    last = max(datetime.fromisoformat(text) for text in table["finished_at"])
    return ((last - started).total_seconds() - float(table["seconds"].sum())) / len(table)


def compare_optuna(features: Path, grid_best: float) -> list[dict[str, Any]]:
    """Optuna with few trials against the best of the whole grid, several seeds of the search."""
    from oscbench.distributed.cluster import connect
    from oscbench.distributed.tune import run_search
    from oscbench.features import load_feature_folder
    from oscbench.origin import Origin
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.tuning.evaluator import SharedFeatures
    from oscbench.tuning.search import Search, SearchRun
    from oscbench.tuning.space import load_space

    splits = load_feature_folder(features)
    space = load_space("evm", POSTPROCESSORS.info("evm").params)
    rows, sums = [], []
    with connect(), tempfile.TemporaryDirectory() as runs:
        for seed in OPTUNA_SEEDS:
            search = Search(
                origin=Origin(data="demo", protocol="p1", training="softmax", seed=seed, demo=True),
                folder=Path(runs) / f"tune-{seed}",
                fingerprint=f"{seed:016}",
                features=splits.train.fingerprint,
                algorithm="evm",
                validation_labels=splits.val.labels,
                space=space,
                kind="optuna",
                trials=OPTUNA_TRIALS,
            )
            started = time.perf_counter()
            with SearchRun(search) as run:
                run_search(run, SharedFeatures.of(search, splits.train, splits.val))
                best, table = run.finish(), run.table()
            sums.append(best.sum)
            seconds = time.perf_counter() - started
            per_trial = overhead(search.folder, table)
            rows.append(row(f"evm, Optuna, seed {seed}", len(table), seconds, per_trial, best.sum, ""))
    bar = f"at least the grid's best, {grid_best:.4f}"
    return [*rows, row("evm, Optuna, median of seeds", OPTUNA_TRIALS, None, None, statistics.median(sums), bar)]


def time_from_empty() -> dict[str, Any]:
    """The main job on an empty folder: images, training, features and the grid."""
    with tempfile.TemporaryDirectory() as runs:
        seconds, document = oscbench("tune", "--alg", "evm", "--protocol", "1", "--runs", runs)
    (search,) = document["searches"]
    return row("evm, from an empty folder to the table", search["trials"], seconds, None, search["sum"], "under 360 s")


def row(
    what: str, trials: int, seconds: float | None, per_trial: float | None, best: float, bar: str
) -> dict[str, Any]:
    """One line of the table."""
    values = (
        what,
        trials,
        "" if seconds is None else f"{seconds:.1f}",
        "" if per_trial is None else f"{per_trial:.3f}",
        f"{best:.4f}",
        bar,
    )
    return dict(zip(COLUMNS, values, strict=True))


def report(rows: list[dict[str, Any]], data: str) -> None:
    """Prints and writes the table."""
    publish(
        "tune",
        f"# Searches through Ray Tune\n\n`python benchmarks/tune.py`, {circumstances('ray', 'optuna')}; {data}. "
        "One run each. Seconds of a grid are wall clock of the whole command, Ray's start included; those of Optuna "
        "are of the search alone. The overhead is what passes from Tune's start to the last result beside the "
        f"evaluation itself; starting the trial processes is in it.\n\n{markdown(rows)}",
        rows,
    )


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where features of protocol 1 are or are made")
    parser.add_argument("--features", type=Path, help="other features instead")
    parser.add_argument("--from-empty", action="store_true", help="also time the whole job from an empty folder")
    arguments = parser.parse_args()
    features = arguments.features
    if features is None:
        _, extracted = oscbench("extract", "--protocol", "1", "--loss", "softmax", "--runs", str(arguments.runs))
        features = Path(extracted[0]["folder"])
    from oscbench.features import load_feature_folder

    splits = load_feature_folder(features)
    data = f"{len(splits.train)} training and {len(splits.val)} validation rows, {splits.train.n_known} known classes"
    evm = time_grid("evm", features, "under 40 s; overhead at most 0.25 s")
    rows = [evm, time_grid("openmax", features, ""), *compare_optuna(features, float(evm["best sum"]))]
    if arguments.from_empty:
        rows.append(time_from_empty())
    report(rows, data)


if __name__ == "__main__":
    main()
