"""Trainings: networks trained here from their beginning, and which of them is in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from oscbench.artifacts import Request, is_begun, is_complete
from oscbench.data.loading import Backend, Wanted, decide_loader
from oscbench.errors import UsageError
from oscbench.losses import LOSSES
from oscbench.records import sha256_file
from oscbench.resources import WorkerAsk
from oscbench.stages.beton import Beton
from oscbench.stages.given_network import kept_network
from oscbench.stages.network import Network, TrainedHere
from oscbench.stages.samples import Samples
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace
from oscbench.training.checkpoint import LAST
from oscbench.training.epoch_metrics import EpochLog, EpochRow
from oscbench.training.recipes import TrainConfig, recipe_by_name, recipe_name


@dataclass(frozen=True, kw_only=True, eq=False)
class Training(TrainedHere[TrainConfig]):
    """A network trained from its beginning.

    Attributes:
        init: Checkpoint to start from; its SHA-256 is in the config.
    """

    name = "train"
    config_type = TrainConfig

    init: Path | None = None

    @property
    def training(self) -> TrainConfig:
        """See ``TrainedHere.training``."""
        return self.config

    @property
    def start(self) -> Path | None:
        """See ``TrainedHere.start``."""
        return self.init

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return recipe_name(self.config.recipe)

    def _n_train(self) -> int:
        counts = self.samples.expected_counts()["train"]
        return counts.known + (counts.negative if LOSSES.get(self.config.loss).uses_negatives else 0)

    def check(self) -> None:
        """Refuses a network that does not exist, and a start from a checkpoint that is not at hand."""
        super().check()
        if self.config.init is not None and self.init is None and not (self.folder / LAST).exists():
            raise UsageError(
                f"the training {self.folder} starts from a checkpoint; run `oscbench train` with its --init FILE"
            )


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
        found = _trained(workspace, samples, folder, options) or kept_network(workspace, samples, folder)
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
