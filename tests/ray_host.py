"""A small Ray cluster in a process of its own, for tests that kill parts of it.

Run as a script it starts a head and one worker node, prints the address, and takes commands on stdin: ``drop`` kills
the worker node without warning, ``add`` starts another, end of input ends it all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self


def main() -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100_000_000}
    impatient = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 500,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(
        initialize_head=True, head_node_args={"include_dashboard": False, "_system_config": impatient, **small}
    )
    worker = cluster.add_node(**small)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "drop":
            cluster.remove_node(worker, allow_graceful=False)
        elif line.strip() == "add":
            worker = cluster.add_node(**small)
        print("ok", flush=True)
    cluster.shutdown()


class RayHost:
    """Starts the script and talks to it."""

    def __init__(self, **environment: str) -> None:
        self.environment = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **environment}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError("the test cluster did not start")
        return self

    def tell(self, command: str) -> None:
        """Has the script do something and waits until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(300)
        except subprocess.TimeoutExpired:
            self._process.kill()


if __name__ == "__main__":
    main()
