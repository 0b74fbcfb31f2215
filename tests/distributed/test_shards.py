"""Sharded actors: the answers of the local source for any number of shards, also when shards die on the way."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.util import placement_group_table

from oscbench.distributed import shards
from oscbench.distributed.shards import ShardedSource, ShardWork, _largest_share, open_source
from oscbench.errors import OscbenchError, UsageError
from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.source import LocalSource, NeighborSource
from oscbench.postprocessors.evm import EvmParams

pytestmark = pytest.mark.ray
needs_ray = pytest.mark.usefixtures("ray_session")

Answer = tuple[np.ndarray, np.ndarray]


def rows_along_rays(n: int, dim: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows around one direction per class, so that classes overlap; labels in mixed order, unequally many."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n) * rng.integers(0, 2, n)
    means = np.random.default_rng(99).normal(size=(n_classes, dim))
    return (means[labels] + rng.normal(size=(n, dim))).astype(np.float32), labels


def make_gallery(n: int, dim: int = 12, n_classes: int = 9) -> Gallery:
    """A gallery with an empty class, and with equal rows in different classes, so that scores tie across shards."""
    rows, labels = rows_along_rays(n, dim, n_classes, seed=1)
    rows[-(n // 8) :] = rows[: n // 8]
    return Gallery.build(rows, labels, n_classes + 1)


def make_queries(n: int, dim: int = 12) -> np.ndarray:
    return rows_along_rays(n, dim, 9, seed=2)[0]


def grid(tail_sizes: Sequence[int], multipliers: Sequence[float]) -> list[EvmParams]:
    return [EvmParams(tail_size=t, distance_multiplier=k) for t in tail_sizes for k in multipliers]


# The second is longer than what some classes have, so that it is clipped there.
GALLERY, QUERIES, SETTINGS = make_gallery(1500), make_queries(300), grid((5, 1200), (0.3, 1.0))


def all_answers(source: NeighborSource) -> list[np.ndarray]:
    """Tails, and class and score in both score kinds."""
    answers = [source.tails(300)]
    for kind in ("log", "probability"):
        answers += source.best(QUERIES, SETTINGS, score_kind=kind)
    return answers


def assert_same_bits(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


ENGINES: dict[str, dict[str, Any]] = {
    "compiled": {},
    "torch": {"device": "cpu", "compiled": False},  # what a GPU runs
    "float64": {"precision": "float64"},
}
# A single shard is compared with the local source in the test of the memory budget, too.
QUICK = {("compiled", 2), ("compiled", 3), ("compiled", 7), ("torch", 2), ("float64", 3)}


@needs_ray
@pytest.mark.parametrize(
    ("engine", "n_shards"),
    [
        pytest.param(engine, n, marks=() if (engine, n) in QUICK else pytest.mark.slow)
        for engine in ENGINES
        for n in (1, 2, 3, 7)
    ],
)
def test_any_number_of_shards_answers_like_the_local_source(engine: str, n_shards: int) -> None:
    local = LocalSource(GALLERY, **ENGINES[engine])
    opened = open_source if n_shards > 1 else ShardedSource
    with closing(opened(GALLERY, n_shards, **ENGINES[engine])) as source:
        assert isinstance(source, ShardedSource)
        assert len(source.work()) == len(source.ranges) == n_shards
        assert_same_bits(all_answers(source), all_answers(local))
        assert source.counts == local.counts
        assert source.counts.clipped > 0


@pytest.fixture(scope="module")
def pair(ray_session: None) -> Iterator[ShardedSource]:
    """Two shards on one of the two CPUs, with enough to do that they can be met at it, tails included."""
    with closing(ShardedSource(make_gallery(8000), 2, cpus_per_shard=0.5, keep_tails=False, prune=False)) as source:
        yield source


@needs_ray
def test_progress_runs_over_all_shards_up_to_the_end(pair: ShardedSource) -> None:
    seen: list[tuple[int, int]] = []
    pair.best(make_queries(6000), grid((5, 200), (0.2, 0.4, 0.6)), progress=lambda *step: seen.append(step))
    assert seen[-1] == (1000, 1000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@needs_ray
def test_bad_questions_are_refused_before_the_shards_begin(pair: ShardedSource) -> None:
    before = pair.work()
    bad = QUERIES.copy()
    bad[7] = np.nan
    with pytest.raises(ValueError, match=r"^query features: row 7 holds NaN or infinity"):
        pair.best(bad, SETTINGS)
    with pytest.raises(ValueError, match="are 12 wide"):
        pair.best(QUERIES[:, :5], SETTINGS)
    with pytest.raises(UsageError, match="cover_threshold < 1; use a local source"):
        pair.best(QUERIES, [EvmParams(cover_threshold=0.5)])
    with pytest.raises(ValueError, match="at least one setting"):
        pair.best(QUERIES, [])
    assert pair.work() == before


@needs_ray
def test_the_memory_budget_holds_for_each_shard() -> None:
    budget = LocalSource(GALLERY, threads=1).plan(len(QUERIES), SETTINGS).needed * 9 // 10
    assert LocalSource(GALLERY, threads=1, memory_budget=budget).plan(len(QUERIES), SETTINGS).keep_tails is False
    local = LocalSource(GALLERY).best(QUERIES, SETTINGS)
    with closing(ShardedSource(GALLERY, 1, cpus_per_shard=0.5, memory_budget=budget)) as source:
        assert_same_bits(source.best(QUERIES, SETTINGS), local)
        many = grid(range(1, 300), (0.5,))
        with pytest.raises(ValueError, match=r"^1500 training rows, 200000 queries .* need at least \d+ MiB"):
            source.best(np.ones((200_000, 12), np.float32), many)


def kill_after(seconds: float, pid: int) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def ask_while_a_shard_is_killed(
    source: ShardedSource, ask: Callable[[], Answer], phase: str, seed: int
) -> tuple[list[Answer], int, list[ShardWork], list[ShardWork]]:
    """Kills a random shard at a random moment of a phase; the answers, the victim and all work before and after.

    A kill may come too late, the machine being faster than when it was measured: a second question then meets it.
    """
    rng = random.Random(seed)
    ask()  # loads the compiled code
    idle = source.work()
    ask()
    before = source.work()
    victim = rng.randrange(len(before))
    spent = {p: before[victim].seconds[p] - idle[victim].seconds[p] for p in ("fit", "score")}
    moment = rng.uniform(0, spent[phase]) + (spent["fit"] if phase == "score" else 0.0)
    print(f"seed {seed}: shard {victim} is killed after {moment:.3f} s of {spent}")
    timer = kill_after(moment, before[victim].pid)
    answers = [ask()]
    timer.join()
    if not source.replaced:
        print("it had answered already")
        answers.append(ask())
    return answers, victim, before, source.work()


def assert_only_the_victim_computed_again(
    source: ShardedSource, victim: int, questions: int, before: list[ShardWork], after: list[ShardWork]
) -> None:
    assert source.replaced == [victim]
    for shard, (first, last) in enumerate(source.ranges):
        fitted = after[shard].fitted_rows - (0 if shard == victim else before[shard].fitted_rows)
        assert fitted == (last - first) * (1 if shard == victim else questions)
        assert (after[shard].pid != before[shard].pid) == (shard == victim)


@needs_ray
@pytest.mark.parametrize("phase", ["fit", "score"])
def test_a_killed_shard_is_rebuilt_and_nothing_else_computed_again(pair: ShardedSource, phase: str) -> None:
    queries, settings = make_queries(8000), grid((10, 100, 500), (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
    expected = LocalSource(pair.gallery).best(queries, settings)
    pair.replaced.clear()
    answers, victim, before, after = ask_while_a_shard_is_killed(
        pair, lambda: pair.best(queries, settings), phase, seed=time.time_ns() % 10**6
    )
    for answer in answers:
        assert_same_bits(answer, expected)
    assert_only_the_victim_computed_again(pair, victim, len(answers), before, after)


@needs_ray
def test_rows_without_room_for_a_new_actor_go_to_one_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(ShardedSource(GALLERY, 3, cpus_per_shard=0.2)) as source:
        monkeypatch.setattr(ShardedSource, "_is_up", lambda *_: False)
        expected = LocalSource(GALLERY).best(QUERIES, SETTINGS)
        os.kill(source.work()[1].pid, signal.SIGKILL)
        assert_same_bits(source.best(QUERIES, SETTINGS), expected)
        assert len(source.work()) == 2
        os.kill(source.work()[0].pid, signal.SIGKILL)  # whoever is left, it may by now hold two ranges
        assert_same_bits(source.best(QUERIES, SETTINGS), expected)
        (last,) = source.work()
        os.kill(last.pid, signal.SIGKILL)
        with pytest.raises(OscbenchError, match=r"all shards were lost .* 2 CPUs"):
            source.best(QUERIES, SETTINGS)


@needs_ray
def test_a_fault_that_comes_back_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_LOSSES", 0)
    with closing(ShardedSource(GALLERY, 1, cpus_per_shard=0.5)) as source:
        os.kill(source.work()[0].pid, signal.SIGKILL)
        with pytest.raises(OscbenchError, match=r"^shard 0 \(rows 0\.\.1500\) was lost.*memory_budget") as caught:
            source.best(QUERIES, SETTINGS)
    assert "\n" not in str(caught.value)


def soon(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes to hold."""
    end = time.monotonic() + 300
    while time.monotonic() < end and not condition():
        time.sleep(0.1)
    return condition()


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@needs_ray
def test_too_large_requests_are_refused_and_close_leaves_nothing_behind(pair: ShardedSource) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"^3 shards with 1 CPU each do not fit into 2 CPUs and 0 GPUs on 1 node, at"):
        ShardedSource(GALLERY, 3, cpus_per_shard=1)
    with pytest.raises(UsageError, match=r"1 shard with 4 CPU each do not fit"):
        ShardedSource(GALLERY, 1, cpus_per_shard=4)
    assert time.monotonic() - started < 60
    assert soon(lambda: free_cpus() == pytest.approx(1))  # the pair holds the other
    source = ShardedSource(GALLERY, 1, cpus_per_shard=1)
    with pytest.raises(OscbenchError, match=r"2 shards with 0.5 CPU each found no room within 1 s: free are 0 CPUs"):
        ShardedSource(GALLERY, 2, cpus_per_shard=0.5, start_seconds=1)
    pids = [work.pid for work in source.work()]
    source.close()
    assert soon(lambda: not any(is_running(pid) for pid in pids))
    assert soon(lambda: free_cpus() == pytest.approx(1))
    assert placement_group_table(source._group)["state"] == "REMOVED"
    source.close()
    with pytest.raises(OscbenchError, match="closed"):
        source.tails(3)


