"""Networks: a trunk, a linear embedding and logits without bias; parameter names as in published checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from oscbench.errors import UsageError
from oscbench.registry import nearest

TINY_WIDTHS = (16, 32, 64, 128)
"""Channels of the four stages of ``tiny``."""


class EmbeddingLayer(nn.Linear):
    """The trunk's last linear layer; it also hands on its input, the pooled vector.

    Torchvision's classifiers return what their last layer returns, so no trunk needs a forward pass of its own.
    """

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(B, D) embedding and (B, P) pooled vector."""
        return super().forward(pooled), pooled


class Classifier(nn.Module):
    """A network whose forward pass gives (N, C) logits, (N, D) embedding and (N, P) pooled vector of images."""

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits."""
        raise NotImplementedError


class OpenSetNetwork(Classifier):
    """Trunk, embedding and logits.

    The trunk is called ``resnet_base`` for every network: that is its name in published checkpoint files.
    """

    def __init__(self, trunk: nn.Module, embedding_size: int, n_outputs: int) -> None:
        super().__init__()
        self.resnet_base = trunk
        self.logits = nn.Linear(embedding_size, n_outputs, bias=False)
        self.pooled_size = _replace_classifier(trunk, embedding_size)

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits."""
        return self.logits.out_features

    @property
    def embedding_size(self) -> int:
        """D, the width of the embedding."""
        return self.logits.in_features

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, C) logits, (B, D) embedding and (B, P) pooled vector of (B, 3, H, W) images."""
        embedding, pooled = self.resnet_base(images)
        return self.logits(embedding), embedding, pooled


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut; the first one halves the resolution where ``stride`` is 2."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(residual + self.downsample(x))


class TinyTrunk(nn.Module):
    """A four-stage residual network for images of about 40 pixels: the embedded data's default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, TINY_WIDTHS[0], 5, 2, 2, bias=False)  # 40 -> 20
        self.bn1 = nn.BatchNorm2d(TINY_WIDTHS[0])
        self.maxpool = nn.MaxPool2d(3, 2, 1)  # 20 -> 10
        widths = (TINY_WIDTHS[0], *TINY_WIDTHS)
        stages = [
            _Block(n_in, n_out, stride=1 if stage == 0 else 2)  # 10, 5, 3, 2
            for stage, (n_in, n_out) in enumerate(zip(widths, TINY_WIDTHS, strict=False))
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(TINY_WIDTHS[-1], 1000)

    def forward(self, images: Tensor) -> Tensor:
        """What the last layer makes of the mean over all places of the last stage."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(x.mean(dim=(2, 3)))
        return out


def network_names() -> list[str]:
    """All networks that can be built: ``tiny`` and torchvision's classifiers."""
    from oscbench.torchvision_import import torchvision  # a second that ``tiny`` can do without

    return ["tiny", *torchvision.models.list_models(module=torchvision.models)]


def build_network(name: str, n_outputs: int, embedding_size: int | None = None) -> OpenSetNetwork:
    """A freshly initialised network, from torch's current random state.

    Args:
        name: ``tiny``, ``resnet50`` or any torchvision classifier.
        n_outputs: C, from the loss (``LossSpec.n_outputs``).
        embedding_size: D; as published it equals C, the default.
    """
    if embedding_size is not None and embedding_size < 1:
        raise UsageError(f"the embedding needs at least 1 dimension, got {embedding_size}")
    return OpenSetNetwork(_trunk_maker(name)(), embedding_size or n_outputs, n_outputs)


def network_without_weights(name: str, n_outputs: int) -> OpenSetNetwork:
    """A network that can be looked at and not computed with: its weights take no memory and no time."""
    try:
        with torch.device("meta"):
            return build_network(name, n_outputs)
    except NotImplementedError:  # RegNet computes its widths by tensors, which must be somewhere
        return build_network(name, n_outputs).to("meta")


def _trunk_maker(name: str) -> Callable[[], nn.Module]:
    if name == "tiny":
        return TinyTrunk
    from oscbench.torchvision_import import torchvision

    names = network_names()
    if name not in names:
        raise UsageError(f"unknown network {name!r}{nearest(name, names)} (tiny or a torchvision classifier)")
    has_aux = name in ("googlenet", "inception_v3")  # auxiliary outputs would come back beside the logits
    options = {"aux_logits": False} if has_aux else {}
    return lambda: torchvision.models.get_model(name, weights=None, **options)


def _replace_classifier(trunk: nn.Module, embedding_size: int) -> int:
    """Puts the embedding in place of the trunk's last layer; returns the width of what goes into it."""
    name, layer = list(trunk.named_modules())[-1]
    if not isinstance(layer, nn.Linear):
        raise UsageError(
            f"{type(trunk).__name__} ends in {type(layer).__name__}, not in a linear layer; choose another network"
        )
    parent, _, attribute = name.rpartition(".")
    setattr(trunk.get_submodule(parent), attribute, EmbeddingLayer(layer.in_features, embedding_size))
    return layer.in_features
