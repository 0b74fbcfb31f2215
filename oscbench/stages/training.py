"""Networks: trained here, or given as a checkpoint file; whatever comes after does not care which."""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from oscbench.artifacts import Request, is_begun, is_complete
from oscbench.data.counts import published_split_counts
from oscbench.data.loading import Backend, Wanted, decide_loader
from oscbench.data.samples import class_names
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import SPLITS
from oscbench.losses import LOSSES
from oscbench.origin import Origin
from oscbench.progress import duration
from oscbench.records import sha256_file
from oscbench.resources import WorkerAsk, WorkerShare
from oscbench.stages.beton import Beton
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace
from oscbench.training.checkpoint import BEST, LAST, Checkpoint
from oscbench.training.epoch_metrics import EpochLog, EpochRow, selection_score
from oscbench.training.estimate import forward_flops, training_seconds
from oscbench.training.recipes import TrainConfig, recipe_by_name, recipe_name
from oscbench.training.run import EPOCHS, TrainingJob, initial_network, read_epochs

logger = logging.getLogger(__name__)


class NetworkConfig(Protocol):
    """What the records of all networks have."""

    @property
    def loss(self) -> str:
        """Name of the loss it was trained with."""
        ...

    @property
    def seed(self) -> int:
        """Seed under which its results are shown."""
        ...


C = TypeVar("C", bound=NetworkConfig)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, eq=False)
class Network(Stage[C, R]):
    """A stage whose folder holds trained weights.

    Attributes:
        samples: The data it is used on.
        demo: Whether that is embedded demonstration data.
    """

    samples: Samples
    demo: bool

    @property
    @abstractmethod
    def weights(self) -> Path:
        """The checkpoint file that later stages use."""

    @property
    @abstractmethod
    def recipe(self) -> str:
        """How it was trained, as tables name it."""

    @property
    @abstractmethod
    def view(self) -> NetworkView:
        """How its images must look."""

    @property
    def origin(self) -> Origin:
        """What tables say about everything that comes from this network."""
        return Origin(
            data=self.room.data,
            protocol=self.room.protocol,
            training=self.config.loss,
            seed=self.config.seed,
            network=self.view.network,
            recipe=self.recipe,
            train=self.fingerprint,
            demo=self.demo,
        )

    @property
    def n_outputs(self) -> int:
        """C, the width of the logits."""
        return LOSSES.get(self.config.loss).n_outputs(self.samples.protocol.n_known)

    @property
    def what(self) -> str:
        """Protocol and loss in words, for messages."""
        return f"protocol {self.samples.protocol.slug} with loss {self.config.loss}"

    @property
    def alias(self) -> str:
        """One name for trained and given networks: the newest of either is in use."""
        return f"{self.config.loss}/s{self.config.seed}/train"


@dataclass(frozen=True, kw_only=True)
class NetworkView:
    """Architecture of a network and how its images must look."""

    network: str
    crop: int
    stored_side: int
    normalise: bool = False


