"""Starting or joining Ray, and asking what it has before anything waits for what it has not."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled

from oscbench.errors import OscbenchError, UsageError
from oscbench.resources import Resources

CONNECT_SECONDS = 4.0
"""How long a head node may take to accept a connection."""
ANSWER_SECONDS = 15.0
"""How long it may take to answer as Ray; Ray itself would wait for minutes."""
_JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@contextlib.contextmanager
def connect(address: str | None = None, *, dashboard: bool = False) -> Iterator[Resources]:
    """Ray for the length of a ``with`` block: started on this machine, joined, or the one already running here.

    Args:
        address: ``host:port`` or ``ray://host:port`` of a cluster, ``auto`` for one on this machine; ``None`` starts
            Ray here and ends it afterwards.
        dashboard: Whether a Ray started here serves its dashboard.
    """
    if ray.is_initialized():  # a notebook or a test owns the connection
        yield resources()
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user asks for it
    if address is None:
        # At Ray's niceness of 15 a worker waits for whatever else runs, and its threads for the one that waits.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(address="local", include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    else:
        _join(address)
    try:
        yield resources()
    finally:
        ray.shutdown()


def _join(address: str) -> None:
    way_out = "start one with `ray start --head`, or leave --address out to start Ray here"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise UsageError(f"--address {address!r} is not host:port, ray://host:port or auto")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise OscbenchError(f"no Ray cluster answers at {address} ({error}); {way_out}") from error
        if not address.startswith("ray://") and not _answers(f"{host}:{port}"):
            raise OscbenchError(f"{address} accepts connections but does not answer as a Ray cluster; {way_out}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise OscbenchError(f"cannot join the Ray cluster at {address} ({error}); {way_out}") from error


def _answers(address: str) -> bool:
    """Joins in a process of its own first: Ray's client neither takes a time limit nor can it be interrupted."""
    command = [sys.executable, "-c", _JOIN, address]
    try:
        return subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def resources() -> Resources:
    """What the connected cluster has."""
    total = ray.cluster_resources()
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return Resources(cpus=int(total.get("CPU", 0)), gpus=int(total.get("GPU", 0)), nodes=nodes)


def object_store_bytes() -> int:
    """Size of the object store of the node that this process runs on."""
    here = ray.get_runtime_context().get_node_id()
    sizes = {node["NodeID"]: node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"]}
    return int(sizes.get(here, max(sizes.values(), default=0)))


def require(*, workers: int, cpus_per_worker: int, gpus_per_worker: float) -> None:
    """Refuses a request that could never be met, with what there is; otherwise Ray would wait for ever.

    A worker cannot span nodes, so what counts is how many of them fit into each node.
    """
    fitting = fitting_workers(cpus_per_worker, gpus_per_worker)
    if workers <= fitting:
        return
    each = f"{cpus_per_worker} CPU" + (f" and {gpus_per_worker:g} GPU" if gpus_per_worker else "")
    way_out = f"use --num-workers {fitting}" if fitting else "ask for less per worker"
    have = resources()
    raise UsageError(f"{workers} workers with {each} each do not fit into {have}; {way_out}, or join another cluster")


def fitting_workers(cpus_per_worker: int, gpus_per_worker: float) -> int:
    """How many workers of this size fit into the nodes of the cluster."""
    fitting = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            by_cpu = int(has.get("CPU", 0)) // cpus_per_worker
            fitting += min(by_cpu, int(has.get("GPU", 0) / gpus_per_worker)) if gpus_per_worker else by_cpu
    return fitting


def fair_cpus(workers: int, gpus_per_worker: float) -> int:
    """The largest number of CPUs that each of so many workers can have; 1 where not even that fits."""
    most = resources().cpus // workers
    return next((cpus for cpus in range(most, 1, -1) if fitting_workers(cpus, gpus_per_worker) >= workers), 1)


@dataclass(frozen=True)
class Dashboard:
    """Where the cluster's own page is, and how to get in."""

    url: str
    entry: str


def dashboard() -> Dashboard | None:
    """The dashboard of the connected cluster; ``None`` when it has none."""
    url = ray._private.worker.get_dashboard_url()
    if not url:
        return None
    secured = is_token_auth_enabled()
    entry = "log in with the token that `ray get-auth-token` prints" if secured else "no login needed"
    return Dashboard(f"http://{url}", entry)
