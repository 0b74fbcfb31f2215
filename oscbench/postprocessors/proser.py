"""PROSER: a network fine-tuned with placeholders, of which the strongest is the logit of "unknown"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.postprocessors.base import DEMO_RECIPE, POSTPROCESSORS, About, finite_logits
from oscbench.postprocessors.max_score import MaximumSoftmaxScore
from oscbench.records import check_choices

RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "published": {},
    DEMO_RECIPE: {"epochs": 3, "learning_rate": 1e-3},
    "authors": {"fine_tuning": "authors", "lambda0": 0.01, "learning_rate": 1e-3, "epochs": 10},
}
"""What each recipe sets otherwise than the defaults of ``ProserParams``.

The embedded data's small networks are trained for 9 epochs, not 120, and are fine-tuned for fewer likewise.
"""


@dataclass(frozen=True, kw_only=True)
class ProserParams:
    """One fine-tuning; the defaults are those of the evaluation paper's code.

    Attributes:
        dummies: B, the outputs beside those of the known classes.
        fine_tuning: ``authors`` does as the code of PROSER's authors: every dummy counts in the first two terms of the
            loss and not the strongest alone, pairs of one class are mixed too, the optimiser starts anew each epoch.
        trunk: ``frozen`` leaves the first three stages and their batch statistics as they are, so that fine-tunings
            with other numbers of dummies can share the pass through them.
        lambda0: Weight of mixed samples being unknown.
        lambda1: Weight of clean samples being their class.
        lambda2: Weight of clean samples being unknown once their class is out of the question.
        mix_alpha: Both parameters of the Beta distribution from which a batch's share is drawn; 1 is uniform.
        learning_rate: Of the fine-tuning; 1e-4 is a tenth of the published base training's.
        epochs: Passes over the known training samples.
    """

    dummies: int = 5
    fine_tuning: Literal["published", "authors"] = "published"
    trunk: Literal["trained", "frozen"] = "trained"
    lambda0: float = 0.1
    lambda1: float = 1.0
    lambda2: float = 1.0
    mix_alpha: float = 1.0
    learning_rate: float = 1e-4
    epochs: int = 20

    def __post_init__(self) -> None:
        for name in ("dummies", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mix_alpha", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be finite and > 0, got {getattr(self, name)}")
        for name in ("lambda0", "lambda1", "lambda2"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        check_choices(self)


@POSTPROCESSORS.register(
    "proser",
    label="PROSER",
    params=ProserParams,
    paper="arXiv:2103.15086",
    needs={"logits"},
    score_kinds=("log", "probability", "published"),
    fine_tunes=True,
    recipes=RECIPES,
    cost="training",
    about=About(
        "Fine-tuning with placeholders: extra outputs learn what lies between the classes and stand for unknown.",
        "max_k exp(l_k) / (sum_c exp(l_c) + exp(max_b d_b)), d the logits of the dummies",
        "Trainings without negatives, where nothing has told the network about the outside yet.",
        "Trainings that used negatives: it sees known classes alone and undoes part of that. A training per setting.",
    ),
)
class Proser(MaximumSoftmaxScore):
    """Softmax over K known logits and the strongest dummy's, of which the first K are the scores (Zhou et al. 2021).

    All learning is in the network (``training/proser.py``): its features have K + 1 logits.
    """

    name = "proser"

    def fit(self, train: FeatureSet) -> Self:
        """Checks that the features are those of a fine-tuned network; there is nothing more to learn."""
        width = finite_logits(train, "PROSER").shape[1]
        if width != train.n_known + 1 or train.head is not None:  # a garbage network's are as many, and linear
            raise UsageError(
                f"PROSER needs {train.n_known} known logits and the strongest dummy's, these features have {width} "
                "logits; `oscbench tune --alg proser` fine-tunes the network"
            )
        return super().fit(train)