# --- trained here --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a training went.

    Attributes:
        epochs: How many were run.
        last: Figures of the last epoch by column of ``epochs.csv``; ``None`` where there is no number.
        best: Those of the epoch with the best gamma.
        weights: SHA-256 of the checkpoint that later stages use.
        share: CPUs and GPUs of each worker.
    """

    epochs: int
    last: dict[str, float | None]
    best: dict[str, float | None]
    weights: str
    share: WorkerShare


@dataclass(frozen=True, kw_only=True, eq=False)
class Training(Network[TrainConfig, TrainingResult]):
    """``last.pth``, ``best.pth`` and ``epochs.csv``; goes on after any interruption to the same weights.

    Attributes:
        init: Checkpoint to start from; its SHA-256 is in the config.
        ask: What each worker gets.
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; by default a line in the log.
    """

    name = "train"
    config_type, result_type = TrainConfig, TrainingResult
    resumes = spreads = True

    init: Path | None = None
    ask: WorkerAsk = WorkerAsk()
    tensorboard: bool = False
    on_epoch: Callable[[EpochRow], None] = field(default_factory=EpochLog)

    @property
    def weights(self) -> Path:
        """The checkpoint that the recipe selects."""
        return self.folder / (BEST if self.config.recipe.selection == "best" else LAST)

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return recipe_name(self.config.recipe)

    @property
    def view(self) -> NetworkView:
        """See ``Network.view``."""
        config = self.config
        return NetworkView(
            network=config.network,
            crop=config.crop,
            stored_side=config.stored_side,
            normalise=config.recipe.normalise,
        )

    def content(self, result: TrainingResult) -> str:
        """The weights; times differ from run to run."""
        return result.weights[:16]

    def describe(self) -> str:
        """See ``Stage.describe``."""
        config = self.config
        return (
            f"{config.network} for {self.what}, {config.recipe.epochs} epochs of {self._n_train()} images on "
            f"{config.workers} worker{'s' if config.workers > 1 else ''}"
        )

    def _n_train(self) -> int:
        counts = self.samples.expected_counts()["train"]
        return counts.known + (counts.negative if LOSSES.get(self.config.loss).uses_negatives else 0)

    def seconds(self, session: Session) -> float:
        """By the operations of its network, for the epochs that are left."""
        have, workers = session.resources(), self.config.workers
        share = WorkerShare(cpus=self.ask.cpus or max(1, have.cpus // workers), gpus=self.ask.gpus_of(have))
        done = len(read_epochs(self.folder / EPOCHS)) / self.config.recipe.epochs
        return self._seconds(share) * (1 - min(done, 1.0))

    def _seconds(self, share: WorkerShare) -> float:
        config = self.config
        return training_seconds(
            config.network,
            config.crop,
            epochs=config.recipe.epochs,
            n_train=self._n_train(),
            n_val=self.samples.expected_counts()["val"].samples,
            workers=config.workers,
            cpus=share.cpus,
            gpus=share.gpus,
        )

    def check(self) -> None:
        """Refuses a network that does not exist, and a start from a checkpoint that is not at hand."""
        forward_flops(self.config.network, self.config.crop)
        if self.config.init is not None and self.init is None and not (self.folder / LAST).exists():
            raise UsageError(
                f"the training {self.folder} starts from a checkpoint; run `oscbench train` with its --init FILE"
            )

    def admit(self, session: Session) -> None:
        """Refuses workers that cannot be had."""
        share = session.runner.training_share(self.config.workers, self.ask)
        if self.config.sync_batchnorm and not share.gpus:
            raise UsageError("--sync-batchnorm works on GPUs only; leave it out or set --gpus-per-worker")
        if self.init is not None:
            initial_network(self._job(self.folder, share))

    def make(self, work: Path, session: Session) -> TrainingResult:
        """Trains, or goes on."""
        share = session.runner.training_share(self.config.workers, self.ask)
        logger.info("train: %s of %s, about %s", self.describe(), share, duration(self._seconds(share)))
        done = len(read_epochs(work / EPOCHS))
        if done:
            logger.info("train: going on after epoch %d", done)
        rows = session.runner.train(self._job(work, share), share, self.on_epoch)
        return TrainingResult(
            epochs=len(rows),
            last=_without_nan(rows[-1]),
            best=_without_nan(max(rows, key=selection_score)),
            weights=sha256_file(self.weights),
            share=share,
        )

    def how_far(self) -> str:
        """See ``Stage.how_far``."""
        done = len(read_epochs(self.folder / EPOCHS))
        return f" after epoch {done}" if done else " before its first epoch was done"

    def _job(self, work: Path, share: WorkerShare) -> TrainingJob:
        beton = self.inputs.get("beton")
        files = {split: beton.file(split) if isinstance(beton, Beton) else None for split in SPLITS}
        return TrainingJob(
            config=self.config,
            folder=work.absolute(),
            train=self.samples.data_split("train", files["train"]),
            val=self.samples.data_split("val", files["val"]),
            n_known=self.samples.protocol.n_known,
            what=self.what,
            fingerprint=self.fingerprint,
            samples=self.samples.fingerprint,
            init=self.init.absolute() if self.init is not None else None,
            threads=share.cpus,
            loader=self.config.loader,
            tensorboard=self.tensorboard,
        )


def _without_nan(row: EpochRow) -> dict[str, float | None]:
    """The row for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in row.items()}


