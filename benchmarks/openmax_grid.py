"""Times the 96 published OpenMax settings in one pass beside the published way, setting by setting.

    python benchmarks/openmax_grid.py

prints a table and writes benchmarks/openmax_grid_<n>cpu_<date>.md and .csv. Both sides fit, score and read the four CCR
from the same arrays, taking turns. The slow side follows the published code step by step, in float64 torch on two
threads: for each setting and class a Newton solve from shape 1 (at most 100 steps, tolerance 1e-6) on shared distances,
then distances, knownness, top-k and softmax of all queries, then a pass over all queries for each threshold.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from reporting import circumstances, come_to_rest, markdown, publish
from synthetic import tree_features

from oscbench.features import FeatureSet
from oscbench.labels import NEGATIVE
from oscbench.metrics import FPRS, ccr_column
from oscbench.postprocessors.openmax import OpenMaxParams
from oscbench.tuning import evaluate_grid

RUNS = 5
REQUIRED = 150
N_TRAIN, N_QUERIES, DIM, N_CLASSES = 2_000, 1_500, 128, 20
PUBLISHED_TAILS = (10, 100, 250, 500, 750, 1000)
SHORT_TAILS = (5, 10, 15, 20, 30, 40)
STAGES = ("fit", "score", "ccr")


def settings_of(tails: tuple[int, ...]) -> list[OpenMaxParams]:
    """All combinations with the published multipliers and alphas."""
    return [
        OpenMaxParams(tail_size=tail, distance_multiplier=kappa, alpha=alpha)
        for tail, kappa, alpha in itertools.product(tails, (1.5, 1.7, 2.0, 2.3), (2, 3, 5, 10))
    ]


# --- the published way -----------------------------------------------------------------------------------------------


def cosine_distances(rows: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    """(N,) cosine distances of the rows to a point."""
    return 1 - torch.nn.functional.normalize(rows, dim=1) @ torch.nn.functional.normalize(point, dim=0)


def fit_weibull(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape and scale by Newton's method from shape 1."""
    log_x = x.log()
    shape = torch.ones((), dtype=torch.float64)
    for _ in range(100):
        power = x**shape
        total, first, second = power.sum(), (power * log_x).sum(), (power * log_x * log_x).sum()
        value = first / total - log_x.mean() - 1 / shape
        step = value / (second / total - (first / total) ** 2 + 1 / shape**2)
        shape = shape - step
        if step.abs() < 1e-6:
            break
    return shape, (x**shape).mean() ** (1 / shape)


def class_distances(train: FeatureSet) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Mean of each class's correct rows, and their distances to it."""
    embedding, labels = torch.from_numpy(train.embedding).double(), torch.from_numpy(train.labels)
    correct = torch.from_numpy(train.logits).argmax(dim=1) == labels
    rows = [embedding[correct & (labels == label)] for label in range(train.n_known)]
    means = [row.mean(dim=0) for row in rows]
    return means, [cosine_distances(row, mean) for row, mean in zip(rows, means, strict=True)]


def fit_classes(distances: list[torch.Tensor], params: OpenMaxParams) -> list[tuple[torch.Tensor, ...]]:
    """Shape, scale and smallest tail value of each class."""
    models = []
    for row in distances:
        tail = torch.topk(params.distance_multiplier * row, min(params.tail_size, len(row))).values
        models.append((*fit_weibull(tail - tail.min() + 1), tail.min()))
    return models


def score_queries(
    embedding: torch.Tensor,
    logits: torch.Tensor,
    means: list[torch.Tensor],
    models: list[tuple[torch.Tensor, ...]],
    alpha: int,
) -> np.ndarray:
    """(N, K) probabilities after the revision of the top alpha logits."""
    knownness = []
    for mean, (shape, scale, smallest) in zip(means, models, strict=True):
        x = (cosine_distances(embedding, mean) - smallest + 1).clamp(min=0)
        knownness.append(torch.exp(-((x / scale) ** shape)))
    top, order = torch.topk(logits, alpha, dim=1)
    rank = torch.arange(1, alpha + 1, dtype=torch.float64)
    weight = 1 - (alpha - rank) / alpha * (1 - torch.stack(knownness, dim=1).gather(1, order))
    revised = logits.scatter(1, order, top * weight)
    unknown = (top * (1 - weight)).sum(dim=1, keepdim=True)
    return torch.softmax(torch.cat([unknown, revised], dim=1), dim=1)[:, 1:].numpy()


def ccr_by_thresholds(labels: np.ndarray, scores: np.ndarray) -> list[float]:
    """CCR at the largest FPR strictly below each target, thresholds at the scores of the negatives."""
    known = labels >= 0
    correct = scores.argmax(axis=1)[known] == labels[known]
    target = scores[known, labels[known]]
    negative = scores.max(axis=1)[labels == NEGATIVE]
    thresholds = np.unique(negative)
    ccr = np.array([(correct & (target >= threshold)).sum() / known.sum() for threshold in thresholds])
    fpr = np.array([(negative >= threshold).sum() / len(negative) for threshold in thresholds])
    below = [np.flatnonzero(fpr < bound) for bound in FPRS]
    return [float(ccr[index[0]]) if len(index) else float("nan") for index in below]


