"""A runs folder with finished stages, made by the product's own stages; who executes them draws instead of training.

Networks, features, searches and scores are the real stages, with fingerprints, records and folders as they have them.
The trunk of a network sees no image: its pooled vectors are drawn around the centres of classes, and embedding and
logits follow from them by the network's own last layers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from search_factory import Unwatched

from oscbench.data.samples import SampleTable, class_names
from oscbench.labels import NEGATIVE, UNKNOWN, ProgressFn
from oscbench.losses import LOSSES
from oscbench.numerics.softmax import softmax
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.protocols.base import ROLES, Protocol, Role, make_protocol
from oscbench.resources import Resources, WorkerAsk, WorkerShare
from oscbench.stages.features import Features
from oscbench.stages.runner import LocalRunner, OpenRunner, Runner, Session
from oscbench.stages.samples import Samples, SamplesConfig
from oscbench.stages.scores import has_hyperparameters, scores_of_best
from oscbench.stages.search import Tune
from oscbench.stages.stage import Room, ensure
from oscbench.stages.training import Training, TrainingOptions
from oscbench.stages.workspace import Workspace
from oscbench.training.checkpoint import LAST, Checkpoint, CheckpointOrigin, publish_best
from oscbench.training.epoch_metrics import EPOCHS, EpochRow, validation_metrics, write_epochs
from oscbench.training.extract import ExtractionJob, Rows, load_network
from oscbench.training.job import TrainingJob
from oscbench.training.loop import Validation
from oscbench.training.model import EmbeddingLayer, OpenSetNetwork
from oscbench.training.proser import ProserNetwork
from oscbench.training.recipes import RECIPES, TrainConfig
from oscbench.tuning.space import load_space

N_KNOWN, N_OTHER = 5, 3
"""Known classes of each protocol, and its negative and unknown ones."""

SPACES: Final[dict[str, tuple[str, ...]]] = {
    "openmax": ("tail_size=5,20", "distance_multiplier=1.5,2.0", "alpha=2,3"),
    "evm": ("tail_size=5,20", "distance_multiplier=0.2,0.5", "cover_threshold=1.0"),
    "proser": ("dummies=1,2", "epochs=1"),
}
"""Few settings, so that a cell takes a tenth of a second; algorithms without parameters need none."""

_ROWS: Final = {"train": (20, 20, 0), "val": (12, 20, 0), "test": (12, 20, 20)}
"""Images of each known, negative and unknown class by split."""

NOISE: Final = 7.0
"""How far samples lie from the centre of their class."""


def make_runs(
    folder: Path,
    *,
    protocols: Sequence[str] = ("p1", "p2", "p3"),
    trainings: Sequence[str] = ("softmax", "garbage", "eos"),
    algorithms: Sequence[str] = ("mss", "mls", "openmax", "evm"),
    seeds: Sequence[int] = (0,),
    demo: bool = True,
    data: str = "demo-1a2b3c4d",
    epochs: int = 2,
) -> Path:
    """A runs folder with a finished cell for every combination; another call adds to it.

    Args:
        folder: The runs folder.
        protocols: Names of protocols, each with five known, three negative and three unknown classes.
        trainings: Losses.
        algorithms: Post-processors; PROSER is fine-tuned in name only, see ``DrawnRunner``.
        seeds: Of the trainings.
        demo: Whether the data are called embedded ones.
        data: Their name.
        epochs: Of each training.
    """
    with Session(DrawnRunner.open) as session, mock.patch("os.fsync"):  # half of the time; nothing here must survive
        for protocol, training, seed in itertools.product(protocols, trainings, seeds):
            features = _features(_samples(Room(folder, data, protocol)), training, seed, demo, epochs)
            for algorithm in algorithms:
                _make_cell(features, algorithm, session)
    return folder


def _make_cell(features: Features, algorithm: str, session: Session) -> None:
    """The scores of the best setting of the small grid; one that is finished counts as it does for users."""
    if has_hyperparameters(algorithm):
        space = load_space(algorithm, POSTPROCESSORS.info(algorithm).params, overrides=SPACES.get(algorithm, ()))
        ensure([Tune.of(features, algorithm, space, Unwatched())], session, yes=True)
    ensure([scores_of_best(features, algorithm, Unwatched())], session, yes=True)


def _samples(room: Room) -> Samples:
    """Tables of images that nobody looks at."""
    protocol = _protocol(room.protocol)
    tables = {}
    for split, counts in _ROWS.items():
        rows = [
            (f"{split}/{member.wnid}/{member.wnid}_{number}.JPEG", member.label)
            for role, count in zip(ROLES, counts, strict=True)
            for member in protocol.role(role)
            for number in range(count)
        ]
        tables[split] = SampleTable(tuple(path for path, _ in rows), np.array([label for _, label in rows], np.int64))
    classes = {role: tuple(member.wnid for member in protocol.role(role)) for role in ROLES}
    config = SamplesConfig(classes=classes, tables=dict.fromkeys(tables, "drawn"), sizes={})
    return Samples(room=room, config=config, protocol=protocol, image_root=Path("images"), tables=tables)


def _protocol(name: str) -> Protocol:
    first = 1000 * zlib.crc32(name.encode()) % 10**7
    roles: dict[Role, dict[str, str]] = {}
    for role, count in zip(ROLES, (N_KNOWN, N_OTHER, N_OTHER), strict=True):
        roles[role] = {f"n{first + i:08d}": f"{role} {i}" for i in range(count)}
        first += count
    return make_protocol(name, roles, "tests")


def _features(samples: Samples, training: str, seed: int, demo: bool, epochs: int) -> Features:
    recipe = dataclasses.replace(RECIPES["demo"], epochs=epochs)
    network = Training(
        room=samples.room,
        config=TrainConfig(loss=training, network="tiny", crop=56, stored_side=64, recipe=recipe, seed=seed),
        inputs={"samples": samples},
        samples=samples,
        demo=demo,
        on_epoch=lambda row: None,
    )
    workspace = Workspace(samples.room, samples.protocol, images=samples.image_root, stored_side=64, crop=56)
    return Features.of(workspace, network, TrainingOptions(loader="pil"))


# --- who executes --------------------------------------------------------------------------------------------------


class DrawnRunner(LocalRunner):
    """This process, but networks get their last layers by construction and images are drawn pooled vectors."""

    @classmethod
    def open(cls) -> contextlib.AbstractContextManager[Runner]:
        """Enters it."""
        return contextlib.nullcontext(cls(Resources(cpus=1, gpus=0)))

    def within_trials(self, workers: int) -> OpenRunner:
        """See ``Runner.within_trials``."""
        return self.open

    def train(self, job: TrainingJob, share: WorkerShare, on_epoch: Callable[[EpochRow], None]) -> list[EpochRow]:
        """Writes what a training leaves; epoch by epoch the network grows surer."""
        network, rows = job.task.network(job), list[EpochRow]()
        for epoch in range(1, job.config.recipe.epochs + 1):
            sureness = epoch / job.config.recipe.epochs
            _set_last_layers(network, job, sureness)
            outputs = _rows(network, job.val, job.n_known, job.fingerprint)
            figures = validation_metrics(_validation(outputs, job), n_outputs=network.n_outputs, n_known=job.n_known)
            rows.append({"epoch": epoch, "train_loss": 2 - sureness} | figures | {"images_per_second": 100.0})
            Checkpoint(
                epoch=epoch,
                model=network.state_dict(),
                history=tuple(rows),
                fingerprint=job.fingerprint,
                origin=CheckpointOrigin(what=job.what, samples=job.samples, config=job.config),
            ).save(job.folder / LAST)
        publish_best(job.folder)
        write_epochs(job.folder / EPOCHS, tuple(rows))
        return rows

    def extract(self, job: ExtractionJob, ask: WorkerAsk, progress: ProgressFn) -> Rows:
        """Outputs of the last layers for drawn pooled vectors."""
        return _rows(load_network(job), job.split, job.n_known, str(job.checkpoint.parent.name))


def _base(network: Any) -> OpenSetNetwork:
    """The network, or the one that a network with placeholders holds."""
    base = network.resnet_base if isinstance(network, ProserNetwork) else network
    assert isinstance(base, OpenSetNetwork)
    return base


def _layer(network: Any) -> EmbeddingLayer:
    (found,) = (layer for layer in _base(network).modules() if isinstance(layer, EmbeddingLayer))
    return found


def _centres(width: int) -> np.ndarray[Any, Any]:
    """The centre of each class in order, (classes, width); negatives lie nearer to known ones than unknowns do."""
    centres = np.random.default_rng(7).normal(size=(N_KNOWN + 2 * N_OTHER, width)) / width**0.5
    for place in range(N_KNOWN, len(centres)):
        between = centres[place % N_KNOWN] + centres[(place + 1) % N_KNOWN]
        share = 0.35 if place < N_KNOWN + N_OTHER else 0.25
        centres[place] = (1 - share) * centres[place] + share * between
    return centres


@torch.no_grad()
def _set_last_layers(network: Any, job: TrainingJob, sureness: float) -> None:
    """Each output looks for its class, that of a garbage network for the negatives."""
    base, layer = _base(network), _layer(network)
    centres = _centres(layer.in_features)
    looked_for = centres[:N_KNOWN]
    if base.n_outputs > job.n_known:
        looked_for = np.vstack((looked_for, centres[N_KNOWN : N_KNOWN + N_OTHER].mean(axis=0)))
    if LOSSES.get(job.config.loss).uses_negatives and base.n_outputs == job.n_known:  # such a loss learns their outside
        away = centres[N_KNOWN : N_KNOWN + N_OTHER].mean(axis=0)
        looked_for = looked_for - 0.5 * away
    layer.weight.copy_(torch.from_numpy(looked_for))
    layer.bias.zero_()
    base.logits.weight.copy_(6 * sureness * torch.eye(base.n_outputs, layer.out_features))


@torch.no_grad()
def _rows(network: Any, split: Any, n_known: int, seed: str) -> Rows:
    table: SampleTable = split.samples
    places = _places(table)
    layer = _layer(network)
    random = np.random.default_rng(zlib.crc32(f"{seed} {table.paths[0]}".encode()))
    noise = random.normal(size=(len(table), layer.in_features)) / layer.in_features**0.5
    noise *= NOISE
    pooled = (_centres(layer.in_features)[places] + noise).astype(np.float32)
    embedding = pooled @ layer.weight.numpy().T + layer.bias.numpy()  # small products: torch's threads would slow them
    logits = embedding @ _base(network).logits.weight.numpy().T
    if isinstance(network, ProserNetwork):
        dummies = embedding @ network.dummy_classifier.weight.numpy().T + network.dummy_classifier.bias.numpy()
        logits = np.column_stack((logits[:, :n_known], dummies.max(axis=1)))
    return Rows(np.arange(len(table)), table.labels, logits, embedding, pooled)


def _places(table: SampleTable) -> np.ndarray[Any, Any]:
    """Which centre each sample belongs to: that of its label, else of its class among those of its role."""
    classes, places = np.array(class_names(table)), np.array(table.labels)
    for first, label in ((N_KNOWN, NEGATIVE), (N_KNOWN + N_OTHER, UNKNOWN)):
        members = table.labels == label
        places[members] = first + np.unique(classes[members], return_inverse=True)[1]
    return places


def _validation(rows: Rows, job: TrainingJob) -> Validation:
    """What a validation would have gathered."""
    probability = softmax(rows.logits)
    own = np.maximum(rows.labels, 0)
    target = probability[np.arange(len(own)), own]
    return Validation(
        ids=rows.ids,
        labels=rows.labels,
        predicted=rows.logits[:, : job.n_known].argmax(axis=1),
        confidence=probability[:, : job.n_known].max(axis=1),
        target_probability=target,
        loss=-np.log(target),
        weight=np.ones(len(own)),
    )
