"""Where scores come from: a folder of score sets, or features and a post-processor."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oscbench.artifacts import META, Meta
from oscbench.data.synthetic import demo_features
from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.metrics import confidence
from oscbench.records import from_mapping
from oscbench.scores import ScoreSet

log = logging.getLogger(__name__)

DEMO = "demo"
"""Stands for the synthetic data wherever a folder of scores or features is asked for."""

_NAMING = ("data", "protocol", "loss")  # what earlier stages record and every table repeats


def load_scores(folder: str) -> dict[str, ScoreSet]:
    """Score sets by split: ``folder/val`` and ``folder/test``, or ``folder`` itself; ``demo``: MSS on synthetic data.

    A folder that is a score set itself is called by the split its ``meta.json`` names, else ``scores``.
    """
    if folder == DEMO:
        return score_features(demo_features(), "mss", {})
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"score folder {path} does not exist; give a folder with scores.npy, or with val/ and test/")
    if (path / "scores.npy").exists() or (path / META).exists():
        scores = ScoreSet.load(path)
        return {str(_details(scores).get("split", "scores")): scores}
    found = {split: ScoreSet.load(path / split) for split in ("val", "test") if (path / split).is_dir()}
    if not found:
        raise UsageError(f"{path} holds neither scores.npy nor a folder val/ or test/; is it a folder of scores?")
    widths = {split: scores.n_known for split, scores in found.items()}
    if len(set(widths.values())) > 1:
        raise UsageError(f"{path}: val has {widths['val']} known classes, test has {widths['test']}")
    return found


def load_features(folder: str) -> dict[str, FeatureSet]:
    """Feature sets by split of ``folder/{train,val,test}``; ``demo`` for the synthetic ones."""
    if folder == DEMO:
        return demo_features()
    from oscbench.features import load_feature_folder

    splits = load_feature_folder(Path(folder))
    return {"train": splits.train, "val": splits.val} | ({"test": splits.test} if splits.test is not None else {})


def score_features(
    features: Mapping[str, FeatureSet],
    algorithm: str,
    params: Mapping[str, Any],
    *,
    score_kind: str | None = None,
) -> dict[str, ScoreSet]:
    """Scores of the validation and test features by a post-processor fitted on the training features.

    Args:
        features: Feature sets by split, ``train`` among them.
        algorithm: A registered post-processor.
        params: Hyperparameters by name; the rest keep their defaults.
        score_kind: ``log``, ``probability`` or ``logit``; default: the post-processor's own.
    """
    from oscbench.postprocessors import POSTPROCESSORS

    entry = POSTPROCESSORS.info(algorithm)
    record = from_mapping(entry.params, params, f"parameters of {algorithm}") if entry.params else None
    options = {} if score_kind is None else {"score_kind": score_kind}
    started = time.perf_counter()
    processor = entry.value(record, **options).fit(features["train"])
    log.info("%s fitted on %d rows in %.1f s", entry.label, len(features["train"]), time.perf_counter() - started)
    details = {"algorithm": algorithm, "params": {} if record is None else dataclasses.asdict(record)}
    details["score_kind"] = processor.score_kind
    return {
        split: _score_set(processor.score(part.inputs()), part, split, details, features["train"])
        for split, part in features.items()
        if split != "train"
    }


def _score_set(scores: Any, part: FeatureSet, split: str, details: Mapping[str, Any], train: FeatureSet) -> ScoreSet:
    made_from = {"features_train": train.fingerprint, f"features_{split}": part.fingerprint}
    config = {**details, "split": split}
    named: dict[str, Any] = {}
    if part.meta is not None:
        named = {name: value for name, value in part.meta.config.items() if name in _NAMING}
    meta = Meta.create(
        "scores",
        config={**config, **named},
        result_config=config,
        inputs=made_from,
        n_known=part.n_known,
        n_outputs=part.n_known,
        classes=part.classes,
        details=config | _network_confidence(part),
    )
    return ScoreSet(
        scores=scores,
        labels=part.labels,
        ids=part.ids,
        class_index=part.class_index,
        classes=part.classes,
        meta=meta,
    )


def _network_confidence(part: FeatureSet) -> dict[str, Any]:
    """γ of the network behind the features, kept with its scores because those have no extra output any more."""
    if part.logits is None:
        return {}
    from oscbench.numerics.softmax import softmax

    found = confidence(part.labels, softmax(part.logits), n_known=part.n_known)
    return {"confidence": {name: None if math.isnan(value) else value for name, value in found._asdict().items()}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """What a table says about the scores it was made from."""

    data: str
    algorithm: str
    training: str
    params: dict[str, Any]
    score_kind: str

    @property
    def is_demo(self) -> bool:
        """Whether the data are embedded demo data, which say nothing about real images."""
        return self.data.startswith("demo")

    @property
    def data_heading(self) -> str:
        """One line that names the data; demo data are headed so."""
        return f"{'DEMO DATA, not a result about real images: ' if self.is_demo else 'Data: '}{self.data}"

    @property
    def label(self) -> str:
        """Name of the curve: algorithm, and training where it is known."""
        return f"{self.algorithm}, {self.training}" if self.training else self.algorithm


def origin_of(scores: ScoreSet, folder: str) -> Origin:
    """Where scores come from, by their ``meta.json``; own scores are named by their folder."""
    details = _details(scores)
    config = scores.meta.config if scores.meta is not None else {}
    named = " ".join(str(config[name]) for name in ("data", "protocol") if config.get(name))
    return Origin(
        data=named or f"own scores in {folder}",
        algorithm=str(details.get("algorithm", Path(folder).name)),
        training=str(config.get("loss", "")),
        params=dict(details.get("params", {})),
        score_kind=str(details.get("score_kind", "not named")),
    )


def _details(scores: ScoreSet) -> Mapping[str, Any]:
    return scores.meta.details if scores.meta is not None else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Scores of one algorithm by split, and where they come from."""

    origin: Origin
    splits: dict[str, ScoreSet]


def runs_from_scores(folders: Sequence[str]) -> list[Run]:
    """A run for each folder of scores."""
    runs = []
    for folder in folders:
        splits = load_scores(folder)
        runs.append(Run(origin=origin_of(next(iter(splits.values())), folder), splits=splits))
    return runs


def runs_from_features(
    folder: str, algorithms: Sequence[str], params: Mapping[str, Any], *, score_kind: str | None = None
) -> list[Run]:
    """A run for each algorithm on one folder of features; parameters go to the only algorithm."""
    if params and len(algorithms) > 1:
        raise UsageError(f"parameters {', '.join(params)} with {len(algorithms)} algorithms; give one --alg with --set")
    features = load_features(folder)
    runs = []
    for algorithm in algorithms:
        splits = score_features(features, algorithm, params, score_kind=score_kind)
        runs.append(Run(origin=origin_of(splits["val"], folder), splits=splits))
    return runs


def save_scores(runs: Sequence[Run], folder: Path) -> None:
    """Writes ``folder/{val,test}``, or ``folder/<algorithm>/{val,test}`` of several runs; each whole or not at all."""
    for run in runs:
        target = folder if len(runs) == 1 else folder / run.origin.algorithm
        for split, scores in run.splits.items():
            scores.save(target / split)
