"""Checkpoint files: whole or not at all, readable by the published code, and published files readable here."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oscbench.artifacts import atomic_file
from oscbench.errors import OscbenchError, UsageError
from oscbench.records import from_mapping
from oscbench.training.epoch_metrics import EpochRow
from oscbench.training.recipes import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from oscbench.training.model import Classifier

LAST, BEST = "last.pth", "best.pth"
_EXTRA = "oscbench"  # what the published format has no key for


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """What a checkpoint of ours was trained for; published files say nothing of the kind.

    Attributes:
        what: Protocol and loss in words.
        samples: Fingerprint of the sample tables.
        config: All settings.
    """

    what: str = ""
    samples: str = ""
    config: TrainConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights and all else that a training needs to go on.

    Attributes:
        epoch: Number of finished epochs.
        model: State of the network, without the ``module.`` of wrapped networks.
        optimizer: State of the optimizer.
        best_score: Best validation gamma so far.
        best_epoch: The epoch that had it, counted from 1.
        scaler: State of the loss scaling of half precision.
        history: A row per finished epoch.
        fingerprint: Of the training it belongs to; empty in published files.
        origin: What it was trained for, on which samples and with which settings; empty in published files.
    """

    epoch: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    best_score: float = float("-inf")
    best_epoch: int = 0
    scaler: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[EpochRow, ...] = ()
    fingerprint: str = ""
    origin: CheckpointOrigin = CheckpointOrigin()

    def save(self, path: Path) -> None:
        """Writes the file with the keys of the published format; a full disk leaves the earlier file as it was."""
        import torch

        document = {
            "epoch": self.epoch,
            "model_state_dict": dict(self.model),
            "opt_state_dict": dict(self.optimizer),
            "best_score": self.best_score,
            _EXTRA: {
                "best_epoch": self.best_epoch,
                "scaler": dict(self.scaler),
                "history": [dict(row) for row in self.history],
                "fingerprint": self.fingerprint,
                "origin": dataclasses.asdict(self.origin),
            },
        }
        with atomic_file(path) as temporary:
            try:
                torch.save(document, temporary)
            except RuntimeError as error:  # torch's writer reports a full disk so
                raise OscbenchError(
                    f"cannot write {path} ({_first_line(error)}); free space there, the earlier checkpoint stays"
                ) from error

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Reads a file of ours or a published one; nothing in it is executed (``weights_only``)."""
        document = _read(path)
        if not isinstance(document, dict) or "model_state_dict" not in document:
            raise UsageError(f"{path} is no checkpoint of a training: it has no 'model_state_dict'")
        extra = document.get(_EXTRA, {})
        return cls(
            epoch=int(document.get("epoch", 0)),
            model={name.removeprefix("module."): value for name, value in document["model_state_dict"].items()},
            optimizer=document.get("opt_state_dict", {}),
            best_score=float(document.get("best_score", float("-inf"))),
            best_epoch=int(extra.get("best_epoch", 0)),
            scaler=extra.get("scaler", {}),
            history=tuple(extra.get("history", ())),
            fingerprint=str(extra.get("fingerprint", "")),
            origin=from_mapping(CheckpointOrigin, extra.get("origin", {}), str(path)),
        )

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits in the file; of a PROSER network, that of its base."""
        return _logits(self.model).shape[0]

    @property
    def embedding_size(self) -> int:
        """D, the width of the embedding in the file."""
        return _logits(self.model).shape[1]

    @property
    def dummies(self) -> int:
        """B, the dummy outputs of a PROSER network; 0 in others."""
        return len(self.model["dummy_classifier.bias"]) if "dummy_classifier.bias" in self.model else 0


def _logits(weights: Mapping[str, Tensor]) -> Tensor:
    for name, value in weights.items():
        if f".{name}".endswith(".logits.weight"):  # a network with placeholders holds the one it was made from
            return value
    raise UsageError("the checkpoint has no 'logits.weight': it is of another kind of network")


def _read(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UsageError(f"checkpoint {path} does not exist") from error
    except Exception as error:  # bytes that are no pickle end in errors of any kind
        raise OscbenchError(
            f"checkpoint {path} cannot be read ({_first_line(error)}); copy or train it again"
        ) from error


def load_weights(network: Classifier, checkpoint: Checkpoint, *, where: str, wanted: str) -> None:
    """Copies weights into the network; a file of another width or architecture is refused with both values.

    Args:
        network: Receives the weights.
        checkpoint: A file of ours or a published one.
        where: The file, for the message.
        wanted: What the network is for (``protocol p1 with loss eos``), for the message.
    """
    made_for, expected = checkpoint.origin.what, network.state_dict()
    n_outputs, embedding_size = _logits(expected).shape
    if (checkpoint.n_outputs, checkpoint.embedding_size) != (n_outputs, embedding_size):
        raise UsageError(
            f"{where}{f' (made for {made_for})' if made_for else ''} has {checkpoint.n_outputs} outputs and "
            f"{checkpoint.embedding_size} embedding dimensions, {wanted} needs {n_outputs} and {embedding_size}; give "
            "the checkpoint of that protocol and loss"
        )
    problems = [f"{name} is missing" for name in expected if name not in checkpoint.model]
    problems += [f"{name} is not of this network" for name in checkpoint.model if name not in expected]
    problems += [
        f"{name} has shape {tuple(checkpoint.model[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in checkpoint.model and checkpoint.model[name].shape != value.shape
    ]
    if problems:
        found = checkpoint.origin.config.network if checkpoint.origin.config is not None else "another network"
        raise UsageError(
            f"{where} holds {found}, not {wanted}: {problems[0]} ({len(problems)} differences); see --network"
        )
    network.load_state_dict(dict(checkpoint.model))


def publish_best(folder: Path) -> None:
    """Makes the last checkpoint the best one too, without copying where the file system has links."""
    with atomic_file(folder / BEST) as temporary:
        try:
            os.link(folder / LAST, temporary)
        except OSError:
            shutil.copyfile(folder / LAST, temporary)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:160]
