"""Checkpoint files: both ways between ours and the published format, damage, a full disk."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest
import torch

from oscbench.errors import OscbenchError, UsageError
from oscbench.training.checkpoint import BEST, LAST, Checkpoint, CheckpointOrigin, load_weights, publish_best
from oscbench.training.model import OpenSetNetwork, build_network
from oscbench.training.recipes import Recipe, TrainConfig


@pytest.fixture
def network() -> OpenSetNetwork:
    torch.manual_seed(3)
    return build_network("tiny", 4)


def published_file(path: Path, network: OpenSetNetwork, prefix: str = "") -> None:
    """What the published training code writes, key by key."""
    optimizer = torch.optim.Adam(network.parameters())
    state = {prefix + name: value for name, value in network.state_dict().items()}
    document = {"epoch": 120, "model_state_dict": state, "opt_state_dict": optimizer.state_dict(), "best_score": 0.7}
    torch.save(document, path)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_published_files_load(network: OpenSetNetwork, tmp_path: Path, prefix: str) -> None:
    published_file(tmp_path / "eos.pth", network, prefix)
    found = Checkpoint.load(tmp_path / "eos.pth")
    assert (found.epoch, found.best_score, found.n_outputs, found.fingerprint) == (120, 0.7, 4, "")
    fresh = build_network("tiny", 4)
    load_weights(fresh, found, where="eos.pth", wanted="tiny")
    assert all(
        torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), network.state_dict().values(), strict=True)
    )


def test_our_files_have_the_published_keys_and_survive_a_round_trip(network: OpenSetNetwork, tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(network.parameters())
    row = {"epoch": 1.0, "gamma": 0.5, "ccr_1e-3": math.nan}
    saved = Checkpoint(
        epoch=1,
        model=network.state_dict(),
        optimizer=optimizer.state_dict(),
        best_score=0.5,
        best_epoch=1,
        history=(row,),
        fingerprint="f",
        origin=CheckpointOrigin(
            what="p1", samples="ab", config=TrainConfig(network="tiny", recipe=Recipe(randaugment=(2, 9)))
        ),
    )
    saved.save(tmp_path / LAST)
    raw = torch.load(tmp_path / LAST, weights_only=True)
    assert {"epoch", "model_state_dict", "opt_state_dict", "best_score"} <= raw.keys()
    build_network("tiny", 4).load_state_dict(raw["model_state_dict"])
    torch.optim.Adam(network.parameters()).load_state_dict(raw["opt_state_dict"])
    found = Checkpoint.load(tmp_path / LAST)
    assert (found.epoch, found.best_epoch, found.fingerprint, found.origin) == (1, 1, "f", saved.origin)
    assert found.history[0]["gamma"] == 0.5
    assert math.isnan(found.history[0]["ccr_1e-3"])


def test_other_widths_and_networks_are_refused_with_both(network: OpenSetNetwork, tmp_path: Path) -> None:
    published_file(tmp_path / "x.pth", network)
    found = Checkpoint.load(tmp_path / "x.pth")
    with pytest.raises(UsageError, match=r"x.pth has 4 outputs and 4 embedding dimensions, protocol p2 needs 6 and 6"):
        load_weights(build_network("tiny", 6), found, where="x.pth", wanted="protocol p2")
    with pytest.raises(UsageError, match=r"not resnet18: resnet_base.*missing"):
        load_weights(build_network("resnet18", 4), found, where="x.pth", wanted="resnet18")


@pytest.mark.parametrize("damage", ["cut", "text", "table", "other", "missing"])
def test_damaged_files_are_named(network: OpenSetNetwork, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bad.pth"
    published_file(path, network)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "text":
        path.write_text("not a checkpoint")
    elif damage == "table":
        path.write_text("epoch,train_loss\n1,2.5\n")  # begins with an instruction of pickle
    elif damage == "other":
        torch.save({"weights": torch.ones(2)}, path)
    else:
        path.unlink()
    with pytest.raises(OscbenchError, match=r"bad.pth") as error:
        Checkpoint.load(path)
    assert "\n" not in str(error.value)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"model_state_dict": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(OscbenchError, match="cannot be read"):
        Checkpoint.load(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_a_full_disk_leaves_the_last_good_checkpoint(network: OpenSetNetwork, tmp_path: Path) -> None:
    Checkpoint(epoch=1, model=network.state_dict()).save(tmp_path / LAST)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a file may not grow beyond this
    try:
        with pytest.raises(OscbenchError, match=r"cannot write .*last.pth"):
            Checkpoint(epoch=2, model=network.state_dict()).save(tmp_path / LAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Checkpoint.load(tmp_path / LAST).epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == [LAST]


def test_the_best_checkpoint_outlives_the_next_last_one(network: OpenSetNetwork, tmp_path: Path) -> None:
    Checkpoint(epoch=1, model=network.state_dict()).save(tmp_path / LAST)
    publish_best(tmp_path)
    Checkpoint(epoch=2, model=network.state_dict()).save(tmp_path / LAST)
    assert (Checkpoint.load(tmp_path / BEST).epoch, Checkpoint.load(tmp_path / LAST).epoch) == (1, 2)