# --- which training ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How trainings and extractions that are not there yet are to be run, from whatever verb.

    Attributes:
        workers: Processes that train together.
        ask: What each gets.
        loader: Which image loader; ``auto``: FFCV where it works.
    """

    workers: int = 1
    ask: WorkerAsk = WorkerAsk()
    loader: Wanted = "auto"


def default_config(workspace: Workspace, *, loss: str, seed: int = 0, workers: int = 1) -> TrainConfig:
    """What a training is where nothing else is asked for: ``tiny`` on the embedded data, else as published."""
    LOSSES.info(loss)
    demo = workspace.demo is not None
    return TrainConfig(
        loss=loss,
        network="tiny" if demo else "resnet50",
        crop=workspace.crop,
        stored_side=workspace.stored_side,
        recipe=recipe_by_name("demo" if demo else "published"),
        workers=workers,
        seed=seed,
    )


def training_of(
    workspace: Workspace,
    samples: Samples,
    config: TrainConfig,
    options: TrainingOptions,
    *,
    init: Path | None = None,
    tensorboard: bool = False,
    on_epoch: Callable[[EpochRow], None] | None = None,
) -> Training:
    """The training with these settings; its loader is decided here, once for all workers.

    Without a loader asked for, that of a training with these settings which is there already stays.

    Args:
        workspace: Data and protocol.
        samples: Their tables.
        config: What decides it; ``loader`` and ``init`` are filled in.
        options: How it is run.
        init: Checkpoint to start from.
        tensorboard: Also write TensorBoard files.
        on_epoch: Told each finished epoch; default: a line in the log.
    """
    beton = Beton.in_use(samples, workspace)
    start = sha256_file(init) if init is not None else config.init

    def read_by(loader: Backend) -> Training:
        return Training(
            room=workspace.room,
            config=dataclasses.replace(config, loader=loader, init=start),
            inputs={"samples": samples} | ({"beton": beton} if loader == "ffcv" else {}),
            samples=samples,
            demo=workspace.demo is not None,
            init=init,
            ask=options.ask,
            tensorboard=tensorboard,
            on_epoch=on_epoch or EpochLog(),
        )

    if options.loader == "auto":
        for there in map(read_by, get_args(Backend)):
            if there.state() in ("done", "resumable"):
                return there
    return read_by(decide_loader(options.loader, converted=beton.state() == "done"))


def network_in_use(
    workspace: Workspace, samples: Samples, *, loss: str, seed: int, options: TrainingOptions
) -> Network[Any, Any]:
    """The network that later stages take where none is named.

    That is the one last trained, given, or begun and past its first epoch for this loss and seed, as long as it belongs
    to these samples; otherwise the usual training. An interrupted training thereby goes on with its own settings.
    """
    folder = workspace.room.in_use(f"{loss}/s{seed}/train")
    if folder is not None and (is_complete(folder) or (is_begun(folder) and (folder / LAST).exists())):
        found = _trained(workspace, samples, folder, options) or _given(workspace, samples, folder)
        if found is not None and found.folder == folder:
            return found
    return training_of(
        workspace, samples, default_config(workspace, loss=loss, seed=seed, workers=options.workers), options
    )


def _trained(workspace: Workspace, samples: Samples, folder: Path, options: TrainingOptions) -> Training | None:
    """The training in a folder as these samples would make it; another fingerprint tells when it is none of theirs."""
    if not folder.name.startswith(f"{Training.name}-"):
        return None
    request = Request.read(folder, Training.name, TrainConfig)
    inputs: dict[str, Stage[Any, Any]] = {"samples": samples}
    if "beton" in request.inputs:
        inputs["beton"] = Beton.named(samples, workspace, request.inputs["beton"].fingerprint)
    return Training(
        room=workspace.room,
        config=request.config,
        inputs=inputs,
        samples=samples,
        demo=workspace.demo is not None,
        ask=options.ask,
    )


# --- given as a file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What decides a given network: the bytes of its file, and what it is taken for."""

    sha256: str
    loss: str
    seed: int
    view: NetworkView


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """What the file says of itself.

    Attributes:
        file: Its name.
        epoch: Epochs it was trained for.
        other_samples: What it was trained on, where that may hold the images it is to be judged by; else empty.
    """

    file: str
    epoch: int
    other_samples: str


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenNetwork(Network[CheckpointConfig, CheckpointResult]):
    """A checkpoint file from elsewhere, kept beside the trainings so that later commands need not be told of it.

    Attributes:
        file: The file; ``None`` where it has been kept already.
    """

    name = "checkpoint"
    config_type, result_type = CheckpointConfig, CheckpointResult

    file: Path | None = None

    @property
    def weights(self) -> Path:
        """Our copy of the file."""
        return self.folder / LAST

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return "given checkpoint"

    @property
    def view(self) -> NetworkView:
        """See ``Network.view``."""
        return self.config.view

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{self.config.view.network} for {self.what} from {self.file or 'a given file'}"

    def make(self, work: Path, session: Session) -> CheckpointResult:
        """Checks and keeps the file."""
        assert self.file is not None, "a checkpoint that was not kept has a file"
        found = Checkpoint.load(self.file)
        shutil.copyfile(self.file, work / LAST)  # not a link: the user may write to the file again
        if sha256_file(work / LAST) != self.config.sha256:
            raise OscbenchError(f"{self.file} changed while it was read; run the same command again")
        return CheckpointResult(
            file=self.file.name, epoch=found.epoch, other_samples=_other_samples(found, self.samples)
        )

    def notices(self) -> Iterator[str]:
        """A network must not be judged on images that it was trained on."""
        result = self.result
        if result.other_samples:
            yield (
                f"{result.file} was trained on {result.other_samples}, and the samples of {self.room.data}, protocol "
                f"{self.room.protocol} are others: its validation and test images may have been trained on"
            )


