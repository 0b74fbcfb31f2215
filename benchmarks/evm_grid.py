"""Times the 80 published EVM settings in one pass: beside the published way, beside one setting, at protocol-1 size.

    python benchmarks/evm_grid.py [--part small --part ratio --part protocol1] [--quick]

prints the tables and writes benchmarks/evm_grid_<n>cpu_<date>.md and .csv; parts that are not run keep their rows.
``--quick`` runs everything once instead of five times. Both sides of a comparison fit, score and read the four CCR from
the same arrays, taking turns. The slow side follows the published code in float64 torch on two threads: distances
between training rows are shared, but every setting has, class by class, its own top-k, its own Newton solve from shape
1 (at most 100 steps, tolerance 1e-6) and its own distances and scores of all queries. It reads the CCR from a sorted
curve per setting.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from reporting import circumstances, markdown, publish, timed, with_earlier_parts
from synthetic import closed_set_accuracy, tree_features

from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE
from oscbench.metrics import FPRS, Predictions, ccr_at_fpr, ccr_column, oscr_curve
from oscbench.numerics.evm.source import LocalSource
from oscbench.postprocessors.evm import Evm, EvmParams
from oscbench.progress import show_progress
from oscbench.tuning import evaluate_grid

TAILS = (10, 25, 50, 75, 100, 150, 200, 300, 500, 1000)
MULTIPLIERS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
SETTINGS = [EvmParams(tail_size=t, distance_multiplier=m) for t, m in itertools.product(TAILS, MULTIPLIERS)]
SINGLE = [EvmParams(tail_size=1000, distance_multiplier=0.5)]
COLUMNS = [ccr_column(fpr) for fpr in FPRS]

Row = dict[str, Any]


# --- the published way -----------------------------------------------------------------------------------------------


def fit_weibull(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape and scale of (n, t) tails by Newton's method from shape 1, all rows of a class at once."""
    log_x = x.log()
    mean = log_x.mean(dim=1)
    shape = torch.ones(len(x), dtype=torch.float64)
    for _ in range(100):
        power = x ** shape[:, None]
        total, first, second = power.sum(1), (power * log_x).sum(1), (power * log_x * log_x).sum(1)
        value = first / total - mean - 1 / shape
        step = value / (second / total - (first / total) ** 2 + 1 / shape**2)
        shape = shape - step
        if step.abs().max() < 1e-6:
            break
    return shape, (x ** shape[:, None]).mean(dim=1) ** (1 / shape)