@needs_ray
def test_a_single_share_is_this_process() -> None:
    assert isinstance(open_source(GALLERY), LocalSource)
    assert isinstance(open_source(GALLERY, 1), LocalSource)
    with pytest.raises(UsageError, match="n_shards must be >= 1, got 0"):
        open_source(GALLERY, 0)
    with pytest.raises(UsageError, match="cpus_per_shard must be > 0, got -1"):
        open_source(GALLERY, cpus_per_shard=-1)


@pytest.mark.parametrize(
    ("cpus", "n", "expected"),
    [([4, 2], 2, 2.0), ([4, 2], 3, 2.0), ([8], 3, 2.0), ([2], 3, 0.6666), ([2], 7, 0.2857), ([1, 1], 4, 0.5)],
)
def test_the_largest_share_that_fits(cpus: list[float], n: int, expected: float) -> None:
    assert _largest_share(cpus, n) == expected
    assert sum(int(node / expected) for node in cpus) >= n


@needs_ray
@pytest.mark.slow
def test_a_shard_killed_in_a_job_of_protocol_2_size_changes_nothing() -> None:
    rows, labels = rows_along_rays(28_895, 30, 30, seed=3)
    gallery = Gallery.build(rows, labels, 30)
    queries = rows_along_rays(15_173, 30, 30, seed=4)[0]
    settings = grid((10, 25, 50, 75, 100, 200, 300, 500, 750, 1000), (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0))
    expected = LocalSource(gallery).best(queries, settings)
    for phase in ("fit", "score"):
        with closing(ShardedSource(gallery, 2, cpus_per_shard=0.5, keep_tails=False)) as source:  # beside the pair
            answers, victim, before, after = ask_while_a_shard_is_killed(
                source,
                functools.partial(source.best, queries, settings),
                phase,
                seed=time.time_ns() % 10**6,
            )
            for answer in answers:
                assert_same_bits(answer, expected)
            assert_only_the_victim_computed_again(source, victim, len(answers), before, after)


