"""Starting Ray and joining it: whatever does not answer is named within seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from oscbench.distributed import cluster
from oscbench.distributed.runner import RayRunner
from oscbench.errors import OscbenchError, UsageError
from oscbench.resources import WorkerAsk, WorkerShare


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", r"no Ray cluster answers at 127.0.0.1:1 .*refused.*ray start --head"),
        ("nohost.invalid:6379", r"no Ray cluster answers at nohost.invalid:6379"),
        ("ray://127.0.0.1:1", r"no Ray cluster answers at ray://127.0.0.1:1"),
    ],
)
def test_an_address_without_a_cluster_is_named(address: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(OscbenchError, match=words):
        cluster._join(address)
    assert time.monotonic() - started < 100


@pytest.mark.parametrize(
    ("nodes", "trials", "workers", "ask", "share", "at_once"),
    [
        ([(2, 0)], 6, 1, WorkerAsk(), WorkerShare(cpus=1), 2),
        ([(16, 0)], 6, 1, WorkerAsk(), WorkerShare(cpus=2), 6),
        ([(2, 0)], 1, 1, WorkerAsk(), WorkerShare(cpus=2), 1),
        ([(32, 4)], 6, 1, WorkerAsk(), WorkerShare(cpus=8, gpus=1.0), 4),
        ([(32, 4)], 6, 2, WorkerAsk(), WorkerShare(cpus=8, gpus=1.0), 2),
        ([(32, 4)], 6, 1, WorkerAsk(gpus=0.5), WorkerShare(cpus=5, gpus=0.5), 6),
        ([(4, 0)], 6, 2, WorkerAsk(cpus=1), WorkerShare(cpus=1), 2),
        ([(2, 0)], 6, 2, WorkerAsk(), WorkerShare(cpus=1), 1),
        ([(8, 0), (8, 0)], 1, 1, WorkerAsk(), WorkerShare(cpus=8), 1),  # no worker spans nodes
        ([(8, 1), (8, 1), (8, 0)], 6, 1, WorkerAsk(), WorkerShare(cpus=8, gpus=1.0), 2),
    ],
)
def test_trials_share_the_nodes_so_that_none_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[tuple[int, int]],
    trials: int,
    workers: int,
    ask: WorkerAsk,
    share: WorkerShare,
    at_once: int,
) -> None:
    found = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
    total = {"CPU": sum(cpus for cpus, _ in nodes), "GPU": sum(gpus for _, gpus in nodes)}
    monkeypatch.setattr(cluster.ray, "nodes", lambda: found)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: total)
    assert RayRunner().trial_share(trials, workers, ask) == (share, at_once)


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'head' is not host:port"):
        cluster._join("head")


def test_a_port_that_is_not_ray_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OscbenchError, match=f"{address} accepts connections but does not answer as a Ray"):
            cluster._join(address)


@pytest.mark.ray
def test_a_running_cluster_answers(ray_session: None) -> None:
    import ray

    assert cluster._answers(ray.get_runtime_context().gcs_address)


def test_workers_of_a_ray_started_here_have_the_priority_of_their_driver() -> None:
    program = """
import os, ray
from oscbench.distributed.cluster import connect
with connect():
    print(ray.get(ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, 0)).remote()))
"""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_worker_niceness"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == os.getpriority(os.PRIO_PROCESS, 0)