def published_way(
    train: FeatureSet, validation: FeatureSet, settings: list[OpenMaxParams]
) -> tuple[np.ndarray, dict[str, float]]:
    """The (S, 4) CCR and the seconds of each stage."""
    clock = [time.perf_counter()]
    seconds = dict.fromkeys(STAGES, 0.0)

    def lap(stage: str) -> None:
        clock.append(time.perf_counter())
        seconds[stage] += clock[-1] - clock[-2]

    embedding = torch.from_numpy(validation.embedding).double()
    logits = torch.from_numpy(validation.logits).double()
    means, distances = class_distances(train)
    table = []
    for params in settings:
        models = fit_classes(distances, params)
        lap("fit")
        scores = score_queries(embedding, logits, means, models, params.alpha)
        lap("score")
        table.append(ccr_by_thresholds(validation.labels, scores))
        lap("ccr")
    return np.array(table), seconds


# --- both sides ------------------------------------------------------------------------------------------------------


def one_pass(train: FeatureSet, validation: FeatureSet, settings: list[OpenMaxParams]) -> tuple[np.ndarray, float]:
    """The same table by ``evaluate_grid`` and its seconds."""
    started = time.perf_counter()
    table = evaluate_grid("openmax", train, validation, settings, rule="published", score_kind="probability")
    seconds = time.perf_counter() - started
    return table[[ccr_column(fpr) for fpr in FPRS]].to_numpy(), seconds


def compare(name: str, train: FeatureSet, validation: FeatureSet, settings: list[OpenMaxParams]) -> dict[str, Any]:
    """Alternating runs of both sides; medians, the factor and how far the tables differ."""
    one_pass(train, validation, settings)  # loads the compiled kernels
    slow, fast = [], []
    for _ in range(RUNS):
        come_to_rest()
        theirs, stages = published_way(train, validation, settings)
        slow.append(stages)
        come_to_rest()
        ours, seconds = one_pass(train, validation, settings)
        fast.append(seconds)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    n_known = np.count_nonzero(validation.labels >= 0)
    slow_seconds = statistics.median(sum(stages.values()) for stages in slow)
    shared_fits = statistics.median(s["fit"] / 4 + s["score"] + s["ccr"] for s in slow)
    ours_seconds = statistics.median(fast)
    return {
        "settings": name,
        "published way [s]": f"{slow_seconds:.2f}",
        **{f"{stage} [s]": f"{statistics.median(s[stage] for s in slow):.2f}" for stage in STAGES},
        "one pass [s]": f"{ours_seconds:.4f}",
        "times faster": f"{slow_seconds / ours_seconds:.0f}",
        "if alphas shared fits": f"{shared_fits / ours_seconds:.0f}",
        "cells that differ": f"{np.count_nonzero(np.abs(ours - theirs) > 0)} of {ours.size}",
        "by samples": f"{np.nanmax(np.abs(ours - theirs)) * n_known:.0f}",
    }


def main() -> None:
    """Runs the published grid, and one whose tails are all shorter than the classes."""
    torch.set_num_threads(2)
    train, validation = tree_features(N_TRAIN, N_QUERIES, DIM, N_CLASSES)
    rows = [
        compare("published tails", train, validation, settings_of(PUBLISHED_TAILS)),
        compare("short tails", train, validation, settings_of(SHORT_TAILS)),
    ]
    correct = np.bincount(train.labels[train.correct_mask()], minlength=N_CLASSES)
    known = validation.labels >= 0
    facts = [
        f"`python benchmarks/openmax_grid.py`, {circumstances('torch', 'numba', 'numpy')}.",
        "",
        f"{len(train):,} training rows, {len(validation):,} queries, {DIM} features, {N_CLASSES} classes; closed-set "
        f"accuracy {train.correct_mask().mean():.3f} (training), {validation.correct_mask()[known].mean():.3f} "
        f"(queries). Medians of {RUNS} alternating runs of fit + scores + CCR; bar: at least {REQUIRED} times.",
        "",
        f"Classes have {correct.min()} to {correct.max()} correct rows, so published tails above that are clipped and "
        f"five of the six tail sizes are one; the one pass computes equal settings once (tails {SHORT_TAILS} are "
        "never clipped). *if alphas shared fits*: the factor if the slow side fitted once for its four alphas.",
    ]
    publish("openmax_grid", "\n".join(["# OpenMax: 96 settings in one pass", "", *facts, "", markdown(rows)]), rows)


if __name__ == "__main__":
    main()