TWO_NODES = """
import json, sys, threading, time
import numpy as np, ray
from contextlib import closing
from ray.cluster_utils import Cluster
from oscbench.distributed.shards import ShardedSource, open_source
from oscbench.numerics.evm.source import LocalSource
from test_shards import grid, make_gallery, make_queries

memory = {"object_store_memory": 100_000_000}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory,
    "_system_config": {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
                       "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}})
nodes = [cluster.add_node(num_cpus=1, num_gpus=1, **memory) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
cluster.wait_for_nodes()
gallery, queries, settings = make_gallery(6000), make_queries(8000), grid((10, 100, 1000), (0.2, 0.4, 0.6, 0.8))
expected = LocalSource(gallery).best(queries, settings)
found = {}

# One shard per GPU; the device is a CPU by another name, so that the code for GPUs runs without one.
with closing(open_source(gallery, device="cpu:0")) as source:
    found["gpu nodes"] = len({w.node for w in source.work()})
    found["gpus left"] = ray.available_resources().get("GPU", 0)
    torch_local = LocalSource(gallery, compiled=False)
    answers = zip(source.best(queries[:500], settings[:2]), torch_local.best(queries[:500], settings[:2]))
    found["gpu equal"] = all(np.array_equal(a, b) for a, b in answers)
while ray.available_resources().get("CPU", 0) < 2:
    time.sleep(0.1)

with closing(open_source(gallery, device="cpu", keep_tails=False)) as source:
    found["type"] = type(source).__name__
    started = time.monotonic()
    first = source.best(queries, settings)
    seconds = time.monotonic() - started
    work = source.work()
    found["nodes"] = len({w.node for w in work})
    lost = next(node for node in nodes if node.node_id == work[1].node)
    moment = np.random.default_rng().uniform(0, seconds)
    print(f"node lost after {moment:.2f} s of {seconds:.2f} s", file=sys.stderr)
    timer = threading.Timer(moment, cluster.remove_node, (lost,), {"allow_graceful": False})
    timer.start()
    second = source.best(queries, settings)
    timer.join()
    third = source.best(queries, settings)
    found["equal"] = [all(np.array_equal(a, b) for a, b in zip(answer, expected)) for answer in (first, second, third)]
    found["replaced"], found["left"] = source.replaced, len(source.work())
ray.shutdown()
cluster.shutdown()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_shards_spread_over_nodes_and_survive_the_loss_of_one() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", TWO_NODES], capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    print(done.stderr[-3000:])
    assert done.returncode == 0
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found.pop("gpu nodes"), found.pop("gpus left"), found.pop("gpu equal")) == (2, 0, True)
    assert found == {"type": "ShardedSource", "nodes": 2, "equal": [True] * 3, "replaced": [1], "left": 1}
