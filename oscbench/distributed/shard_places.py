"""Where shards run: what each asks of Ray, by what the cluster has, and a placement group that is there or refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from oscbench.distributed.cluster import resources
from oscbench.errors import OscbenchError, UsageError

Bundle = dict[str, float]
"""Resources of one shard, by Ray's names."""


def plan_bundles(n_shards: int | None, cpus_per_shard: float | None, device: str | None) -> list[Bundle]:
    """What each shard asks of Ray; raises where the cluster could never give it."""
    if n_shards is not None and n_shards < 1:
        raise UsageError(f"n_shards must be >= 1, got {n_shards}")
    if cpus_per_shard is not None and not cpus_per_shard > 0:
        raise UsageError(f"cpus_per_shard must be > 0, got {cpus_per_shard}")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = list(ray._private.state.available_resources_per_node().values())
    may_use_gpus = device != "cpu" and any(node.get("GPU") for node in nodes)
    n_on_gpus = (n_shards or sum(int(node.get("GPU", 0)) for node in free)) if may_use_gpus else 0
    if n_on_gpus:
        bundles: list[Bundle] = [{"GPU": 1.0, "CPU": cpus_per_shard or 1.0}] * n_on_gpus
    elif n_shards is None and cpus_per_shard is None:
        return [{"CPU": float(math.floor(node["CPU"]))} for node in free if node.get("CPU", 0) >= 1] or [{"CPU": 1.0}]
    else:
        cpus = [node.get("CPU", 0.0) for node in nodes]
        share = cpus_per_shard or _largest_share(cpus, n_shards or 1)
        bundles = [{"CPU": share}] * (n_shards or max(1, sum(int(node / share) for node in cpus)))
    _refuse_too_many(bundles, nodes)
    return bundles


def _largest_share(cpus: Sequence[float], n_shards: int) -> float:
    """The most CPUs that each of ``n_shards`` can have on nodes with so many; whole ones where there are enough.

    >>> _largest_share([4, 2], 2), _largest_share([2], 3)
    (2.0, 0.6666)
    """
    candidates = sorted((node / parts for node in cpus if node for parts in range(1, n_shards + 1)), reverse=True)
    fitting = (share for share in candidates if sum(int(node / share + 1e-9) for node in cpus) >= n_shards)
    share = next(fitting, 1.0)
    return float(math.floor(share)) if share >= 1 else math.floor(share * 10_000) / 10_000  # Ray counts to 1e-4


def _refuse_too_many(bundles: Sequence[Bundle], nodes: Sequence[dict[str, float]]) -> None:
    bundle = bundles[0]
    fitting = sum(min(int(node.get(name, 0.0) / need) for name, need in bundle.items()) for node in nodes)
    if len(bundles) > fitting:
        raise UsageError(
            f"{_describe(bundles)} do not fit into {resources()}, at most {fitting} such shards do; "
            "ask for fewer shards or less for each, or join a larger cluster"
        )


def reserve(bundles: list[Bundle], seconds: float) -> Any:
    """A placement group over as many nodes as possible, ready; raises when others hold the resources."""
    group = placement_group(bundles, strategy="SPREAD")
    if not group.wait(seconds):
        remove_placement_group(group)
        free = ray.available_resources()
        raise OscbenchError(
            f"{_describe(bundles)} found no room within {seconds:.0f} s: free are {free.get('CPU', 0):g} CPUs and "
            f"{free.get('GPU', 0):g} GPUs of {resources()} (`ray status` shows who holds the rest)"
        )
    return group


def _describe(bundles: Sequence[Bundle]) -> str:
    each = " and ".join(f"{need:g} {name}" for name, need in bundles[0].items())
    return f"{len(bundles)} shard{'s' if len(bundles) > 1 else ''} with {each} each"
