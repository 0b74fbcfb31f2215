"""CoP and CoRP: the error of reconstructing a unit row from principal directions, plain or of random features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import UsageError
from oscbench.numerics.principal import principal_directions, residual_squares
from oscbench.postprocessors.base import POSTPROCESSORS, About
from oscbench.postprocessors.posthoc import Array, Posthoc, Rows, SharedFit, TrainingRows


@dataclass(frozen=True, kw_only=True)
class CopParams:
    """``variance``: share of the training rows' variance that the directions explain; the authors' for ImageNet."""

    variance: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.variance < 1:
            raise UsageError(f"variance must be in (0, 1), got {self.variance}")


@dataclass(frozen=True, kw_only=True)
class CorpParams(CopParams):
    """Hyperparameters of CoRP; variance and gamma are the authors' for ImageNet.

    Attributes:
        variance: Share of the variance of the random features that the directions explain.
        gamma: Of the Gaussian kernel exp(-gamma |x - y|^2) that the random features stand for.
        random_features: How many cosines stand for the kernel. The authors have 2048 and 4096; time grows with the
            square, and for networks of 256 features 512 is as many for each as theirs.
        seed: Of the draws of those cosines.
    """

    variance: float = 0.5
    gamma: float = 3.0
    random_features: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gamma < np.inf:
            raise UsageError(f"gamma must be > 0 and finite, got {self.gamma}")
        if self.random_features < 2:
            raise UsageError(f"random_features must be >= 2, got {self.random_features}")
        if self.seed < 0:
            raise UsageError(f"seed must be 0 or above, got {self.seed}")


@dataclass(frozen=True, eq=False)
class _Reconstruction:
    """Mean (M,), principal directions (M, M) and the share of variance (M,) that the first of them explain."""

    mean: Array
    directions: Array
    explained: Array

    @classmethod
    def of(cls, blocks: Callable[[], Iterator[Array]]) -> _Reconstruction:
        sums, count = np.zeros(1), 0
        for block in blocks():
            sums, count = sums + block.sum(axis=0), count + len(block)
        mean = sums / count
        values, directions = principal_directions(block - mean for block in blocks())
        shares = np.maximum(values, 0.0)
        return cls(mean, directions, np.cumsum(shares) / max(shares.sum(), np.finfo(np.float64).tiny))

    def errors(self, rows: Array, variances: Sequence[float]) -> Array:
        """(N, len(variances)) length of what the directions that explain each share leave over."""
        squares = residual_squares((rows - self.mean) @ self.directions)
        dims = np.searchsorted(self.explained, variances, side="left") + 1
        return np.sqrt(squares[:, np.minimum(dims, len(self.mean) - 1)])


class _ByReconstruction(Posthoc):
    """Minus the reconstruction error of the unit rows, or of what they are mapped to."""

    def learn(self, rows: TrainingRows) -> None:
        """See ``Posthoc``."""
        width = rows.stored().shape[1]
        self._draws: dict[Any, tuple[Array, Array]] = {}
        self._found = {}
        for key in dict.fromkeys(map(self._map_of, self.settings)):
            if key is not None:
                _, count, seed = key
                self._draws[key] = draw(count, seed, width)
            values = max(width, 0 if key is None else key[1])

            def blocks(key: Any = key, values: int = values) -> Iterator[Array]:
                return (self._mapped(block.unit_features(), key) for _, block in rows.blocks(values))

            self._found[key] = _Reconstruction.of(blocks)

    def scores(self, rows: Rows) -> Array:
        """See ``Posthoc``."""
        units, scores = rows.unit_features(), np.empty((len(rows), len(self.settings)))
        for key in dict.fromkeys(map(self._map_of, self.settings)):
            chosen = [s for s, setting in enumerate(self.settings) if self._map_of(setting) == key]
            variances = [self.settings[s].variance for s in chosen]
            scores[:, chosen] = -self._found[key].errors(self._mapped(units, key), variances)
        return scores

    def values_per_row(self, width: int) -> int:
        """See ``Posthoc``."""
        return 4 * max(width, *(len(found.mean) for found in self._found.values()))

    def _map_of(self, setting: Any) -> Any:
        """What decides the features that are reconstructed; ``None``: the unit rows themselves."""
        return None

    def _mapped(self, units: Array, key: Any) -> Array:
        return units if key is None else random_features(units, key[0], *self._draws[key])


@POSTPROCESSORS.register(
    "cop",
    label="CoP",
    params=CopParams,
    paper="arXiv:2402.02949",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "The part of a unit row that the principal directions of the training rows cannot reconstruct.",
        "-|x - V V' x|, x = z / |z| - mean",
        "Unknowns outside the span of the known rows, whatever the length of their features.",
        "Unknowns inside that span; small networks that use all directions.",
    ),
)
class Cop(_ByReconstruction, SharedFit):
    """Minus the reconstruction error of a unit row from the directions that explain a share of variance (Fang 2024)."""

    name = "cop"


@POSTPROCESSORS.register(
    "corp",
    label="CoRP",
    params=CorpParams,
    paper="arXiv:2402.02949",
    needs={"logits", "pooled"},
    score_kinds=("native",),
    per_class=False,
    one_pass=True,
    cost="classes",
    about=About(
        "CoP with a Gaussian kernel, by random features: known rows need not lie in a flat subspace.",
        "-|x - V V' x|, x = sqrt(2 / M) cos(sqrt(2 gamma) G z / |z| + phase) - mean",
        "Wide networks with many training rows.",
        "Few training rows; results depend on the random draws, so compare seeds.",
    ),
)
class Corp(_ByReconstruction):
    """Minus the reconstruction error of random Fourier features of a unit row (Fang 2024).

    Draws depend on ``seed``; the authors' program leaves them unseeded.
    """

    name = "corp"

    def _map_of(self, setting: Any) -> Any:
        return setting.gamma, setting.random_features, setting.seed


def draw(count: int, seed: int, width: int) -> tuple[Array, Array]:
    """Normal numbers (width, count) and phases (count,)."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((width, count)), rng.uniform(0.0, 2 * np.pi, count)


def random_features(units: Array, gamma: float, normal: Array, phase: Array) -> NDArray[np.float64]:
    """(N, M) features whose products are near exp(-gamma |x - y|^2)."""
    angles = np.sqrt(2 * gamma) * (units @ normal) + phase
    return np.asarray(np.sqrt(2 / len(phase)) * np.cos(angles))
