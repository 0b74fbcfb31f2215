"""Scores: a post-processor with one setting, fitted on the training features, on validation and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscbench.errors import OscbenchError
from oscbench.metrics import CcrRule
from oscbench.origin import Origin
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.postprocessors.base import usable_score_kind
from oscbench.scores import ScoreSet
from oscbench.scoring import fit_and_score
from oscbench.stages.features import AnyFeatures, Features, OwnFeatures
from oscbench.stages.fine_tuning import fine_tuned
from oscbench.stages.runner import Session
from oscbench.stages.search import FinishedSearch, SearchMeta, SearchView, Tune, finished_searches
from oscbench.stages.stage import Stage, ensure
from oscbench.stages.training import TrainingOptions
from oscbench.tuning.space import load_space


@dataclass(frozen=True, kw_only=True)
class ScoresConfig:
    """What decides the scores, besides the features.

    Attributes:
        algorithm: Name of the post-processor.
        params: Its setting; ``None``: the best of the search among the inputs.
        score_kind: ``None``: the kind the search used, else the method's own.
        test: Fingerprint of the test rows of a user's own features, which no stage decides.
    """

    algorithm: str
    params: dict[str, Any] | None
    score_kind: ScoreKind | None
    test: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoresResult:
    """The setting that was used, and the digest of the scores of each split."""

    params: dict[str, Any]
    score_kind: str
    scores: dict[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores(Stage[ScoresConfig, ScoresResult]):
    """Score sets ``val/`` and, where the features have one, ``test/``.

    Attributes:
        features: What is scored, or the features of the network whose best fine-tuning is.
        origin: What tables say about the scores.
    """

    name = "scores"
    config_type, result_type = ScoresConfig, ScoresResult

    features: AnyFeatures
    origin: Origin

    @property
    def alias(self) -> str:
        """See ``Stage.alias``."""
        root = f"{self.origin.training}/s{self.origin.seed or 0}"
        if self.origin.at_best_epoch:
            return f"{root}/best-epoch/{self.config.algorithm}-scores"
        return f"{root}/{self.config.algorithm}/scores"

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{self.config.algorithm} on {self.features.folder}"

    @property
    def on_gpu(self) -> bool:
        """Where the network that it scores has to be looked at again first."""
        search = self.inputs.get("tune")
        return isinstance(search, Tune | FinishedSearch) and bool(search.config.workers)

    def load(self) -> dict[str, ScoreSet]:
        """The finished score sets by split."""
        return {split: ScoreSet.load(self.folder / split) for split in self.result.scores}

    def make(self, work: Path, session: Session) -> ScoresResult:
        """Fits on the training features and scores the others."""
        params, kind, features = self.config.params, self.config.score_kind, self.features
        if params is None:
            search = self.inputs["tune"]
            assert isinstance(search, Tune | FinishedSearch)
            if not search.room.store.exists(search.path):
                raise OscbenchError(
                    f"trials of the search in {search.folder} failed (see the column 'error' of its trials.csv), so "
                    "there is no best setting yet; run the same command again"
                )
            params, kind = search.result.params, kind or search.config.score_kind
            if search.config.workers:
                features = fine_tuned(features, params, search.config.workers, search.config.together)
                ensure([features], session, yes=True)  # its trial has made it; names now point at it
        splits = fit_and_score(
            features.load().by_name(), self.config.algorithm, params, score_kind=kind, origin=self.origin
        )
        for split, scores in splits.items():
            scores.save(work / split)
        some = next(iter(splits.values()))
        assert some.info is not None, "fitted scores say what they are"
        return ScoresResult(
            params=some.info.params,
            score_kind=some.info.score_kind,
            scores={split: scores.content_fingerprint() for split, scores in splits.items()},
        )


def has_hyperparameters(algorithm: str) -> bool:
    """Whether there is anything to search for."""
    return bool(dataclasses.fields(POSTPROCESSORS.info(algorithm).params))


def scores_with(
    features: AnyFeatures,
    algorithm: str,
    params: Mapping[str, Any],
    score_kind: ScoreKind | None = None,
    *,
    training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
) -> Scores:
    """Scores with a given setting."""
    kind = usable_score_kind(algorithm, score_kind) if score_kind is not None else None
    config = ScoresConfig(algorithm=algorithm, params=dict(params), score_kind=kind, test=_test_rows(features))
    scored = (
        fine_tuned(features, params, training.workers, ask=training.ask)
        if _needs_fine_tuning(features, algorithm)
        else features
    )
    return Scores(
        room=features.room, config=config, inputs={"features": scored}, features=scored, origin=features.origin
    )


def _needs_fine_tuning(features: AnyFeatures, algorithm: str) -> bool:
    """Whether the features are not yet those of a fine-tuned network, as the algorithm takes them."""
    fine_tunes = POSTPROCESSORS.info(algorithm).fine_tunes
    return fine_tunes and isinstance(features, Features) and features.network.dummies == 0


def scores_of_best(
    features: AnyFeatures,
    algorithm: str,
    view: SearchView,
    *,
    rule: CcrRule = "inclusive",
    score_kind: ScoreKind | None = None,
    training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
    searches: Callable[[], Mapping[Path, SearchMeta]] | None = None,
) -> Scores:
    """Scores with the best setting found for these features: by any finished search, else by the grid to be run.

    ``searches`` spares who asks for many to read ``finished_searches`` each time.
    """
    if not has_hyperparameters(algorithm):
        return scores_with(features, algorithm, {}, score_kind)
    if POSTPROCESSORS.info(algorithm).fine_tunes and not _needs_fine_tuning(features, algorithm):
        # fine-tuned elsewhere: its file says how many dummies it has, and no more
        known = {"dummies": features.network.dummies} if isinstance(features, Features) else {}
        return scores_with(features, algorithm, known, score_kind)
    kind = usable_score_kind(algorithm, score_kind) if score_kind is not None else None
    search = best_search(features, algorithm, rule=rule, score_kind=kind, searches=searches)
    tune: Tune | FinishedSearch
    if search is not None:
        tune = search
    else:
        method = POSTPROCESSORS.info(algorithm)
        changes = method.recipe(None, demo=features.origin.demo).items()
        space = load_space(algorithm, method.params, overrides=[f"{name}={value}" for name, value in changes])
        tune = Tune.of(features, algorithm, space, view, rule=rule, score_kind=kind, training=training)
    config = ScoresConfig(algorithm=algorithm, params=None, score_kind=kind, test=_test_rows(features))
    inputs: dict[str, Stage[Any, Any]] = {"tune": tune}
    if not tune.config.workers:
        inputs["features"] = features
    return Scores(room=features.room, config=config, inputs=inputs, features=features, origin=features.origin)


def _test_rows(features: AnyFeatures) -> str:
    test = features.load().test if isinstance(features, OwnFeatures) else None
    return "" if test is None or test.info is not None else test.fingerprint


def best_search(
    features: AnyFeatures,
    algorithm: str,
    *,
    rule: CcrRule,
    score_kind: ScoreKind | None,
    searches: Callable[[], Mapping[Path, SearchMeta]] | None = None,
) -> FinishedSearch | None:
    """The finished search of these features, as they are now, that reached most; ``None`` where there is none.

    Sums of different rules or kinds of score are not compared: without a kind the method's first one counts that was
    searched. ``searches`` as for ``scores_of_best``.
    """
    finished = finished_searches(features.room) if searches is None else searches()
    asked = [
        (folder, meta)
        for folder, meta in finished.items()
        if (meta.config.algorithm, meta.config.ccr_rule) == (algorithm, rule)
    ]
    fitting = [found for folder, meta in asked if (found := FinishedSearch.of(features, folder, meta)) is not None]
    for kind in POSTPROCESSORS.info(algorithm).score_kinds if score_kind is None else (score_kind,):
        of_kind = [search for search in fitting if search.config.score_kind == kind]
        if of_kind:
            return max(of_kind, key=lambda search: search.result.sum)
    return None
