"""Searches: the hyperparameters of a post-processor, tried on the features of one network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from oscbench.artifacts import Meta, is_complete
from oscbench.errors import StoppedError, UsageError
from oscbench.metrics import CcrRule
from oscbench.origin import Origin
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.postprocessors.base import usable_score_kind
from oscbench.stages.features import AnyFeatures, Features
from oscbench.stages.fine_tuning import FineTuningTrials, check_base, fine_tuning_seconds
from oscbench.stages.runner import SearchOptions, Session
from oscbench.stages.stage import Given, Room, Stage
from oscbench.stages.training import TrainingOptions
from oscbench.tuning.evaluator import AnyEvaluator, SharedFeatures, Watcher, check_validation
from oscbench.tuning.proposals import GENERATION
from oscbench.tuning.published import compare_with_published
from oscbench.tuning.search import DEFAULT_TRIALS, Search, SearchKind, SearchRun, trial_count
from oscbench.tuning.space import SearchSpace
from oscbench.tuning.trials import FINISHED, read_trials

START_SECONDS, TRIAL_SECONDS = 12.0, 0.06
"""What a search costs beside the evaluation itself: Ray's start with its first trials, and each trial (measured)."""
QUICK_SECONDS = 3.0
"""What a search of small shared features takes where neither Ray nor its trials have to be started."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What decides the table. Not in it: the number of trials, so that a search can be made longer.

    Attributes:
        algorithm: Name of the post-processor.
        search: How settings are chosen.
        space: The part of the search space that this way of choosing looks at.
        ccr_rule: How CCR is read at a rate.
        score_kind: Score the curve is made of.
        seed: Of the search; that of the training.
        generation: Settings that an Optuna search proposes from one state of knowledge; 0 for others.
        workers: Processes that train a trial together, each with batches of its own; 0 where trials train nothing.
        together: Numbers of dummies that are fine-tuned side by side on one frozen trunk; empty: each by itself.
    """

    algorithm: str
    search: SearchKind
    space: dict[str, Any]
    ccr_rule: CcrRule
    score_kind: ScoreKind
    seed: int
    generation: int = 0
    workers: int = 0
    together: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What came out.

    Attributes:
        trials: Finished ones.
        params: The best setting.
        sum: What it reached.
    """

    trials: int
    params: dict[str, Any]
    sum: float


class SearchView(Watcher, Protocol):
    """Who is told what happens in a search."""

    def begin(self, run: SearchRun) -> None:
        """It starts or goes on."""
        ...

    def end(self, run: SearchRun) -> None:
        """It is over."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Tune(Stage[SearchConfig, SearchResult]):
    """``trials.csv``, ``trials.parquet``, ``best.yaml`` and the study; a killed search goes on where it was.

    Attributes:
        features: What the settings are tried on; the same stage as among the inputs.
        space: The whole search space.
        trials: How many settings a budgeted search tries; a grid is always tried whole.
        options: How it is run.
        memory: Bytes that distances and fits may take in each process; ``None``: no limit.
        view: Who is told what happens.
    """

    name = "tune"
    config_type, result_type = SearchConfig, SearchResult
    resumes = spreads = True

    features: AnyFeatures
    space: SearchSpace
    trials: int = DEFAULT_TRIALS
    options: SearchOptions = SearchOptions()
    memory: int | None = None
    view: SearchView

    @classmethod
    def of(
        cls,
        features: AnyFeatures,
        algorithm: str,
        space: SearchSpace,
        view: SearchView,
        *,
        search: SearchKind = "grid",
        trials: int | None = None,
        rule: CcrRule = "inclusive",
        score_kind: ScoreKind | None = None,
        options: SearchOptions = SearchOptions(),  # noqa: B008 - frozen
        memory: int | None = None,
        training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
        share_trunk: bool = False,
    ) -> Tune:
        """The search of an algorithm on some features.

        Args:
            features: What the settings are tried on.
            algorithm: A registered post-processor.
            space: Where its settings come from.
            view: Who is told.
            search: ``grid``, ``optuna`` or ``random``.
            trials: Budget of the last two.
            rule: How CCR is read at a rate.
            score_kind: Score the curve is made of; default: the method's first. One with a single kind answers in that.
            options: How it is run.
            memory: Bytes that distances and fits may take.
            training: How trials that train are run.
            share_trunk: Whether fine-tunings that differ in their dummies alone are trained side by side.
        """
        method = POSTPROCESSORS.info(algorithm)
        generation = max(GENERATION, options.max_concurrent or 0) if search == "optuna" else 0
        config = SearchConfig(
            algorithm=algorithm,
            search=search,
            space=space.described(search),
            ccr_rule=rule,
            score_kind=usable_score_kind(algorithm, score_kind or method.score_kinds[0]),
            seed=features.origin.seed or 0,
            generation=generation,
            workers=training.workers if method.fine_tunes else 0,
            together=tuple(int(size) for size in space.grid.get("dummies", ())) if share_trunk else (),
        )
        return cls(
            room=features.room,
            config=config,
            inputs=tried_on(features, algorithm),
            features=features,
            space=space,
            trials=trials or DEFAULT_TRIALS,
            options=options,
            memory=memory,
            ask=training.ask,
            view=view,
        )

    @property
    def alias(self) -> str:
        """See ``Stage.alias``."""
        return search_alias(self.features.origin, self.config.algorithm)

    @cached_property
    def total(self) -> int:
        """How many trials the search has in the end."""
        return trial_count(self.space, self.config.search, self.trials)

    def describe(self) -> str:
        """See ``Stage.describe``."""
        origin = self.features.origin
        return (
            f"{self.config.algorithm} on {origin.data} {origin.protocol}, {origin.training}, seed {origin.seed or 0}: "
            f"{self.total} trials by {self.config.search}"
        )

    def check(self) -> None:
        """Refuses features on which nothing can be searched, and a bound on what a method does not keep."""
        if self.memory is not None and not POSTPROCESSORS.info(self.config.algorithm).bounds_memory:
            raise UsageError(
                f"--memory bounds distances that the settings of a method share, and {self.config.algorithm} keeps "
                "none; leave it out"
            )
        if self.base is not None:
            check_base(self.base)
        elif self.features.state() in ("done", "given"):
            splits = self.features.load()
            for part in (splits.train, splits.val):
                POSTPROCESSORS.info(self.config.algorithm).require(part)
            check_validation(splits.val.labels, str(self.features.folder / "val"))

    def admit(self, session: Session) -> None:
        """Refuses workers that cannot be had."""
        super().admit(session)
        if self.base is not None:
            session.runner.training_share(self.config.workers, self.ask)

    @property
    def workers(self) -> int:
        """Of each trial that trains."""
        return max(1, self.config.workers)

    @property
    def on_gpu(self) -> bool:
        """Where its trials train."""
        return self.base is not None

    def how_far(self) -> str:
        """See ``Stage.how_far``."""
        return f" after {self.finished_before()} of {self.total} trials"

    @property
    def base(self) -> Features | None:
        """The features of the network that each trial fine-tunes; ``None`` where trials share those features."""
        return self.features if self.config.workers and isinstance(self.features, Features) else None

    def finished_before(self) -> int:
        """How many trials an earlier, perhaps killed, run of the same search has finished."""
        path = self.folder / "trials.csv"
        return int(read_trials(path)["status"].isin(FINISHED).sum()) if path.exists() else 0

    def is_whole(self, meta: Meta[SearchConfig, SearchResult]) -> bool:
        """Whether there are as many trials as are asked for now."""
        return meta.result.trials >= self.total

    def seconds(self, session: Session) -> float:
        """Of Ray and its trials alone; evaluating small features takes seconds, large ones a minute or two.

        Where trials train, of their trainings.
        """
        left = self.total - self.finished_before()
        overhead = 0.0 if session.in_process else START_SECONDS
        if self.base is None:
            return overhead + (QUICK_SECONDS if session.in_process else TRIAL_SECONDS * left)
        epochs = self.space.grid.get("epochs", ()) if self.config.search == "grid" else ()
        have = session.resources()
        return overhead + fine_tuning_seconds(self.base, left, have=have, epochs=epochs, **self._how_trials_train())

    def search(self) -> Search:
        """The search itself."""
        if self.base is not None:
            labels = np.asarray(self.base.samples.table("val").labels)
        else:
            labels = self.features.load().val.labels
        return Search(
            origin=self.features.origin,
            folder=self.folder,
            fingerprint=self.fingerprint,
            features=self.features.fingerprint,
            algorithm=self.config.algorithm,
            validation_labels=labels,
            space=self.space,
            kind=self.config.search,
            trials=self.trials,
            generation=self.config.generation or GENERATION,
            rule=self.config.ccr_rule,
            score_kind=self.config.score_kind,
        )

    def make(self, work: Path, session: Session) -> SearchResult | None:
        """Runs every trial that is not finished; a time budget may leave some for later."""
        self.check()
        search = self.search()
        with SearchRun(search) as run:
            self.view.begin(run)
            try:
                session.runner.search(run, self._evaluator(search, session), self.options, self.view)
            except KeyboardInterrupt:
                kept = f"{run.done} of {search.total} trials are kept"
                raise StoppedError(f"interrupted, {kept}; run the same command again to go on") from None
            finally:
                self.view.end(run)
            best = run.finish()
            done = run.done
        if done < search.total:
            return None
        if self.base is None:  # the published setting of a method that fine-tunes would have to be trained first
            splits = self.features.load()
            compare_with_published(search, best.params, splits.train, splits.val, memory=self.memory)
        return SearchResult(trials=done, params=best.params, sum=best.sum)

    def _evaluator(self, search: Search, session: Session) -> AnyEvaluator:
        """All settings share the distances of these features, so that those that wait are evaluated together.

        Unless each is a network of its own.
        """
        if self.base is None:
            splits = self.features.load()
            return SharedFeatures.of(search, splits.train, splits.val, memory=self.memory)
        return FineTuningTrials.of(search, self.base, runner=session.runner, **self._how_trials_train())

    def _how_trials_train(self) -> dict[str, Any]:
        return {
            "workers": self.config.workers,
            "together": self.config.together,
            "trials": min(self.total, self.options.max_concurrent or self.total),
            "ask": self.ask,
        }


