"""Searches on feature sets in memory, each in the folder that its stage would give it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscbench.features import FeatureSet
from oscbench.origin import Origin
from oscbench.records import fingerprint
from oscbench.tuning.evaluator import Nobody, SharedFeatures
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.trials import read_trials


class Unwatched(Nobody):
    """The view of a search that nobody looks at."""

    def begin(self, run: SearchRun) -> None:
        """Says nothing."""

    def end(self, run: SearchRun) -> None:
        """Says nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSearch(Search):
    """A search with the features that its stage would load."""

    train: FeatureSet
    validation: FeatureSet


def make_search(
    runs: Path,
    *,
    data: str = "own",
    protocol: str = "own",
    training: str = "softmax",
    seed: int = 0,
    demo: bool = False,
    **fields: Any,
) -> FeatureSearch:
    """A search whose folder depends on everything that decides its table."""
    origin = Origin(data=data, protocol=protocol, training=training, seed=seed, demo=demo)
    train, validation = fields.pop("train"), fields.pop("validation")
    features = fingerprint("features", {}, {"train": train.fingerprint, "val": validation.fingerprint})
    kind = fields.get("kind", "grid")
    config = {
        "algorithm": fields["algorithm"],
        "search": kind,
        "space": fields["space"].described(kind),
        "rule": fields.get("rule", "inclusive"),
        "score_kind": fields.get("score_kind", "log"),
        "generation": fields.get("generation", 0) if kind == "optuna" else 0,
        "training": training,
        "seed": seed,
    }
    named = fingerprint("tune", config, {"features": features})
    folder = runs / data / protocol / f"tune-{named[:8]}"
    return FeatureSearch(
        origin=origin,
        folder=folder,
        fingerprint=named,
        features=features,
        train=train,
        validation=validation,
        validation_labels=validation.labels,
        **fields,
    )


def shared(search: FeatureSearch, *, memory: int | None = None) -> SharedFeatures:
    """What evaluates the settings of such a search."""
    return SharedFeatures.of(search, search.train, search.validation, memory=memory)


def is_finished(search: Search) -> bool:
    """Whether every trial is in the journal."""
    table = read_trials(search.folder / "trials.csv")
    return int((table["status"] == "done").sum()) >= search.total