def training_distances(train: FeatureSet) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Unit rows of each class, and their distances to the rows of all other classes."""
    rows = torch.nn.functional.normalize(torch.from_numpy(train.embedding).double(), dim=1)
    labels = torch.from_numpy(np.where(train.correct_mask(), train.labels, -1))
    classes = [rows[labels == label] for label in range(train.n_known)]
    others = [rows[(labels != label) & (labels >= 0)] for label in range(train.n_known)]
    return classes, [1 - own @ other.T for own, other in zip(classes, others, strict=True)]


def score_setting(
    classes: list[torch.Tensor], distances: list[torch.Tensor], queries: torch.Tensor, params: EvmParams
) -> torch.Tensor:
    """(Q, K) probabilities of inclusion of one setting, fitted and scored class by class."""
    scores = []
    for own, to_others in zip(classes, distances, strict=True):
        tail = torch.topk(params.distance_multiplier * to_others, params.tail_size, dim=1, largest=False).values
        farthest = tail[:, -1:]
        shape, scale = fit_weibull(1 + farthest - tail)
        x = (1 + farthest.T - (1 - queries @ own.T)).clamp(min=0)
        scores.append((1 - torch.exp(-((x / scale) ** shape))).amax(dim=1))
    return torch.stack(scores, dim=1)


def published_way(train: FeatureSet, validation: FeatureSet) -> np.ndarray:
    """The (S, 4) CCR, setting by setting."""
    classes, distances = training_distances(train)
    queries = torch.nn.functional.normalize(torch.from_numpy(validation.embedding).double(), dim=1)
    table = []
    for params in SETTINGS:
        score, label = score_setting(classes, distances, queries, params).max(dim=1)
        curve = oscr_curve(validation.labels, Predictions(label.numpy(), score.numpy()), unknown_label=NEGATIVE)
        table.append([ccr_at_fpr(curve, fpr) for fpr in FPRS])
    return np.array(table)


# --- the one pass ----------------------------------------------------------------------------------------------------


def one_pass(
    train: FeatureSet, validation: FeatureSet, settings: list[EvmParams] = SETTINGS, *, prune: bool = True
) -> np.ndarray:
    """The same table by ``evaluate_grid``."""
    source = None if prune else LocalSource(Evm.gallery(train, settings[0]), prune=False)
    table = evaluate_grid("evm", train, validation, settings, score_kind="probability", source=source)
    return table[COLUMNS].to_numpy()


def data_of(n_train: int, n_queries: int, dim: int, n_classes: int) -> tuple[FeatureSet, FeatureSet, Row]:
    """The generated sets and what the tables say about them."""
    train, validation = tree_features(n_train, n_queries, dim, n_classes)
    row = {
        "rows": n_train,
        "queries": n_queries,
        "features": dim,
        "classes": n_classes,
        "closed-set accuracy": f"{closed_set_accuracy(validation):.3f}",
    }
    return train, validation, row


def small(runs: int) -> list[Row]:
    """80 settings at N = 2,000 against the published way; at least 300 times faster is required."""
    train, validation, row = data_of(2_000, 1_500, 128, 20)
    first, _ = timed(lambda: one_pass(train, validation))
    slow, fast, unpruned = [], [], []
    for _ in range(runs):
        seconds, theirs = timed(lambda: published_way(train, validation))
        slow.append(seconds)
        seconds, ours = timed(lambda: one_pass(train, validation))
        fast.append(seconds)
        unpruned.append(timed(lambda: one_pass(train, validation, prune=False))[0])
    n_known = np.count_nonzero(validation.labels >= 0)
    off = np.nan_to_num(np.abs(ours - theirs)) * n_known
    row |= {
        "first call [s]": f"{first:.2f}",
        "published way [s]": f"{statistics.median(slow):.2f}",
        "one pass [s]": f"{statistics.median(fast):.3f}",
        "without pruning [s]": f"{statistics.median(unpruned):.3f}",
        "times faster": f"{statistics.median(slow) / statistics.median(fast):.0f} (required 300)",
        "CCR cells that differ": f"{np.count_nonzero(off > 0.5)} of {off.size}, by at most {off.max():.0f} samples",
    }
    return [row]


def ratio(runs: int) -> list[Row]:
    """All 80 settings against (1000, 0.5) alone at N = 20,000; at most 2.5 times the price is required."""
    train, validation, row = data_of(20_000, 8_000, 128, 116)
    one_pass(train, validation, SINGLE)
    grid, single, unpruned = [], [], []
    for _ in range(runs):
        single.append(timed(lambda: one_pass(train, validation, SINGLE))[0])
        grid.append(timed(lambda: one_pass(train, validation))[0])
        unpruned.append(timed(lambda: one_pass(train, validation, prune=False))[0])
    row |= {
        "one setting [s]": f"{statistics.median(single):.2f}",
        "80 settings [s]": f"{statistics.median(grid):.2f}",
        "without pruning [s]": f"{statistics.median(unpruned):.2f}",
        "grid / single": f"{statistics.median(grid) / statistics.median(single):.2f} (allowed 2.5)",
    }
    return [row]


def protocol1(runs: int) -> list[Row]:
    """80 settings at the size of protocol 1; under 180 s and 4 GiB is required."""
    train, validation, row = data_of(116_218, 46_475, 116, 116)
    seconds = []
    for _ in range(runs):
        with show_progress("EVM, protocol-1 size") as progress:
            started = time.perf_counter()
            evaluate_grid("evm", train, validation, SETTINGS, progress=progress)
            seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row |= {
        "80 settings [s]": f"{statistics.median(seconds):.1f} (allowed 180)",
        "peak memory of the process [MiB]": f"{peak:.0f} (allowed 4096)",
    }
    if runs > 1:
        row["without pruning, once [s]"] = f"{timed(lambda: one_pass(train, validation, prune=False))[0]:.1f}"
    return [row]


PARTS: dict[str, Callable[[int], list[Row]]] = {"small": small, "ratio": ratio, "protocol1": protocol1}


def report(tables: dict[str, list[Row]]) -> None:
    """Prints and writes a table of figures for each part."""
    new = [
        {"part": part, "figure": key, "value": row[key]} for part, rows in tables.items() for row in rows for key in row
    ]
    figures = with_earlier_parts("evm_grid", new, list(PARTS))
    head = f"`python benchmarks/evm_grid.py`, {circumstances('torch', 'numba', 'numpy')}."
    lines = ["# EVM: 80 settings in one pass", "", head, ""]
    for part, rows in itertools.groupby(figures, key=lambda row: row["part"]):
        shown = [{"figure": row["figure"], "value": row["value"]} for row in rows]
        lines += [f"## {part}", "", str(PARTS[part].__doc__).splitlines()[0], "", markdown(shown)]
    publish("evm_grid", "\n".join(lines), figures)


def main() -> None:
    """Runs the chosen parts, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="a part to run; may be repeated")
    parser.add_argument("--quick", action="store_true", help="one run instead of the median of five")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    chosen = arguments.part or list(PARTS)
    runs = 1 if arguments.quick else 5
    report({part: PARTS[part](runs) for part in chosen})


if __name__ == "__main__":
    main()