def given_network(
    workspace: Workspace, samples: Samples, file: Path, *, loss: str, seed: int, network: str | None
) -> GivenNetwork:
    """The network in a checkpoint file, one of ours or a published one.

    Args:
        workspace: Data and protocol it is used on.
        samples: Their tables.
        file: The file.
        loss: Loss it was trained with.
        seed: Under which seed its results are shown.
        network: Architecture; default: as the file says, else ``resnet50``.
    """
    LOSSES.info(loss)
    found = Checkpoint.load(file)
    known = found.origin.config
    view = NetworkView(
        network=network or (known.network if known else "resnet50"),
        crop=known.crop if known else workspace.crop,
        stored_side=workspace.stored_side,
        normalise=known.recipe.normalise if known else False,
    )
    made = GivenNetwork(
        room=workspace.room,
        config=CheckpointConfig(sha256=sha256_file(file), loss=loss, seed=seed, view=view),
        inputs={"samples": samples},
        samples=samples,
        demo=workspace.demo is not None,
        file=file,
    )
    if found.n_outputs != made.n_outputs:
        made_for = f" (made for {found.origin.what})" if found.origin.what else ""
        raise UsageError(
            f"{file}{made_for} has {found.n_outputs} outputs, {made.what} needs "
            f"{made.n_outputs}; give the checkpoint of that protocol and loss"
        )
    return made


def _given(workspace: Workspace, samples: Samples, folder: Path) -> GivenNetwork | None:
    if not folder.name.startswith(f"{GivenNetwork.name}-"):
        return None
    config = Request.read(folder, GivenNetwork.name, CheckpointConfig).config
    return GivenNetwork(
        room=workspace.room,
        config=config,
        inputs={"samples": samples},
        samples=samples,
        demo=workspace.demo is not None,
    )


def _other_samples(found: Checkpoint, samples: Samples) -> str:
    """What a network was trained on where that is another split of the images than ``samples``; else empty."""
    if found.fingerprint:
        same = found.origin.samples == samples.fingerprint
        return "" if same else found.origin.what or "another training"
    return "" if is_published_split(samples) else "the published split"


def is_published_split(samples: Samples) -> bool:
    """Whether the samples can be the published ones: their numbers by role and split, and the order of the classes.

    Which image is in which split the paper does not print.
    """
    expected, splits = published_split_counts(samples.protocol), samples.result.splits
    if not expected or any(getattr(splits[split], role) != n for (role, split), n in expected.items()):
        return False
    classes = samples.protocol.classes
    return all(
        label < 0 or classes[label] == name
        for table in map(samples.table, SPLITS)
        for label, name in zip(table.labels, class_names(table), strict=True)
    )
