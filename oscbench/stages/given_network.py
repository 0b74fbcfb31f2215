"""Networks given as a checkpoint file: one of ours, or a published one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oscbench.artifacts import Request
from oscbench.data.counts import published_split_counts
from oscbench.data.samples import class_names
from oscbench.errors import OscbenchError
from oscbench.labels import SPLITS
from oscbench.losses import LOSSES
from oscbench.records import sha256_file
from oscbench.stages.network import Network, NetworkView
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.workspace import Workspace
from oscbench.training.checkpoint import LAST, Checkpoint


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What decides a given network: the bytes of its file, and what it is taken for.

    Attributes:
        sha256: Of the file.
        loss: Loss it was trained with.
        seed: Under which its results are shown.
        view: Architecture, and how its images must look.
        dummies: Placeholders of a PROSER network; 0 of others.
    """

    sha256: str
    loss: str
    seed: int
    view: NetworkView
    dummies: int = 0


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

    @property
    def dummies(self) -> int:
        """See ``Network.dummies``."""
        return self.config.dummies

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
    from oscbench.training.extract import network_in

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
        config=CheckpointConfig(sha256=sha256_file(file), loss=loss, seed=seed, view=view, dummies=found.dummies),
        inputs={"samples": samples},
        samples=samples,
        demo=workspace.demo is not None,
        file=file,
    )
    wanted = f"{view.network} for {made.what}"  # another width, foreign or missing weights: nothing is kept
    network_in(found, view.network, made.n_outputs, samples.protocol.n_known, where=str(file), wanted=wanted)
    return made


def kept_network(workspace: Workspace, samples: Samples, folder: Path) -> GivenNetwork | None:
    """The network that was kept in a folder, as these samples would keep it; ``None`` where that is another stage."""
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
