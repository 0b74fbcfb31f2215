"""Feature extraction as Ray tasks over contiguous shards of a split."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from oscbench.distributed.cluster import require, resources
from oscbench.errors import OscbenchError
from oscbench.labels import IntArray, ProgressFn
from oscbench.progress import collected_log, log_once
from oscbench.resources import WorkerShare
from oscbench.training.extract import ExtractionJob, Rows, extract_rows

ROWS_PER_TASK = 16_384
"""Bound on what one task returns: 150 MB for ResNet-50."""


def extract_on_ray(job: ExtractionJob, share: WorkerShare, progress: ProgressFn | None = None) -> Rows:
    """Outputs of every sample of the split, in id order, for any number of workers; lost tasks run again.

    Args:
        job: Network and images; files must be visible to all nodes.
        share: Resources per task.
        progress: Told the number of samples done.
    """
    have = resources()
    require(workers=1, cpus_per_worker=share.cpus, gpus_per_worker=share.gpus)
    slots = int(have.gpus / share.gpus) if share.gpus else have.cpus // share.cpus
    n = len(job.split)
    shards = np.array_split(np.arange(n), min(n, max(slots, math.ceil(n / ROWS_PER_TASK))))
    # Wherever there is room: within a trial of a search, tasks would be kept to what Tune has set aside for the trial.
    options = {"max_retries": 3, "scheduling_strategy": "DEFAULT"}
    task = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, **options)(_task)
    reference = ray.put(dataclasses.replace(job, threads=share.cpus))
    running = {task.remote(reference, shard): number for number, shard in enumerate(shards)}
    parts: dict[int, Rows] = {}
    warned: set[str] = set()
    while running:
        done, _ = ray.wait(list(running), num_returns=1)
        parts[running.pop(done[0])], warnings = _result(done[0])
        log_once(warnings, warned)
        if progress is not None:
            progress(sum(len(part.ids) for part in parts.values()), n)
    rows = Rows.joined([parts[number] for number in sorted(parts)])
    if not np.array_equal(rows.ids, np.arange(n)):
        raise AssertionError("extraction must give every sample exactly once, in id order")
    return rows


def _task(job: ExtractionJob, ids: IntArray) -> tuple[Rows, list[str]]:
    """The rows, and what the package warned of meanwhile."""
    import torch

    with collected_log(logging.WARNING) as warnings:
        rows = extract_rows(job, ids, torch.device("cuda" if ray.get_gpu_ids() else "cpu"))
    return rows, warnings


def _result(reference: Any) -> tuple[Rows, list[str]]:
    try:
        found: tuple[Rows, list[str]] = ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, OscbenchError):
            raise cause from error
        raise OscbenchError(f"extraction failed: {type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise OscbenchError(f"extraction lost a worker more than three times ({type(error).__name__})") from error
    return found
