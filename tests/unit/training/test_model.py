"""Networks: published names, shapes, embedding size, refusals."""

from __future__ import annotations

import pytest
import torch

from oscbench.errors import UsageError
from oscbench.training.model import build_network


def test_resnet50_has_the_names_and_shapes_of_published_checkpoints() -> None:
    with torch.device("meta"):
        state = build_network("resnet50", 116).state_dict()
    assert state["resnet_base.conv1.weight"].shape == (64, 3, 7, 7)
    assert state["resnet_base.layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    assert state["resnet_base.fc.weight"].shape == (116, 2048)
    assert state["resnet_base.fc.bias"].shape == (116,)
    assert state["logits.weight"].shape == (116, 116)
    assert "logits.bias" not in state
    assert {name.partition(".")[0] for name in state} == {"resnet_base", "logits"}


@pytest.mark.parametrize(("name", "pooled"), [("tiny", 128), ("resnet18", 512), ("mobilenet_v3_small", 1024)])
def test_outputs_are_logits_embedding_and_pooled(name: str, pooled: int) -> None:
    torch.manual_seed(0)
    network = build_network(name, 7, embedding_size=5).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        logits, embedding, features = network(images)
    assert (logits.shape, embedding.shape, features.shape) == ((2, 7), (2, 5), (2, pooled))
    assert network.pooled_size == pooled
    torch.testing.assert_close(logits, embedding @ network.logits.weight.T)


def test_the_embedding_is_the_linear_image_of_the_pooled_vector() -> None:
    network = build_network("resnet18", 4).eval()
    with torch.no_grad():
        _, embedding, pooled = network(torch.rand(2, 3, 64, 64))
        torch.testing.assert_close(
            embedding, torch.nn.functional.linear(pooled, network.resnet_base.fc.weight, network.resnet_base.fc.bias)
        )
    assert network.embedding_size == network.n_outputs == 4


def test_names_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        build_network("resnet500", 3)
    with pytest.raises(UsageError, match="SqueezeNet ends in .* not in a linear layer"):
        build_network("squeezenet1_0", 3)
    with pytest.raises(UsageError, match="at least 1 dimension, got 0"):
        build_network("tiny", 3, embedding_size=0)
