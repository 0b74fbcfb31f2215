"""How a network is trained: the published recipes, the embedded data's own, and the switches around them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from oscbench.errors import UsageError
from oscbench.registry import nearest

if TYPE_CHECKING:
    from oscbench.postprocessors.proser import ProserParams


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Optimisation settings; the defaults are the published recipe.

    Attributes:
        optimizer: Adam with betas 0.9 and 0.999, or SGD with momentum 0.9.
        learning_rate: Rate after warm-up.
        weight_decay: L2 penalty.
        epochs: Passes over the training set.
        batch_size: Samples per worker and forward pass.
        schedule: ``constant``, or ``cosine`` falling to zero.
        restart_epochs: Length of the first cosine period, each next one twice as long; ``None``: one period.
        warmup_epochs: Epochs over which the rate rises linearly from zero.
        label_smoothing: Share of a known sample's target that is spread over all outputs.
        randaugment: Operations and magnitude (0..30), or ``None``.
        normalise: Subtract ImageNet's mean and divide by its deviation.
        selection: Which checkpoint counts as the result: the last epoch's or that of the best validation gamma.
        patience: Stop after so many epochs without a better gamma; ``None``: never.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    epochs: int = 120
    batch_size: int = 64
    schedule: Literal["constant", "cosine"] = "constant"
    restart_epochs: int | None = None
    warmup_epochs: int = 0
    label_smoothing: float = 0.0
    randaugment: tuple[int, int] | None = None
    normalise: bool = False
    selection: Literal["last", "best"] = "last"
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "restart_epochs", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise UsageError(f"learning_rate must be > 0, got {self.learning_rate}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing must lie in [0, 1), got {self.label_smoothing}")
        if self.weight_decay < 0 or self.warmup_epochs < 0:
            raise UsageError("weight_decay and warmup_epochs must not be negative")

    def rate_at(self, epoch: float) -> float:
        """Learning rate at a moment: epochs passed, with fractions."""
        if epoch < self.warmup_epochs:
            return self.learning_rate * epoch / self.warmup_epochs
        if self.schedule == "constant":
            return self.learning_rate
        period = float(self.restart_epochs or max(self.epochs - self.warmup_epochs, 1))
        passed = epoch - self.warmup_epochs
        while passed >= period and self.restart_epochs is not None:
            passed, period = passed - period, 2 * period
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(passed / period, 1.0)))


RECIPES: Final[dict[str, Recipe]] = {
    "published": Recipe(),
    "published-sgd": Recipe(optimizer="sgd", batch_size=32),
    "demo": Recipe(learning_rate=2e-3, epochs=9, schedule="cosine", warmup_epochs=1),
}


def recipe_name(recipe: Recipe) -> str:
    """What tables call a recipe: its name, or that of the one it differs from in the fewest settings, with those.

    >>> recipe_name(dataclasses.replace(RECIPES["published"], epochs=5))
    'published, epochs=5'
    """
    values = dataclasses.asdict(recipe)
    changes = {
        name: {key: value for key, value in values.items() if value != getattr(known, key)}
        for name, known in RECIPES.items()
    }
    name = min(changes, key=lambda known: len(changes[known]))
    return ", ".join([name, *(f"{key}={value}" for key, value in changes[name].items())])


def recipe_by_name(name: str) -> Recipe:
    """The recipe called ``name``."""
    if name not in RECIPES:
        raise UsageError(f"unknown recipe {name!r}{nearest(name, RECIPES)} (one of {', '.join(RECIPES)})")
    return RECIPES[name]


def fine_tuning_recipe(params: ProserParams, *, normalise: bool) -> Recipe:
    """How PROSER fine-tunes a network: SGD at a constant rate, and the last epoch counts."""
    return Recipe(
        optimizer="sgd",
        learning_rate=params.learning_rate,
        weight_decay=5e-4,
        epochs=params.epochs,
        batch_size=32,
        normalise=normalise,
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides the weights of a training, besides its data.

    Attributes:
        loss: Name in the registry of losses.
        loss_params: The loss's own parameters.
        network: ``tiny`` or a torchvision classifier.
        embedding_size: Width of the embedding; ``None``: as many as outputs, as published.
        crop: Side of the square that the network sees.
        stored_side: Shorter side to which images are resized.
        recipe: Optimisation settings.
        workers: Processes that train together; each has its own batches and batch statistics.
        accumulate: Forward passes per update of the weights.
        sync_batchnorm: Share batch statistics between workers; GPUs only.
        mixed_precision: Half precision on GPUs; CPUs compute in single precision either way.
        init: SHA-256 of a checkpoint to start from.
        loader: Which image loader: the pixels of an FFCV file stored as JPEG are not those of the original images.
        seed: Seed of weights, order and augmentation.
    """

    loss: str = "softmax"
    loss_params: dict[str, Any] = field(default_factory=dict)
    network: str = "resnet50"
    embedding_size: int | None = None
    crop: int = 224
    stored_side: int = 256
    recipe: Recipe = field(default_factory=Recipe)
    workers: int = 1
    accumulate: int = 1
    sync_batchnorm: bool = False
    mixed_precision: bool = True
    init: str | None = None
    loader: Literal["ffcv", "pil"] = "pil"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.accumulate < 1:
            raise UsageError(f"workers and accumulate must be at least 1, got {self.workers} and {self.accumulate}")
        if self.seed < 0:
            raise UsageError(f"seed must not be negative, got {self.seed}")
