"""Scores with the best setting found: refit on the training features, score validation and test, keep both."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscbench.artifacts import META
from oscbench.distributed.cluster import connect
from oscbench.distributed.tuning_stage import (
    FeatureRequest,
    FeatureSource,
    TuneRequest,
    View,
    ensure_tuning,
    feature_sources,
)
from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.records import fingerprint
from oscbench.report.scoring import Run, load_features, load_scores, origin_of, save_scores, score_features
from oscbench.tuning.collect import find_best
from oscbench.tuning.search import features_fingerprint
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import Best

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RefitRequest:
    """Which algorithms on which features, with which settings.

    Attributes:
        params: A ``best.yaml`` of any search of the algorithm; default: the best setting found for these features,
            searched for now where there is none.
        score_kind: Default: the kind the setting was found with.
    """

    source: FeatureRequest
    algorithms: tuple[str, ...]
    params: Path | None = None
    score_kind: ScoreKind | None = None


def tuned_runs(request: RefitRequest, view: View) -> list[Run]:
    """Scores of each algorithm and training; with a setting from elsewhere also those of the setting found here."""
    given = Best.read(request.params) if request.params is not None else None
    if given is not None and request.algorithms != (given.algorithm,):
        raise UsageError(f"--params {request.params} holds a setting of {given.algorithm}; use --alg {given.algorithm}")
    with contextlib.ExitStack() as session:

        def enter_ray() -> None:
            session.enter_context(connect(request.source.address))

        sources = feature_sources(request.source, enter_ray)
    return [
        run
        for source in sources
        for algorithm in request.algorithms
        for run in _runs_on(source, algorithm, given, request, view)
    ]


def _runs_on(source: FeatureSource, algorithm: str, given: Best | None, request: RefitRequest, view: View) -> list[Run]:
    features = load_features(str(source.folder))
    here = _best_here(source, algorithm, features)
    if given is None:
        if here is None and _has_hyperparameters(algorithm):
            here = _tune(source, algorithm, features, request, view)
        return [_scored(source, algorithm, here, algorithm, features, request)]
    runs = []
    if _origin(given) != _origin(here):
        name = f"{algorithm} with the setting of {given.data} {given.protocol} {given.training}"
        runs.append(_scored(source, algorithm, given, name, features, request))
    if here is not None:
        runs.append(_scored(source, algorithm, here, f"{algorithm} tuned here", features, request))
    elif _has_hyperparameters(algorithm):
        logger.info("no search of %s on these features yet, so there is nothing to compare the setting with", algorithm)
    return runs


def _origin(best: Best | None) -> tuple[str, ...] | None:
    return None if best is None else (best.data, best.protocol, best.training, str(best.seed), str(best.params))


def _has_hyperparameters(algorithm: str) -> bool:
    params = POSTPROCESSORS.info(algorithm).params
    return params is not None and bool(dataclasses.fields(params))


def _best_here(source: FeatureSource, algorithm: str, features: dict[str, FeatureSet]) -> Best | None:
    wanted = features_fingerprint(features["train"], features["val"])
    return find_best(source.directory, source.training, source.seed, algorithm, wanted)


def _tune(
    source: FeatureSource, algorithm: str, features: dict[str, FeatureSet], request: RefitRequest, view: View
) -> Best | None:
    """The grid of the algorithm on these features: the stage before this one."""
    view.say(f"{algorithm} has not been tuned on {source.folder}; searching its grid first")
    space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params)
    one = dataclasses.replace(
        request.source, protocol=None, features=source.folder, losses=(source.training,), seeds=(source.seed,)
    )
    one = dataclasses.replace(one, name=source.directory.data)
    tune = TuneRequest(source=one, algorithm=algorithm, space=space, score_kind=request.score_kind or "log")
    ensure_tuning(tune, view, lambda begun: None)
    return _best_here(source, algorithm, features)


def _scored(
    source: FeatureSource,
    algorithm: str,
    best: Best | None,
    label: str,
    features: dict[str, FeatureSet],
    request: RefitRequest,
) -> Run:
    """Scores with one setting, from disk where they are there already."""
    params: dict[str, Any] = best.params if best is not None else {}
    kind = request.score_kind or (best.score_kind if best is not None else None)
    inputs = {split: part.fingerprint for split, part in features.items()}
    name = fingerprint("scores", {"algorithm": algorithm, "params": params, "score_kind": kind}, inputs)
    folder = source.directory.scores(source.training, source.seed, algorithm, name)
    if all((folder / split / META).exists() for split in features if split != "train"):
        logger.info("scores: re-using %s", folder)
        splits = load_scores(str(folder))
    else:
        splits = score_features(features, algorithm, params, score_kind=kind)
        save_scores([Run(origin=origin_of(splits["val"], str(folder)), splits=splits)], folder)
        logger.info("scores: wrote %s", folder)
    origin = origin_of(splits["val"], str(folder))
    data = f"{source.directory.data} {source.directory.protocol}"
    return Run(origin=dataclasses.replace(origin, data=data, algorithm=label, training=source.training), splits=splits)
