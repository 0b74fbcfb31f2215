"""Features: what a network says about every sample; extracted here, or a user's own."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from oscbench.artifacts import Meta, is_complete
from oscbench.data.loading import Backend, DataSplit, decide_loader
from oscbench.data.samples import class_names
from oscbench.errors import UsageError
from oscbench.features import FeatureInfo, FeatureSet, FeatureSplits, Head, load_feature_folder
from oscbench.labels import SPLITS
from oscbench.origin import Origin
from oscbench.progress import duration, show_progress
from oscbench.protocols.base import load_protocol
from oscbench.records import fingerprint
from oscbench.stages.beton import Beton
from oscbench.stages.given_network import given_network
from oscbench.stages.network import Network, TrainedHere
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Given, Room, Stage
from oscbench.stages.training import TrainingOptions, network_in_use
from oscbench.stages.workspace import Workspace, open_workspace
from oscbench.training.estimate import extraction_seconds

if TYPE_CHECKING:
    from oscbench.training.extract import Rows

logger = logging.getLogger(__name__)

DEFAULT_LOSSES = ("softmax",)
DEFAULT_SEEDS = (0,)


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """How images go through the network; the network and the images are inputs."""

    crop: int
    loader: Backend


@dataclass(frozen=True, kw_only=True)
class FeaturesResult:
    """Samples of each split, and a digest of their arrays."""

    samples: dict[str, int]
    arrays: dict[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Features(Stage[FeaturesConfig, FeaturesResult]):
    """Feature sets ``train/``, ``val/`` and ``test/``; an interrupted extraction keeps the splits that were done.

    Attributes:
        network: Whose outputs; the same stage as among the inputs.
        samples: Of which images; likewise.
    """

    name = "features"
    config_type, result_type = FeaturesConfig, FeaturesResult
    resumes = spreads = True

    network: Network[Any, Any]
    samples: Samples

    @classmethod
    def of(cls, workspace: Workspace, network: Network[Any, Any], options: TrainingOptions) -> Features:
        """The features of a network: from the pixels it was trained from, unless another loader is asked for."""
        samples, wanted = network.samples, options.loader
        if wanted == "auto" and isinstance(network, TrainedHere):
            wanted = network.training.loader
        beton = network.inputs.get("beton") or Beton.in_use(samples, workspace)
        inputs: dict[str, Stage[Any, Any]] = {"train": network, "samples": samples}

        def read_by(loader: Backend) -> Features:
            return cls(
                room=workspace.room,
                config=FeaturesConfig(crop=network.view.crop, loader=loader),
                inputs=inputs | ({"beton": beton} if loader == "ffcv" else {}),
                network=network,
                samples=samples,
                ask=options.ask,
            )

        for loader in get_args(Backend):  # what is there needs no decision
            if wanted in ("auto", loader) and read_by(loader).state() == "done":
                return read_by(loader)
        return read_by(decide_loader(wanted, converted=beton.state() == "done"))

    @property
    def alias(self) -> str:
        """See ``Stage.alias``."""
        return f"{self.network.alias_root}/features"

    @property
    def origin(self) -> Origin:
        """What tables say about these features."""
        return self.network.origin

    @property
    def on_gpu(self) -> bool:
        """See ``Stage.on_gpu``."""
        return True

    def load(self) -> FeatureSplits:
        """The finished feature sets, memory-mapped."""
        return load_feature_folder(self.folder)

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{self.network.view.network} for {self.network.what}, {self.samples.n_images()} images"

    def seconds(self, session: Session) -> float:
        """By the operations of the network, for the splits that are left."""
        counts = self.samples.expected_counts()
        n_images = sum(counts[split].samples for split in SPLITS if not (self.folder / split).is_dir())
        have = session.resources()
        view, gpus = self.network.view, self.ask.gpus_of(have)
        return extraction_seconds(view.network, view.crop, n_images, cpus=have.cpus, gpus=have.gpus if gpus else 0)

    def make(self, work: Path, session: Session) -> FeaturesResult:
        """Extracts the splits that an earlier run has not finished."""
        logger.info("features: %s on %s", self.describe(), session.runner.resources())
        for split in SPLITS:
            if not (work / split).is_dir():  # a split's folder appears whole
                self._extract(work / split, split, session)
        sets = load_feature_folder(work)
        return FeaturesResult(
            samples={split: len(sets.split(split)) for split in SPLITS},
            arrays={split: sets.split(split).content_fingerprint() for split in SPLITS},
        )

    def _extract(self, folder: Path, split: str, session: Session) -> None:
        from oscbench.training.extract import ExtractionJob, network_head

        started, view = time.monotonic(), self.network.view
        beton = self.inputs.get("beton")
        images = self.samples.data_split(split, beton.file(split) if isinstance(beton, Beton) else None)
        job = ExtractionJob(
            checkpoint=self.network.weights.absolute(),
            network=view.network,
            n_outputs=self.network.n_outputs,
            n_known=self.samples.protocol.n_known,
            what=self.network.what,
            split=images,
            crop=view.crop,
            stored_side=view.stored_side,
            normalise=view.normalise,
            loader=self.config.loader,
        )
        with show_progress(f"extracting {split}") as progress:
            rows = session.runner.extract(job, self.ask, progress)
        protocol = self.samples.protocol
        info = FeatureInfo(
            split=split,
            n_known=protocol.n_known,
            classes=protocol.classes,
            fingerprint=self.fingerprint,
            origin=self.origin,
        )
        head = network_head(job) if split == "train" else None
        feature_set(rows, images, info, head).save(folder)
        took = duration(time.monotonic() - started)
        logger.info("features: wrote %s, %d samples, %s", folder, len(rows.ids), took)


def feature_set(rows: Rows, split: DataSplit, info: FeatureInfo, head: Head | None) -> FeatureSet:
    """The rows with the class of each image, which is the folder it lies in."""
    places = {name: place for place, name in enumerate(info.classes)}
    return FeatureSet(
        embedding=rows.embedding,
        logits=rows.logits,
        pooled=rows.pooled,
        head=head,
        n_known=info.n_known,
        labels=rows.labels,
        ids=rows.ids,
        class_index=np.array([places[name] for name in class_names(split.samples)], np.int32),
        classes=info.classes,
        info=info,
    )


# --- a user's own --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OwnFeaturesConfig:
    """What decides them.

    Attributes:
        train: Fingerprint of the training rows; that of their stage where they were extracted by one.
        val: Likewise of the validation rows.
        training: Loss of the network, where only the user knows it.
    """

    train: str
    val: str
    training: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnFeatures(Given[OwnFeaturesConfig, FeaturesResult]):
    """A folder ``DIR/{train,val,test}`` that the user gives; results on it go to the room that its origin names.

    Attributes:
        place: The folder.
        origin: As its files tell, else as the user says.
    """

    name = "features"
    config_type, result_type = OwnFeaturesConfig, FeaturesResult

    place: Path
    origin: Origin

    @property
    def folder(self) -> Path:
        """Where the user has it."""
        return self.place

    @cached_property
    def fingerprint(self) -> str:
        """Of extracted features the one of their stage; of others one over their arrays."""
        return fingerprint(self.name, self.config, {}) if self.config.training else self.config.train

    def content_now(self) -> str:
        """Of extracted features what their stage holds; of others nothing beyond the fingerprint of their arrays."""
        if self.config.training or not is_complete(self.place):
            return ""
        return Meta.read(self.place, self.name, FeaturesConfig, FeaturesResult).content

    def load(self) -> FeatureSplits:
        """The feature sets, memory-mapped."""
        return load_feature_folder(self.place)

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"features in {self.place}"


AnyFeatures = Features | OwnFeatures


@dataclass(frozen=True, kw_only=True)
class FeatureRequest:
    """Which features: a folder of one's own, or those of each training and seed on some data.

    Attributes:
        protocol: 1, 2, 3 or a file; may be left out with ``features``.
        losses: Trainings; ``None``: the one recorded in ``features``, else softmax.
        seeds: Their seeds; ``None``: the one recorded in ``features``, else 0.
        data: ``demo`` or an image folder.
        name: Name of the data below ``runs``.
        features: A folder with ``train/``, ``val/`` and ``test/``.
        checkpoint: A file instead of the network in use.
        network: Its architecture.
        options: How what is not there yet is made.
    """

    runs: Path
    protocol: str | None = None
    losses: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    data: str = "demo"
    name: str | None = None
    features: Path | None = None
    checkpoint: Path | None = None
    network: str | None = None
    options: TrainingOptions = TrainingOptions()


def requested_features(request: FeatureRequest) -> list[AnyFeatures]:
    """The feature stages that a request means; nothing is made yet."""
    if request.features is not None:
        return [_own_features(request, request.features)]
    if request.network is not None and request.checkpoint is None:
        raise UsageError("--network belongs to --checkpoint; an own training knows its network")
    if request.protocol is None:
        raise UsageError("give --protocol 1, 2, 3 or a file, or --features with a folder of your own features")
    workspace = open_workspace(runs=request.runs, data=request.data, protocol=request.protocol, name=request.name)
    samples = Samples.of(workspace)
    found: list[AnyFeatures] = []
    for loss in request.losses or DEFAULT_LOSSES:
        for seed in request.seeds or DEFAULT_SEEDS:
            network: Network[Any, Any]
            if request.checkpoint is not None:
                network = given_network(
                    workspace, samples, request.checkpoint, loss=loss, seed=seed, network=request.network
                )
            else:
                network = network_in_use(workspace, samples, loss=loss, seed=seed, options=request.options)
            found.append(Features.of(workspace, network, request.options))
    return found


def _own_features(request: FeatureRequest, folder: Path) -> OwnFeatures:
    """Results go under what the folder's files name, else under a name made from its content."""
    losses, seeds = request.losses or (), request.seeds or ()
    if len(losses) > 1 or len(seeds) > 1:
        raise UsageError(f"--features {folder} comes from one training; give one --loss and one --seeds value with it")
    splits = load_feature_folder(folder)
    train = splits.train
    recorded = train.info.origin if train.info is not None else None
    training = recorded.training if recorded is not None else (*losses, *DEFAULT_LOSSES)[0]
    if losses and losses[0] != training:
        raise UsageError(
            f"--features {folder} comes from a training with {training}, not {losses[0]}; leave --loss out"
        )
    protocol = _checked_protocol(request, folder, recorded.protocol if recorded is not None else "", train.n_known)
    if recorded is not None:
        seed = recorded.seed
        origin = Origin(**{**vars(recorded), "data": request.name or recorded.data, "protocol": protocol})
    else:
        seed = (*seeds, *DEFAULT_SEEDS)[0]
        data = request.name or f"own-{train.fingerprint[:8]}"
        origin = Origin(data=data, protocol=protocol, training=training, seed=seed)
    room = Room(request.runs, origin.data, protocol)
    room.refuse_older_layout()
    return OwnFeatures(
        room=room,
        config=OwnFeaturesConfig(
            train=train.fingerprint, val=splits.val.fingerprint, training="" if recorded is not None else training
        ),
        place=folder,
        origin=origin,
    )


def _checked_protocol(request: FeatureRequest, folder: Path, recorded: str, n_known: int) -> str:
    """Name of the protocol of own features; refused when they belong to another than the one asked for."""
    if request.protocol is None:
        return recorded or "own"
    wanted = load_protocol(request.protocol)
    if recorded and recorded != wanted.slug:
        raise UsageError(f"--features {folder} is of protocol {recorded}, not {wanted.slug}; leave --protocol out")
    if n_known != wanted.n_known:
        raise UsageError(
            f"--features {folder} has {n_known} known classes, protocol {wanted.slug} has {wanted.n_known}: "
            "features of another protocol; leave --protocol out for classes of your own"
        )
    return wanted.slug
