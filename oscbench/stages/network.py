"""Networks: whatever comes after does not care whether one was trained here or given as a file."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from oscbench.losses import LOSSES
from oscbench.origin import Origin
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage


class NetworkConfig(Protocol):
    """What the records of all networks have."""

    @property
    def loss(self) -> str:
        """Name of the loss it was trained with."""
        ...

    @property
    def seed(self) -> int:
        """Seed under which its results are shown."""
        ...


C = TypeVar("C", bound=NetworkConfig)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, eq=False)
class Network(Stage[C, R]):
    """A stage whose folder holds trained weights.

    Attributes:
        samples: The data it is used on.
        demo: Whether that is embedded demonstration data.
    """

    samples: Samples
    demo: bool

    @property
    @abstractmethod
    def weights(self) -> Path:
        """The checkpoint file that later stages use."""

    @property
    @abstractmethod
    def recipe(self) -> str:
        """How it was trained, as tables name it."""

    @property
    @abstractmethod
    def view(self) -> NetworkView:
        """How its images must look."""

    @property
    def origin(self) -> Origin:
        """What tables say about everything that comes from this network."""
        return Origin(
            data=self.room.data,
            protocol=self.room.protocol,
            training=self.config.loss,
            seed=self.config.seed,
            network=self.view.network,
            recipe=self.recipe,
            train=self.fingerprint,
            demo=self.demo,
        )

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits."""
        return LOSSES.get(self.config.loss).n_outputs(self.samples.protocol.n_known)

    @property
    def what(self) -> str:
        """Protocol and loss in words, for messages."""
        return f"protocol {self.samples.protocol.slug} with loss {self.config.loss}"

    @property
    def alias(self) -> str:
        """One name for trained and given networks: the newest of either is in use."""
        return f"{self.config.loss}/s{self.config.seed}/train"


@dataclass(frozen=True, kw_only=True)
class NetworkView:
    """Architecture of a network and how its images must look."""

    network: str
    crop: int
    stored_side: int
    normalise: bool = False