def tried_on(features: AnyFeatures, algorithm: str) -> Mapping[str, Stage[Any, Any]]:
    """What the settings of an algorithm are tried on: some features, or the network behind them."""
    if not POSTPROCESSORS.info(algorithm).fine_tunes:
        return {"features": features}
    if not isinstance(features, Features):
        raise UsageError(
            f"{algorithm} fine-tunes a network, and --features {features.folder} has none; give --protocol, and "
            "--checkpoint for a network of your own"
        )
    return features.inputs


def search_alias(origin: Origin, algorithm: str) -> str:
    """The readable name of an algorithm's search in use."""
    return f"{origin.training}/s{origin.seed or 0}/{algorithm}/tune"


SearchMeta = Meta[SearchConfig, SearchResult]


def finished_searches(room: Room) -> dict[Path, SearchMeta]:
    """The record of every finished search, whatever it was made on, by its folder."""
    folders = (folder for folder in sorted(room.root.glob(f"{Tune.name}-*")) if is_complete(folder))
    return {folder: Meta.read(folder, Tune.name, SearchConfig, SearchResult) for folder in folders}


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedSearch(Given[SearchConfig, SearchResult]):
    """A finished search that was picked for its result, whatever way it was run."""

    name = "tune"
    config_type, result_type = SearchConfig, SearchResult

    @classmethod
    def of(cls, features: AnyFeatures, folder: Path, meta: SearchMeta) -> FinishedSearch | None:
        """The search in a folder, where it was made on these features as they are now."""
        found = cls(room=features.room, config=meta.config, inputs=tried_on(features, meta.config.algorithm))
        return found if found.folder == folder and found._made_from(meta.inputs) else None

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"finished search of {self.config.algorithm}"
