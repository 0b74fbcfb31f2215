"""A training at its best epoch: the protocols paper shows both that one and the last."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscbench.origin import BEST_EPOCH
from oscbench.records import sha256_file
from oscbench.stages.features import AnyFeatures, Features
from oscbench.stages.network import Network, NetworkView
from oscbench.stages.runner import Session
from oscbench.stages.stage import Stage
from oscbench.stages.training import Training
from oscbench.training.checkpoint import BEST, LAST


@dataclass(frozen=True, kw_only=True)
class BestEpochConfig:
    """What decides it, besides the training.

    Attributes:
        loss: Of the training.
        seed: Likewise.
    """

    loss: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class BestEpochResult:
    """Which epoch it is, and the SHA-256 of the weights."""

    epoch: int
    weights: str


@dataclass(frozen=True, kw_only=True, eq=False)
class BestEpoch(Network[BestEpochConfig, BestEpochResult]):
    """The weights with the best validation gamma, which a training keeps beside the last ones.

    Attributes:
        training: Which; the same stage as among the inputs.
    """

    name = "best-epoch"
    config_type, result_type = BestEpochConfig, BestEpochResult

    training: Training

    @classmethod
    def of(cls, training: Training) -> BestEpoch:
        """The best epoch of a training."""
        config = BestEpochConfig(loss=training.config.loss, seed=training.config.seed)
        inputs: Mapping[str, Stage[Any, Any]] = {"train": training}
        return cls(
            room=training.room,
            config=config,
            inputs=inputs,
            samples=training.samples,
            demo=training.demo,
            training=training,
        )

    @property
    def weights(self) -> Path:
        """A copy of the training's."""
        return self.folder / LAST

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return f"{self.training.recipe}{BEST_EPOCH}"

    @property
    def view(self) -> NetworkView:
        """See ``Network.view``."""
        return self.training.view

    @property
    def alias_root(self) -> str:
        """See ``Network.alias_root``."""
        return f"{self.training.alias_root}/best-epoch"

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"best epoch of {self.training.folder}"

    def content(self, result: BestEpochResult) -> str:
        """The weights."""
        return result.weights[:16]

    def make(self, work: Path, session: Session) -> BestEpochResult:
        """Copies the file: a training that is made anew would write to it."""
        shutil.copyfile(self.training.folder / BEST, work / LAST)
        epoch = self.training.result.best["epoch"]
        assert epoch is not None, "every epoch has a number"
        return BestEpochResult(epoch=int(epoch), weights=sha256_file(work / LAST))


def at_best_epoch(features: AnyFeatures) -> Features | None:
    """The features of the same training at its best epoch; ``None`` where there is none beside the last one."""
    if not isinstance(features, Features) or not isinstance(features.network, Training):
        return None
    if features.network.weights.name == BEST:  # chosen by the recipe already
        return None
    best = BestEpoch.of(features.network)
    return dataclasses.replace(features, inputs={**features.inputs, "train": best}, network=best)
