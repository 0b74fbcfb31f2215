"""EVM's neighbour source on a Ray cluster: one actor per GPU or share of CPUs, each owning a range of training rows.

The training rows go into the object store once; every actor reads them there, without a copy of its own where a node
has several. An actor keeps the tails and fits of its rows and answers a batch of queries with its best rows; the answer
of all is the maximum (``numerics.evm.shard.combine``), the same to the last bit for any number of shards.

An actor that dies, with its process or its node, is replaced and only its rows are computed again. Where the cluster
has no room for a successor, an actor that is left takes over the rows. Ray's own restarts do not serve: an actor whose
place went with its node would wait for that place for ever, and nobody would hear of losses that come back.

Memory of one actor: the rows in float32 (beside the shared float64), its own rows' tails and fits, the answer to one
call. ``memory_budget`` bounds the sum for each actor; settings then take several passes, or tails are computed again.
The caller holds one answer per shard, 16 bytes for each query and setting, until they are combined.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from oscbench.distributed.cluster import resources
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import FloatArray, ProgressFn
from oscbench.numerics.evm.fits import FitCounts, Grid, InclusionKind, TailSetting
from oscbench.numerics.evm.gallery import Gallery, check_width, prepare_rows
from oscbench.numerics.evm.shard import Winners, combine, row_ranges
from oscbench.numerics.evm.source import LocalSource, Meter
from oscbench.numerics.sources import AnySource, local_source
from oscbench.numerics.topk import QUERY_TILE, ProductRows, counting, merge_ranked, products_of

START_SECONDS: Final = 60.0
"""How long Ray may take to find room for the shards and to start their processes."""
NO_ROOM_SECONDS: Final = 10.0
"""How long the place of a lost actor may be without a node before another actor takes over its rows."""
MAX_LOSSES: Final = 5
"""So many actors may die during one question; more point to a fault that comes back, such as too little memory."""
POLL_SECONDS: Final = 0.25

Bundle = dict[str, float]
"""Resources of one shard, by Ray's names."""

Rows = tuple[int, int]
T = TypeVar("T", bound=np.generic)

_LOST: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
)


def open_source(
    gallery: Gallery | ProductRows,
    n_shards: int | None = None,
    *,
    cpus_per_shard: float | None = None,
    **options: Any,
) -> AnySource:
    """A source for the gallery's rows: sharded where the cluster gives more than one share, else this process.

    Args:
        gallery: The training rows.
        n_shards: Number of shards; default: one per free GPU of the cluster, without GPUs one per node.
        cpus_per_shard: CPUs of each shard; default: as many as there are for each.
        **options: ``memory_budget`` and the options of ``RowShard``.
    """
    bundles = plan_bundles(n_shards, cpus_per_shard, options.get("device"))
    if len(bundles) > 1 or any(bundle.get("GPU") for bundle in bundles):
        return ShardedSource(gallery, n_shards, cpus_per_shard=cpus_per_shard, **options)
    return local_source(gallery, **options)


@dataclass(frozen=True)
class ShardWork:
    """What one actor process has done since it started.

    Attributes:
        pid: Its process.
        node: Ray's id of its node.
        fitted_rows: Rows whose tails were found and fitted, counted again for each question.
        scored_pairs: Pairs of query and row that were scored.
        done: Thousandths of the current question.
        seconds: By phase: ``transfer`` (features out of the object store), ``fit`` (tails and fits), ``score``.
    """

    pid: int
    node: str
    fitted_rows: int = 0
    scored_pairs: int = 0
    done: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("transfer", "fit", "score"), 0.0))


class _TimedSource(LocalSource):
    """A local source that adds up the seconds of its fits."""

    fit_seconds = 0.0

    def fit(self, settings: Sequence[TailSetting], meter: Meter | None = None) -> None:
        started = time.perf_counter()
        super().fit(settings, meter)
        self.fit_seconds += time.perf_counter() - started


