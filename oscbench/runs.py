"""What a report is about: scores by split, from folders or made from features now, and how tables name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from oscbench.artifacts import is_complete
from oscbench.data.synthetic import demo_features
from oscbench.errors import UsageError
from oscbench.features import SET, FeatureSet, load_feature_folder
from oscbench.origin import Origin
from oscbench.scores import ScoreSet
from oscbench.scoring import fit_and_score

DEMO = "demo"
"""Stands for the synthetic data wherever a folder of scores or features is asked for."""

_OF_ONE_SPLIT = (SET, "scores.npy", "prediction.npy")


def load_scores(folder: str | Path) -> dict[str, ScoreSet]:
    """Score sets by split: ``folder/val`` and ``folder/test``, or ``folder`` itself; ``demo``: MSS on synthetic data.

    A folder that is a score set itself is called by the split its ``set.json`` names, else ``scores``.

    >>> {split: scores.scores.shape for split, scores in load_scores("demo").items()}
    {'val': (1200, 20), 'test': (2250, 20)}
    """
    if folder == DEMO:
        return fit_and_score(demo_features(), "mss", {})
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"score folder {path} does not exist; give a folder with scores.npy, or with val/ and test/")
    found = {split: ScoreSet.load(path / split) for split in ("val", "test") if (path / split).is_dir()}
    if not found and (is_complete(path) or any((path / name).exists() for name in _OF_ONE_SPLIT)):
        scores = ScoreSet.load(path)
        return {scores.info.split if scores.info is not None else "scores": scores}
    if not found:
        raise UsageError(f"{path} holds neither scores.npy nor a folder val/ or test/; is it a folder of scores?")
    widths = {split: scores.n_known for split, scores in found.items()}
    if len(set(widths.values())) > 1:
        raise UsageError(f"{path}: val has {widths['val']} known classes, test has {widths['test']}")
    return found


def load_features(folder: str | Path) -> dict[str, FeatureSet]:
    """Feature sets by split of ``folder/{train,val,test}``; ``demo`` for the synthetic ones.

    >>> {split: len(rows) for split, rows in load_features("demo").items()}
    {'train': 1800, 'val': 1200, 'test': 2250}
    """
    if folder == DEMO:
        return demo_features()
    return load_feature_folder(Path(folder)).by_name()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTitle:
    """What a table says about the scores it was made from."""

    origin: Origin
    algorithm: str
    params: dict[str, Any]
    score_kind: str

    @property
    def label(self) -> str:
        """Name of the curve: algorithm, and training where it is known."""
        return f"{self.algorithm}, {self.origin.training}" if self.origin.training else self.algorithm

    def document(self) -> dict[str, Any]:
        """The title as a plain flat mapping, for programs."""
        own = {"algorithm": self.algorithm, "params": self.params, "score_kind": self.score_kind}
        return dataclasses.asdict(self.origin) | own


def title_of(scores: ScoreSet, folder: str | Path) -> RunTitle:
    """What to call scores, by their ``set.json``; own scores are named by their folder."""
    info = scores.info
    if info is None:
        origin = Origin(data=f"own scores in {folder}", protocol="", training="")
        return RunTitle(origin=origin, algorithm=Path(folder).name, params={}, score_kind="not named")
    return RunTitle(origin=info.origin, algorithm=info.algorithm, params=info.params, score_kind=info.score_kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Scores of one algorithm by split, and what to call them."""

    title: RunTitle
    splits: dict[str, ScoreSet]


def runs_from_scores(folders: Sequence[str | Path]) -> list[Run]:
    """A run for each folder of scores."""
    runs = []
    for folder in folders:
        splits = load_scores(folder)
        runs.append(Run(title=title_of(next(iter(splits.values())), folder), splits=splits))
    return runs


def runs_from_features(
    folder: str | Path,
    algorithms: Sequence[str],
    params: Mapping[str, Any],
    *,
    score_kind: str | None = None,
    trying: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> list[Run]:
    """A run for each algorithm on one folder of features; parameters go to the only algorithm.

    Args:
        folder: With ``train/``, ``val/`` and ``test/``, or ``demo``.
        algorithms: Registered post-processors.
        params: Hyperparameters by name.
        score_kind: Default: the method's first.
        trying: Around each algorithm; may take its error, and the others go on.
    """
    if params and len(algorithms) > 1:
        raise UsageError(f"parameters {', '.join(params)} with {len(algorithms)} algorithms; give one --alg with --set")
    features = load_features(folder)
    runs = []
    for algorithm in algorithms:
        with trying(algorithm):
            splits = fit_and_score(features, algorithm, params, score_kind=score_kind)
            runs.append(Run(title=title_of(splits["val"], folder), splits=splits))
    return runs


def save_scores(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Writes ``folder/{val,test}``, or ``folder/<algorithm>/{val,test}`` of several runs; each whole or not at all.

    Returns:
        The folder of each run.
    """
    targets = [folder] if len(runs) == 1 else [folder / run.title.algorithm for run in runs]
    for run, target in zip(runs, targets, strict=True):
        for split, scores in run.splits.items():
            scores.save(target / split)
    return targets
