"""``benchmark``: every training times every algorithm times every protocol, as one graph of stages."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oscbench.api.session import Asked, Loader, LogView, chosen_losses, open_session, training_options
from oscbench.artifacts import is_complete
from oscbench.errors import StoppedError, UsageError
from oscbench.papers.panel import ALGORITHMS as PUBLISHED_ALGORITHMS
from oscbench.progress import LOG_EVERY_SECONDS, duration
from oscbench.store import check_local

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.metrics import CcrRule
    from oscbench.postprocessors import ScoreKind
    from oscbench.stages.scores import Scores
    from oscbench.stages.stage import Step
    from oscbench.stages.together import Board, Crew, Spectator

logger = logging.getLogger(__name__)

PUBLISHED: Final = "published"
"""Stands for the five algorithms of the evaluation paper."""
AT_BEST_EPOCH: Final = PUBLISHED_ALGORITHMS[0]
"""The protocols paper shows its networks by this one, at their last and at their best epoch."""
SUMS: Final = {"val negative": ("val", "negative"), "negative": ("test", "negative"), "unknown": ("test", "unknown")}
"""What the table has of each cell besides accuracy: the sum of CCR against a kind of sample of a split."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """What a benchmark has made.

    Attributes:
        cells: A row for each cell: protocol, training, seed, epoch of the network (``last`` or ``best``), algorithm,
            ``state`` (``done`` or ``failed``), the sums of CCR at the four rates against validation negatives, test
            negatives and test unknowns, test accuracy, the reason of a failure, the folder of its scores.
        plan: Of a dry run, every stage with what there is of it; then there is nothing else.
        seconds: It took, or of a dry run is expected to take.
        left_out: Algorithms of a group that are not in the table, each with the reason.
        demo: Whether the data are the embedded ones, which say nothing about real images.
    """

    cells: pd.DataFrame
    demo: bool
    plan: tuple[Step, ...] = ()
    seconds: float = 0.0
    left_out: tuple[dict[str, Any], ...] = ()

    @property
    def failed(self) -> pd.DataFrame:
        """The cells that could not be made."""
        return self.cells[self.cells["state"] == "failed"]


def benchmark(
    protocols: Sequence[int | str] = (1, 2, 3),
    *,
    losses: str | Sequence[str] = "all",
    algorithms: str | Sequence[str] = PUBLISHED,
    seeds: Sequence[int] = (0,),
    rule: CcrRule = "inclusive",
    score_kind: ScoreKind | None = None,
    data: str = "demo",
    name: str | None = None,
    runs: str | Path = "runs",
    num_workers: int = 1,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    loader: Loader = "auto",
    address: str | None = None,
    local: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    spectator: Spectator | None = None,
) -> BenchmarkResult:
    """Trains, fine-tunes, extracts, searches and scores whatever is missing of a whole comparison.

    Stages that do not need each other are made side by side, as many as there is room for. What is there is used; a
    cell that fails is recorded with its reason while the others go on; what was killed goes on when it is run again.

    Args:
        protocols: 1, 2, 3, or protocol files of one's own.
        losses: Trainings: ``softmax,eos``, a sequence of names, or ``all`` for the three published ones.
        algorithms: Post-processors: ``published``, ``posthoc``, ``all``, names, or a sequence of these.
        seeds: Of the trainings.
        rule: How CCR is read at a rate.
        score_kind: Score the curves are made of; default: each method's first.
        data: Image folder, or ``demo`` for the embedded data.
        name: Name of the data below the runs folder.
        runs: Folder that receives all results.
        num_workers: Workers of each training.
        cpus_per_worker: CPUs of each.
        gpus_per_worker: GPUs of each.
        loader: Image loader.
        address: An existing Ray cluster, which must see the runs folder; default: start Ray here.
        local: One stage after the other in this process, without Ray.
        yes: Agree to stages that take long.
        dry_run: Only plan.
        spectator: Who is shown how far it is; default: the log.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = benchmark([2], losses="eos", algorithms="mss", runs=folder, dry_run=True)
    ...     [step.stage.name for step in found.plan if step.stage.name != "beton"]
    ['images', 'samples', 'train', 'features', 'scores', 'best-epoch', 'features', 'scores']
    """
    from oscbench.stages.together import make_together, prepare

    wanted, left_out = _cells(
        protocols,
        chosen_losses(losses),
        algorithms,
        seeds,
        request={"runs": check_local(Path(runs)), "data": data, "name": name},
        options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
        score_kind=score_kind,
        rule=rule,
    )
    if local and num_workers > 1:
        raise UsageError(f"--local trains with one worker in this process; leave out --num-workers {num_workers}")
    with (
        contextlib.redirect_stdout(sys.stderr),  # Ray prints warnings of its own; stdout is for the result
        open_session(address, local) as session,
        contextlib.ExitStack() as opened,
    ):
        board = prepare(wanted, session.resources(), yes=yes or dry_run)
        began = time.monotonic()
        if not dry_run:
            try:
                make_together(board, partial(_crew, opened, address, local), spectator or LogBoard())
            except KeyboardInterrupt:
                kept = len(board.reused) + len(board.done)
                raise StoppedError(
                    f"interrupted, {kept} of {board.total} stages are done; run the same command again to go on"
                ) from None
    return BenchmarkResult(
        cells=_table(wanted, board, rule),
        demo=any(stage.origin.demo for stage in wanted),
        plan=tuple(board.steps()) if dry_run else (),
        seconds=board.seconds_left() if dry_run else time.monotonic() - began,
        left_out=tuple(left_out),
    )


def _crew(opened: contextlib.ExitStack, address: str | None, local: bool) -> Crew:
    if local:
        from oscbench.stages.together import Alone

        return Alone()
    from oscbench.distributed.cluster import connect
    from oscbench.distributed.stages import RayCrew

    opened.enter_context(connect(address))
    return RayCrew()


# --- which cells ---------------------------------------------------------------------------------------------------


def _cells(
    protocols: Sequence[int | str],
    losses: tuple[str, ...],
    algorithms: str | Sequence[str],
    seeds: Sequence[int],
    *,
    request: dict[str, Any],
    options: Any,
    rule: CcrRule,
    score_kind: ScoreKind | None,
) -> tuple[list[Scores], list[dict[str, Any]]]:
    """The scores that are wanted, cell by cell, and the members of a group that the asked kind of score rules out."""
    from oscbench.stages.best_epoch import at_best_epoch
    from oscbench.stages.features import FeatureRequest, requested_features
    from oscbench.stages.scores import scores_of_best, scores_with
    from oscbench.stages.search import finished_searches

    if not protocols or not seeds:
        raise UsageError("a benchmark needs at least one protocol and one seed")
    asked = Asked(_names(algorithms), lambda line: logger.info("%s", line))
    how: dict[str, Any] = {"rule": rule, "score_kind": score_kind}
    wanted: list[Scores] = []
    for protocol in dict.fromkeys(map(str, protocols)):
        sources = requested_features(
            FeatureRequest(protocol=protocol, losses=losses, seeds=tuple(seeds), options=options, **request)
        )
        searches = cache(partial(finished_searches, sources[0].room))  # read once, if anybody asks
        for features in sources:
            best = at_best_epoch(features)
            for algorithm in asked.by_name:
                with asked.trying(algorithm):
                    stage = scores_of_best(features, algorithm, LogView(), training=options, searches=searches, **how)
                    wanted.append(stage)
                    if algorithm == AT_BEST_EPOCH and best is not None:
                        wanted.append(scores_with(best, algorithm, {}, score_kind))
    asked.require_some(wanted)
    return wanted, asked.left_out


def _names(algorithms: str | Sequence[str]) -> list[str]:
    parts = [algorithms] if isinstance(algorithms, str) else [*algorithms]
    names = [name.strip() for part in parts for name in part.split(",")]
    return [member for name in names for member in (PUBLISHED_ALGORITHMS if name == PUBLISHED else (name,))]


def _table(wanted: Sequence[Scores], board: Board, rule: CcrRule) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([_row(stage, board.failed.get(stage.path), rule) for stage in wanted])


def _row(stage: Scores, failure: str | None, rule: CcrRule) -> dict[str, Any]:
    there = failure is None and is_complete(stage.folder)
    row: dict[str, Any] = {
        "protocol": stage.room.protocol,
        "training": stage.origin.training,
        "seed": stage.origin.seed,
        "epoch": "best" if stage.origin.at_best_epoch else "last",
        "algorithm": stage.config.algorithm,
        "state": "failed" if failure is not None else "done" if there else "missing",
        **dict.fromkeys((*SUMS, "accuracy"), float("nan")),
        "reason": failure or "",
        "folder": str(stage.folder),
    }
    return row | (_figures(stage, rule) if there else {})


def _figures(stage: Scores, rule: CcrRule) -> dict[str, float]:
    from oscbench.report.evaluation import Options, evaluate_split

    parts = {split: evaluate_split(split, scores, Options(rule=rule)) for split, scores in stage.load().items()}
    sums = {(split, kind.kind): kind.ccr_sum.estimate for split, part in parts.items() for kind in part.against}
    found = {name: sums[where] for name, where in SUMS.items() if where in sums}
    return found | ({"accuracy": parts["test"].accuracy.estimate} if "test" in parts else {})


# --- who is told ---------------------------------------------------------------------------------------------------


class LogBoard:
    """A line in a log at most every ten seconds, one at once for whatever fails, and one at the end."""

    def __init__(self, say: Callable[[str], None] = lambda line: logger.info("%s", line)) -> None:
        self._say = say
        self._last = float("-inf")
        self._told: set[str] = set()

    def show(self, board: Board) -> None:
        """See ``Spectator.show``."""
        for path in board.failed.keys() - self._told:
            self._told.add(path)
            self._say(board.failure(path))
        over = not board.waiting and not board.running
        if over or time.monotonic() - self._last >= LOG_EVERY_SECONDS:
            self._last = time.monotonic()
            self._say(board.summary())
            if board.running:
                self._say("  running: " + "; ".join(board.running_now()))


def finish_line(result: BenchmarkResult) -> str:
    """What there is in the end, in one line."""
    done, failed = int((result.cells["state"] == "done").sum()), len(result.failed)
    text = f"{done} of {len(result.cells)} cells are done, {duration(result.seconds)}"
    return f"{text}; {failed} failed, run the same command again to try them again" if failed else text
