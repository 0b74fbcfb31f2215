"""The published best setting of each algorithm, protocol and training, for warm starts and for comparison."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from oscbench.artifacts import write_text
from oscbench.records import from_mapping
from oscbench.tuning.space import Setting

if TYPE_CHECKING:
    from oscbench.features import FeatureSet
    from oscbench.tuning.search import Search

log = logging.getLogger(__name__)

SOURCE = "Table 1 of 'Large-Scale Evaluation of Open-Set Image Classification Techniques', on ImageNet"

FILE = "published.json"
"""In a search's folder: what the published setting reaches there, by the rule and score behind the published sum."""

_WHOLE = ("tail_size", "alpha", "dummies")
_REAL = ("distance_multiplier", "cover_threshold")


@dataclass(frozen=True)
class Published:
    """One row of that table: the setting with the largest sum of the four CCR on the validation set."""

    setting: Setting
    sum: float


def published_best(algorithm: str, protocol: str, training: str) -> Published | None:
    """The published optimum, or ``None`` where none was published.

    Args:
        algorithm: For example ``evm``.
        protocol: ``p1``, ``p2`` or ``p3``, as the runs folder names them; any other has no published figures.
        training: ``softmax``, ``garbage`` or ``eos``.

    >>> published_best("evm", "p1", "softmax")
    Published(setting={'tail_size': 1000, 'distance_multiplier': 0.4, 'cover_threshold': 1.0}, sum=1.5068)
    """
    text = (resources.files("oscbench.tuning") / "data" / "published_best.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if (row["algorithm"], f"p{row['protocol']}", row["training"]) == (algorithm, protocol, training):
            setting: Setting = {name: int(row[name]) for name in _WHOLE if row[name]}
            setting |= {name: float(row[name]) for name in _REAL if row[name]}
            ordered = {name: setting[name] for name in row if name in setting}
            return Published(ordered, float(row["sum"]))
    return None


# --- by the same rule ------------------------------------------------------------------------------------------------


def by_the_paper(rule: str, score_kind: str) -> bool:
    """Whether sums by this rule and kind of score are those of the paper's code."""
    return rule == score_kind == "published"


@dataclass(frozen=True, kw_only=True)
class SameRule:
    """Two settings on the validation features of a search, by the rule and kind of score of the published sum.

    Attributes:
        published: Sum of the published setting.
        best: Sum of the search's best one, which was chosen by the search's own rule.
        rule: How CCR was read.
        score_kind: Score the curve was made of.
    """

    published: float
    best: float
    rule: str = "published"
    score_kind: str = "published"

    @classmethod
    def read(cls, folder: Path) -> SameRule | None:
        """What a search's folder says; ``None`` where nothing was computed."""
        path = folder / FILE
        if not path.exists():
            return None
        return from_mapping(cls, json.loads(path.read_text(encoding="utf-8")), str(path))


def compare_with_published(
    search: Search, best: Setting, train: FeatureSet, validation: FeatureSet, *, memory: int | None = None
) -> None:
    """Writes ``published.json``: two settings, evaluated once more by the rule and score behind the published sum.

    Sums by different rules must not be compared, and a table of trials has its own rule alone. Nothing is written
    where nothing is published, where the search itself went by the paper's rule, or where a setting fails here.

    Args:
        search: The finished search.
        best: Its best setting.
        train: Rows to fit on.
        validation: Rows to score.
        memory: Bytes that distances and fits may take.
    """
    from oscbench.postprocessors.base import usable_score_kind  # those read the published settings alone
    from oscbench.tuning.evaluator import EvaluationOptions, SharedFeatures

    if search.published is None or by_the_paper(search.rule, search.score_kind):
        return
    log.info("evaluating the published setting and the best one by the published rule")
    kind = usable_score_kind(search.algorithm, "published")
    settings = [search.complete(search.published.setting), search.complete(best)]
    options = EvaluationOptions(rule="published", score_kind=kind, expected=tuple(settings), memory=memory)
    evaluator = SharedFeatures(search.algorithm, train, validation, options)
    try:
        outcomes = evaluator(settings)
    finally:
        evaluator.clean_up()
    failed = [str(outcome["error"]) for outcome in outcomes if "error" in outcome]
    if failed:
        log.warning("no comparison with the published setting: %s", failed[0])
        return
    published, own = (outcome["sum"] for outcome in outcomes)
    found = SameRule(published=published, best=own, score_kind=kind)
    write_text(search.folder / FILE, json.dumps(dataclasses.asdict(found)) + "\n")
