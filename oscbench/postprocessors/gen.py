"""GEN: a generalised entropy of the largest probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oscbench.errors import UsageError
from oscbench.notes import Note
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Posthoc, Rows, TrainingRows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GenParams:
    """The defaults are those of the paper for ImageNet.

    Attributes:
        gamma: Power; the smaller, the more small probabilities count.
        top: M, how many of the largest probabilities count.
    """

    gamma: float = 0.1
    top: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.gamma < np.inf:
            raise UsageError(f"gamma must be > 0 and finite, got {self.gamma}")
        if self.top < 1:
            raise UsageError(f"top must be >= 1, got {self.top}")


def log_entropy_terms(logits: Array) -> torch.Tensor:
    """(N, K) ln p + ln(1 - p) of the softmax, by falling p; exact also where p rounds to 1.

    The largest probability is 1 / (1 + r), r the sum of the other exponentials relative to its own, so that its terms
    are logarithms of r and 1 + r; all others are at most 1/2.
    """
    import torch

    below = torch.from_numpy(-np.sort(-logits, axis=1))  # numpy's sort is several times faster than torch's
    below = below - below[:, :1]
    powers = torch.exp(below[:, 1:])
    rest = powers.sum(dim=1, keepdim=True)
    log_total = torch.log1p(rest)
    others = below[:, 1:] - log_total + torch.log1p(-powers / (1 + rest))
    return torch.cat([torch.log(rest) - 2 * log_total, others], dim=1)  # rest 0: p is 1, the term 0


def entropies(terms: torch.Tensor, gamma: float) -> Array:
    """(N, K) sum over the M largest p of p^gamma (1 - p)^gamma, for every M = 1..K."""
    import torch

    return np.asarray(torch.cumsum(torch.exp(gamma * terms), dim=1).numpy())


@POSTPROCESSORS.register(
    "gen",
    label="GEN",
    params=GenParams,
    paper="openreview Sie7oeTABS",
    needs={"logits"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="logits",
    about=About(
        "A generalised entropy of the probabilities, in which small ones count more than in Shannon's.",
        "-sum over the largest p, as many as top says, of p^gamma (1 - p)^gamma",
        "Many classes and sure networks: small probabilities tell rows apart for which MSS is 1 alike.",
        "Few classes, or networks whose small logits are noise.",
    ),
)
class Gen(Posthoc):
    """Minus the generalised entropy of the M largest probabilities over the known classes (Liu et al. 2023).

    In logarithms, so that probabilities that round to 1 still differ. With a garbage output inside the softmax a row
    that is surely garbage would get the best score there is, so only the known logits count.
    """

    name = "gen"

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        self._n_known = rows.n_known

    def bent(self) -> Iterator[Note]:
        """See ``Posthoc``."""
        clipped = [setting.top for setting in self.settings if setting.top > self._n_known]
        if clipped:
            yield Note(
                "GEN: top up to {} clipped to {} classes in {} settings", (max(clipped), self._n_known, len(clipped))
            )

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 8 * self._n_known + len(self.settings)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        terms = log_entropy_terms(rows.logits)
        sums = {gamma: entropies(terms, gamma) for gamma in {setting.gamma for setting in self.settings}}
        return np.stack([-sums[s.gamma][:, min(s.top, self._n_known) - 1] for s in self.settings], axis=1)