class ShardHost:
    """The actor's body: ranges of rows with their tails and fits.

    Every question carries all it needs, so that a successor can answer it from nothing. References come inside lists:
    Ray would otherwise resolve them before the call, out of reach of the clock.
    """

    def __init__(self, gallery: list[Any], options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(options["threads"])
        self._options = options
        self._sources: dict[Rows, _TimedSource] = {}
        self._work = ShardWork(os.getpid(), ray.get_runtime_context().get_node_id())
        self._gallery: Any = self._fetch(gallery)

    def work(self) -> ShardWork:
        """What this process has done; also answers while it computes."""
        return self._work

    def tails(self, rows: Rows, k: int) -> NDArray[np.float32]:
        """(rows, k) ascending distances of a range of rows to rows of other classes."""
        return self._source(rows).tails(k)

    def best(
        self, rows: Rows, queries: list[Any], settings: Sequence[TailSetting], kind: InclusionKind
    ) -> tuple[Winners, FitCounts]:
        """The best of a range of rows for every query and setting, and what happened in their fits."""
        embedding = self._fetch(queries)
        source, n_rows = self._source(rows), rows[1] - rows[0]
        started, fits_before = time.perf_counter(), source.fit_seconds
        winners = source.winners(embedding, settings, score_kind=kind, progress=self._note)
        fitting = source.fit_seconds - fits_before
        self._add("fit", fitting)
        self._add("score", time.perf_counter() - started - fitting)
        self._work = replace(
            self._work,
            fitted_rows=self._work.fitted_rows + n_rows,
            scored_pairs=self._work.scored_pairs + n_rows * len(embedding),
            done=0,
        )
        return winners, source.counts

    def ranked(self, rows: Rows, queries: list[Any], k: int, upto: int | None) -> NDArray[np.uint64]:
        """The k rows of a range with the largest products with every query."""
        found = self._fetch(queries)
        return self._timed(
            counting(rows, upto),
            found,
            partial(self._gallery.ranked, found, k, upto, rows=rows, device=self._options["device"]),
        )

    def related(self, rows: Rows, queries: list[Any], powers: Sequence[int], floor: float) -> NDArray[np.float64]:
        """The sums of relations of every query to a range of rows."""
        found, weights = self._fetch(queries)
        device = self._options["device"]
        return self._timed(
            rows, found, partial(self._gallery.related, found, weights, powers, floor, rows=rows, device=device)
        )

    def _timed(self, rows: Rows, queries: FloatArray, compute: Callable[[], NDArray[T]]) -> NDArray[T]:
        started = time.perf_counter()
        answer = compute()
        self._add("score", time.perf_counter() - started)
        pairs = self._work.scored_pairs + (rows[1] - rows[0]) * len(queries)
        self._work = replace(self._work, scored_pairs=pairs, done=0)
        return answer

    def _source(self, rows: Rows) -> _TimedSource:
        self._work = replace(self._work, done=0)
        if rows not in self._sources:
            self._sources[rows] = _TimedSource(self._gallery, rows=rows, **self._options)
        return self._sources[rows]

    def _fetch(self, reference: list[Any]) -> Any:
        started = time.perf_counter()
        value = ray.get(reference[0])
        self._add("transfer", time.perf_counter() - started)
        return value

    def _add(self, phase: str, seconds: float) -> None:
        spent = self._work.seconds
        self._work = replace(self._work, seconds=spent | {phase: spent[phase] + seconds})

    def _note(self, done: int, total: int) -> None:
        self._work = replace(self._work, done=1000 * done // total)


class ShardedSource:
    """A neighbour source whose rows are spread over actors; needs a connection to Ray.

    Args:
        gallery: The training rows.
        n_shards: Number of shards; default: one per free GPU of the cluster, without GPUs one per node.
        cpus_per_shard: CPUs, hence threads, of each shard; default: as many as there are for each.
        device: Torch device of the shards; default: ``cuda`` on GPUs, else ``cpu``.
        start_seconds: How long Ray may take to find room and start.
        **options: ``memory_budget`` in bytes for each actor, and the other options of ``RowShard``.

    Attributes:
        ranges: Rows of each shard.
        counts: What happened in the fits of the last ``best``.
        replaced: Number of the shard for every actor that was lost so far.
        start_seconds: Seconds that the actors took to start.
        put_seconds: Seconds that the training rows took into the object store.

    Raises:
        UsageError: The cluster is too small, whatever else runs on it.
        OscbenchError: Others hold what is needed.
    """

    def __init__(
        self,
        gallery: Gallery | ProductRows,
        n_shards: int | None = None,
        *,
        cpus_per_shard: float | None = None,
        device: str | None = None,
        start_seconds: float = START_SECONDS,
        **options: Any,
    ) -> None:
        bundles = plan_bundles(n_shards, cpus_per_shard, device)
        self.gallery: Any = gallery
        self.counts = FitCounts()
        self.memory_budget: int | None = options.get("memory_budget")
        self.replaced: list[int] = []
        self.ranges: list[Rows] = row_ranges(len(gallery), len(bundles))
        self._bundles: list[Bundle] = bundles[: len(self.ranges)]
        self._options = options | {"device": device or ("cuda" if "GPU" in bundles[0] else "cpu")}
        self._home = list(range(len(self.ranges)))
        self._actors: list[Any] = []
        started = time.perf_counter()
        self._group = reserve(self._bundles, start_seconds)
        reserved = time.perf_counter()
        try:
            self._gallery_ref = ray.put(gallery)
            self.put_seconds = time.perf_counter() - reserved
            self._start_all(start_seconds)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - started - self.put_seconds

    def tails(self, k: int) -> NDArray[np.float32]:
        """(N, k) ascending distances of each gallery row to rows of other classes, infinite where there are fewer."""
        return np.concatenate(self._ask("tails", k))

    def best(
        self,
        queries: FloatArray,
        settings: Sequence[TailSetting],
        *,
        score_kind: InclusionKind = "log",
        progress: ProgressFn | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Predicted class and its score for (Q, D) queries, each (Q, len(settings)).

        A cover is chosen among all rows of a class, so settings with a ``cover_threshold`` below 1 are refused.
        """
        Grid.of(settings)
        if any(setting.cover_threshold < 1.0 for setting in settings):
            raise UsageError("shards do not compute settings with cover_threshold < 1; use a local source for them")
        check_width(queries, self.gallery.rows.shape[1], "query features")
        prepare_rows(queries, self.gallery.metric, "query features")  # bad rows are refused before the shards begin
        reference = ray.put(np.asarray(queries))
        answers = self._ask("best", [reference], tuple(settings), score_kind, progress=progress)
        winners = combine([part for part, _ in answers])
        self.counts = sum((counts for _, counts in answers), FitCounts())
        return winners.label, winners.score

    @property
    def queries_at_once(self) -> int:
        """How many queries a question needs at least, so that all threads of a shard have something to do."""
        return QUERY_TILE * max(1, *(math.floor(bundle["CPU"]) for bundle in self._bundles))

    def ranked(self, queries: FloatArray, k: int, upto: int | None = None) -> NDArray[np.uint64]:
        """(Q, k) keys of the rows with the largest products, of a source made for ``ProductRows``."""
        return merge_ranked(self._ask("ranked", [ray.put(np.asarray(queries))], k, upto))

    def largest(self, queries: FloatArray, k: int, upto: int | None = None) -> FloatArray:
        """(Q, k) the k largest products, likewise."""
        return products_of(self.ranked(queries, k, upto))

    def related(
        self, queries: FloatArray, query_weights: FloatArray, powers: Sequence[int], floor: float
    ) -> NDArray[np.float64]:
        """(Q, len(powers)) sums of relations to all rows, of a source made for ``ProductRows``."""
        reference = ray.put((np.asarray(queries), np.asarray(query_weights)))
        return np.asarray(np.sum(self._ask("related", [reference], tuple(powers), floor), axis=0))

    def work(self) -> list[ShardWork]:
        """What each living actor has done since it started."""
        living = [actor for actor in self._actors if actor is not None]
        return list(ray.get([_watch(actor) for actor in living], timeout=START_SECONDS))

    def close(self) -> None:
        """Ends the actors and gives their resources back."""
        if ray.is_initialized():
            for actor in filter(None, self._actors):
                ray.kill(actor)
            remove_placement_group(self._group)
        self._actors, self._gallery_ref = [], None

    def _start_all(self, seconds: float) -> None:
        self._actors = [self._start(place) for place in range(len(self._bundles))]
        try:
            ray.get([_watch(actor) for actor in self._actors], timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise OscbenchError(f"the shards have places but did not start within {seconds:.0f} s") from error
        except ray.exceptions.RayActorError as error:
            raise OscbenchError(f"a shard died while it started: {_first_line(error)}") from error

    def _start(self, place: int) -> Any:
        bundle = self._bundles[place]
        actor = ray.remote(concurrency_groups={"watch": 1})(ShardHost).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place),
        )
        threads = max(1, math.floor(bundle["CPU"]))
        return actor.remote([self._gallery_ref], self._options | {"threads": threads})

    def _ask(self, method: str, *arguments: Any, progress: ProgressFn | None = None) -> list[Any]:
        """Every shard's answer in row order; what a lost actor had to answer is asked of its successor."""
        answers: dict[int, Any] = {}
        pending = dict(self._send(shard, method, arguments) for shard in range(len(self.ranges)))
        losses_before, furthest = len(self.replaced), 0
        while pending:
            ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS if progress else None)
            for reference in ready:
                shard, actor = pending.pop(reference)
                try:
                    answers[shard] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    _look_at(list(pending))
                    raise error.cause from None
                except _LOST as error:
                    self._replace(shard, actor, error, len(self.replaced) - losses_before)
                    pending.update([self._send(shard, method, arguments)])
            if progress is not None:
                furthest = max(furthest, self._thousandths(pending))  # a busy or a new actor would set it back
                progress(furthest, 1000)
        return [answers[shard] for shard in range(len(self.ranges))]

    def _send(self, shard: int, method: str, arguments: tuple[Any, ...]) -> tuple[Any, tuple[int, Any]]:
        if not self._actors:
            raise OscbenchError("the sharded source is closed")
        actor = self._actors[self._home[shard]]
        return getattr(actor, method).remote(self.ranges[shard], *arguments), (shard, actor)

    def _replace(self, shard: int, lost: Any, error: Exception, losses: int) -> None:
        """Gives the shard's rows to a new actor in the same place, or to one that is left."""
        place = self._home[shard]
        if self._actors[place] is not lost:  # another shard of the same actor has seen to it
            return
        self.replaced.append(shard)
        ray.kill(lost)  # it may only be out of reach, and must not hold the place
        if losses >= MAX_LOSSES:
            first, last = self.ranges[shard]
            raise OscbenchError(
                f"shard {shard} (rows {first}..{last}) was lost, after {losses} others during the same question; "
                f"memory_budget lowers what each needs ({_first_line(error)})"
            ) from error
        self._actors[place] = self._start(place)
        if not self._is_up(self._actors[place]):
            self._hand_over(place)

    def _is_up(self, actor: Any) -> bool:
        """Waits for a new actor as long as its place exists."""
        answer = _watch(actor)
        now = time.monotonic()
        end, had_room = now + START_SECONDS, now
        while (now := time.monotonic()) < end and now - had_room < NO_ROOM_SECONDS:
            if ray.wait([answer], timeout=POLL_SECONDS)[0]:
                break
            if placement_group_table(self._group)["state"] == "CREATED":
                had_room = time.monotonic()
        try:
            ray.get(answer, timeout=0)
        except (*_LOST, ray.exceptions.GetTimeoutError):
            return False
        return True

    def _hand_over(self, place: int) -> None:
        ray.kill(self._actors[place])
        self._actors[place] = None
        left = [other for other, actor in enumerate(self._actors) if actor is not None]
        if not left:
            raise OscbenchError(f"all shards were lost and there is no room for new ones in {resources()}")
        for shard, home in enumerate(self._home):
            if home == place:
                self._home[shard] = min(left, key=self._home.count)

    def _thousandths(self, pending: dict[Any, tuple[int, Any]]) -> int:
        """How much of the question is done; an actor that does not answer at once counts as not having begun."""
        unfinished = [shard for shard, _ in pending.values()]
        asked = [_watch(actor) for _, actor in pending.values()]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=POLL_SECONDS) if asked else ([], [])
        done = 1000 * (len(self.ranges) - len(unfinished))
        for reference in ready:
            try:
                done += ray.get(reference).done
            except _LOST:
                continue
        return done // len(self.ranges)


def _look_at(references: list[Any]) -> None:
    """Takes the failures of other shards: Ray prints the traceback of each that nobody has asked for."""
    ready, _ = ray.wait(references, num_returns=len(references), timeout=1.0) if references else ([], [])
    for reference in ready:
        with contextlib.suppress(Exception):
            ray.get(reference)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _watch(actor: Any) -> Any:
    return actor.work.options(concurrency_group="watch").remote()


# --- where shards run ---------------------------------------------------------------------------------------------


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
