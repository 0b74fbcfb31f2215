"""Trains on a Ray of three nodes and removes one that has a worker (IMAGES FOLDER EPOCHS); for a test of its own."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import ray
from processes import descendants, title
from ray.cluster_utils import Cluster
from train_driver import make_job

from oscbench.distributed.train import WorkerShare, train_on_ray
from oscbench.training.epoch_metrics import EPOCHS, read_epochs

SMALL = {"object_store_memory": 100_000_000}
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


def has_train_worker(node: object) -> bool:
    """Whether one of the node's processes is a training worker."""
    raylet = node.all_processes["raylet"][0].process.pid
    return any("RayTrainWorker" in title(pid) for pid in descendants(raylet))


def main() -> None:
    """Two workers on three nodes of one CPU; a node is lost after the second epoch."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    images, folder, epochs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH, **SMALL}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()

    def lose_a_node() -> None:
        while len(read_epochs(folder / EPOCHS)) < 2:
            time.sleep(0.02)
        lost = next(node for node in nodes if has_train_worker(node))
        cluster.remove_node(lost, allow_graceful=False)
        print("lost a node", flush=True)  # the test looks for it

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    train_on_ray(make_job(images, folder, workers=2, epochs=epochs), WorkerShare())
    thread.join(300)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
