"""From features to scores: a post-processor fitted on the training rows scores the other splits."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from typing import Any, cast

from oscbench.features import FeatureSet
from oscbench.labels import UNKNOWN
from oscbench.metrics import Scores, confidence
from oscbench.numerics.softmax import softmax
from oscbench.origin import Origin
from oscbench.postprocessors import POSTPROCESSORS, ScoreKind
from oscbench.postprocessors.base import usable_score_kind
from oscbench.records import fingerprint, from_mapping
from oscbench.scores import ScoreInfo, ScoreSet

log = logging.getLogger(__name__)


def fit_and_score(
    features: Mapping[str, FeatureSet],
    algorithm: str,
    params: Mapping[str, Any],
    *,
    score_kind: str | None = None,
    origin: Origin | None = None,
) -> dict[str, ScoreSet]:
    """Scores of the validation and test features by a post-processor fitted on the training features.

    What the method had to bend is logged.

    Args:
        features: Feature sets by split, ``train`` among them.
        algorithm: A registered post-processor.
        params: Hyperparameters by name; the rest keep their defaults.
        score_kind: Default: the post-processor's first; one with a single kind answers in that one.
        origin: What the scores say they come from; default: as the features say, else a name made from their content.
    """
    method, train = POSTPROCESSORS.info(algorithm), features["train"]
    kind = usable_score_kind(algorithm, cast(ScoreKind, score_kind)) if score_kind else method.score_kinds[0]
    record = from_mapping(method.params, params, f"parameters of {algorithm}")
    for part in features.values():
        method.require(part)
    started = time.perf_counter()
    processor: Any = method.value(record, score_kind=kind).fit(train)
    log.info("%s fitted on %d rows in %.1f s", method.label, len(train), time.perf_counter() - started)
    for note in processor.notes:
        log.warning("%s", note)
    config = {"algorithm": algorithm, "params": dataclasses.asdict(record), "score_kind": kind}
    scored = {}
    for split, part in features.items():
        if split == "train":
            continue
        found: Scores = processor.score(part.inputs()) if method.per_class else processor.predict(part.inputs())
        made_from = {"features_train": train.fingerprint, f"features_{split}": part.fingerprint}
        scored[split] = ScoreSet.from_scores(
            found,
            part.labels,
            n_known=part.n_known,
            ids=part.ids,
            class_index=part.class_index,
            classes=part.classes,
            info=ScoreInfo(
                split=split,
                n_known=part.n_known,
                classes=part.classes,
                fingerprint=fingerprint("scores", config | {"split": split}, made_from),
                origin=origin or (part.info.origin if part.info is not None else _own_origin(train)),
                algorithm=algorithm,
                params=dataclasses.asdict(record),
                score_kind=kind,
                confidence=_network_confidence(part),
            ),
        )
    return scored


def _own_origin(train: FeatureSet) -> Origin:
    """A user's own features are named by their content."""
    return Origin(data=f"own-{train.fingerprint[:8]}", protocol="", training="")


def _network_confidence(part: FeatureSet) -> dict[str, float | None] | None:
    if part.logits is None:
        return None
    probabilities = softmax(part.logits)
    found = confidence(part.labels, probabilities, n_known=part.n_known)
    unknown = confidence(part.labels, probabilities, n_known=part.n_known, negative_labels=(UNKNOWN,)).negative
    values = found._asdict() | {"unknown": unknown}
    return {name: None if math.isnan(value) else value for name, value in values.items()}
