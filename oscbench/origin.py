"""Where features and scores come from: the data, the protocol and the training, as every table names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEST_EPOCH: Final = "; best epoch"
"""Ends the recipe of a network that is taken at its best epoch beside its last."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The training behind features or scores, and what it was trained on; ``""`` for what is not known.

    Attributes:
        data: Name of the data below the runs folder.
        protocol: Slug of the protocol.
        training: Name of the loss.
        seed: Of the training.
        network: Name of the architecture.
        recipe: Name of the training recipe.
        train: Fingerprint of the training: two with equal names may still be two.
        demo: Whether the data are the embedded demonstration data, which say nothing about real images. A flag of its
            own, since users choose the names of their data.
    """

    data: str
    protocol: str
    training: str
    seed: int | None = None
    network: str = ""
    recipe: str = ""
    train: str = ""
    demo: bool = False

    @property
    def at_best_epoch(self) -> bool:
        """Whether the network is taken at its best epoch instead of its last."""
        return self.recipe.endswith(BEST_EPOCH)

    @property
    def heading(self) -> str:
        """One line that names the data; demo data are headed so.

        >>> Origin(data="demographics", protocol="p1", training="eos").heading
        'Data: demographics p1'
        """
        named = f"{self.data} {self.protocol}".rstrip()
        return f"DEMO DATA, not a result about real images: {named}" if self.demo else f"Data: {named}"
