"""Features as a stage: extracted when missing, from the workspace's own training or a given checkpoint."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oscbench.artifacts import META, Meta, exclusive_lock
from oscbench.data.counts import published_split_counts
from oscbench.data.loading import DataSplit
from oscbench.data.samples import class_names
from oscbench.distributed.cluster import Resources, connect
from oscbench.distributed.estimate import extraction_seconds
from oscbench.distributed.execution import ASK_ABOVE_SECONDS, Execution
from oscbench.distributed.extract import extract_on_ray
from oscbench.distributed.train import WorkerShare
from oscbench.distributed.training_stage import ensure_training, everywhere
from oscbench.errors import UsageError
from oscbench.features import FeatureSet
from oscbench.labels import SPLITS
from oscbench.losses import LOSSES
from oscbench.pipeline import Workspace, data_split, ensure_beton
from oscbench.progress import duration, show_progress
from oscbench.records import fingerprint, sha256_file
from oscbench.training.checkpoint import BEST, LAST, Checkpoint
from oscbench.training.extract import ExtractionJob, Rows

logger = logging.getLogger(__name__)


def ensure_features(
    workspace: Workspace,
    *,
    loss: str,
    seed: int = 0,
    checkpoint: Path | None = None,
    network: str | None = None,
    execution: Execution | None = None,
) -> Path:
    """The folder of the feature sets ``train``, ``val`` and ``test``; extracts, and trains before, what is missing.

    Args:
        workspace: Data and protocol.
        loss: Name of the loss.
        seed: Seed of the training.
        checkpoint: A file to use instead of this workspace's own training, for example a published one.
        network: Architecture of that file; default: as it says, else ``resnet50``.
        execution: Where and how.
    """
    execution = execution or Execution()
    folder = workspace.run.features(loss, seed)
    if checkpoint is None and _given_features_fit(workspace, folder):
        logger.info("features: re-using %s, made from a given checkpoint", folder)
        return folder
    if checkpoint is not None:
        ensure_beton(workspace, ask_above_seconds=None if execution.yes else ASK_ABOVE_SECONDS)
        source = _given_network(workspace, loss, checkpoint, network)
    else:
        trained = ensure_training(workspace, loss=loss, seed=seed, execution=execution)
        source = _own_network(workspace, loss, seed, trained)
    missing = [split for split in SPLITS if not _is_extracted(folder / split, source, split)]
    if not missing:
        logger.info("features: re-using %s", folder)
        return folder
    with connect(execution.address) as have, exclusive_lock(folder.parent / ".features.lock", f"the features {folder}"):
        share = execution.extraction_share(have)
        _announce_extraction(workspace, source, missing, share, have, execution, asked=checkpoint is not None)
        for split in missing:
            _extract(workspace, source, split, folder / split, share, execution)
    return folder


@dataclass(frozen=True, kw_only=True)
class _Network:
    """Trained weights and how their images must look."""

    file: Path
    name: str
    n_outputs: int
    crop: int
    stored_side: int
    normalise: bool
    what: str
    config: dict[str, Any]
    inputs: dict[str, str]
    seed: int | None

    def fingerprint(self, split: str) -> str:
        """Of the features of one split."""
        return fingerprint("features", {"split": split, "crop": self.crop}, self.inputs)


def _own_network(workspace: Workspace, loss: str, seed: int, trained: Meta) -> _Network:
    recipe = trained.config["recipe"]
    file = workspace.run.training(loss, seed) / (BEST if recipe["selection"] == "best" else LAST)
    names = ("data", "protocol", "loss", "network")
    return _Network(
        file=file.absolute(),
        name=trained.config["network"],
        n_outputs=int(trained.n_outputs or 0),
        crop=trained.config["crop"],
        stored_side=trained.config["stored_side"],
        normalise=recipe["normalise"],
        what=f"protocol {workspace.protocol.slug} with loss {loss}",
        config={name: trained.config[name] for name in names},
        inputs={"train": trained.fingerprint, "samples": trained.inputs["samples"]},
        seed=seed,
    )


def _given_network(workspace: Workspace, loss: str, file: Path, network: str | None) -> _Network:
    samples = Meta.read(workspace.run.samples, "samples")
    found = Checkpoint.load(file)
    _warn_of_another_split(workspace, samples, found, file)
    stored = found.origin.get("config", {})
    name = network or stored.get("network", "resnet50")
    return _Network(
        file=file.absolute(),
        name=name,
        n_outputs=LOSSES.get(loss).n_outputs(workspace.protocol.n_known),
        crop=stored.get("crop", workspace.crop),
        stored_side=workspace.stored_side,
        normalise=stored.get("recipe", {}).get("normalise", False),
        what=f"protocol {workspace.protocol.slug} with loss {loss}",
        config={
            "data": workspace.run.data,
            "protocol": workspace.protocol.slug,
            "loss": loss,
            "network": name,
            "checkpoint": file.name,
        },
        inputs={"train": sha256_file(file)[:16], "samples": samples.fingerprint},
        seed=None,
    )


def _warn_of_another_split(workspace: Workspace, samples: Meta, found: Checkpoint, file: Path) -> None:
    """A network must not be judged on images that it was trained on: another split may hold some."""
    if found.fingerprint:
        other = found.origin.get("samples") != samples.fingerprint
        made = found.origin.get("what", "another training")
    else:
        other = not _as_published(workspace, samples)
        made = "the published split"
    if other:
        logger.warning(
            "warning: %s was trained on %s, and the samples of %s are others: its validation and test images may have "
            "been trained on",
            file,
            made,
            workspace.title,
        )


def _as_published(workspace: Workspace, samples: Meta) -> bool:
    """Whether the samples can be the published ones: their numbers by role and split, and the order of the classes.

    Which image is in which split the paper does not print.
    """
    expected, files = published_split_counts(workspace.protocol), samples.details["files"]
    if not expected or any(files[split][role] != n for (role, split), n in expected.items()):
        return False
    return all(_labels_are_places(data_split(workspace, split), workspace.protocol.classes) for split in SPLITS)


def _labels_are_places(split: DataSplit, classes: tuple[str, ...]) -> bool:
    """Whether every known sample's label is its class's place among the classes."""
    labels = split.samples.labels
    return all(
        label < 0 or classes[label] == name for label, name in zip(labels, class_names(split.samples), strict=True)
    )


def _is_extracted(folder: Path, source: _Network, split: str) -> bool:
    if not (folder / META).exists():
        return False
    return Meta.read(folder, "features").fingerprint == source.fingerprint(split)


def _given_features_fit(workspace: Workspace, folder: Path) -> bool:
    """Whether all splits were extracted from a given checkpoint on the samples that are there now."""
    if not all((folder / split / META).exists() for split in SPLITS) or not (workspace.run.samples / META).exists():
        return False
    current = Meta.read(workspace.run.samples, "samples").fingerprint
    metas = [Meta.read(folder / split, "features") for split in SPLITS]
    return all("checkpoint" in meta.config and meta.inputs.get("samples") == current for meta in metas)


def _announce_extraction(
    workspace: Workspace,
    source: _Network,
    missing: list[str],
    share: WorkerShare,
    have: Resources,
    execution: Execution,
    *,
    asked: bool,
) -> None:
    n_images = sum(len(data_split(workspace, split)) for split in missing)
    seconds = extraction_seconds(source.name, source.crop, n_images, share, have)
    plan = f"{source.name} for {source.what}, {n_images} images of {', '.join(missing)} on {have}"
    if seconds > ASK_ABOVE_SECONDS and not (execution.yes or asked):
        raise UsageError(f"extracting {plan} would take about {duration(seconds)}; add --yes to start it")
    logger.info("features: %s, about %s", plan, duration(seconds))


def _extract(
    workspace: Workspace, source: _Network, split: str, folder: Path, share: WorkerShare, execution: Execution
) -> None:
    started, images = time.monotonic(), everywhere(data_split(workspace, split))
    job = ExtractionJob(
        checkpoint=source.file,
        network=source.name,
        n_outputs=source.n_outputs,
        what=source.what,
        split=images,
        crop=source.crop,
        stored_side=source.stored_side,
        normalise=source.normalise,
        loader=execution.loader,
    )
    with show_progress(f"extracting {split}") as progress:
        rows = extract_on_ray(job, share, progress)
    meta = Meta.create(
        "features",
        config=source.config | {"split": split, "crop": source.crop},
        result_config={"split": split, "crop": source.crop},
        inputs=source.inputs,
        seed=source.seed,
        n_known=workspace.protocol.n_known,
        n_outputs=source.n_outputs,
        classes=workspace.protocol.classes,
        seconds=time.monotonic() - started,
    )
    feature_set(rows, images, workspace.protocol.classes, workspace.protocol.n_known, meta).save(folder)
    logger.info("features: wrote %s, %d samples, %s", folder, len(rows.ids), duration(time.monotonic() - started))


def feature_set(rows: Rows, split: DataSplit, classes: tuple[str, ...], n_known: int, meta: Meta) -> FeatureSet:
    """The rows with the class of each image, which is the folder it lies in."""
    places = {name: place for place, name in enumerate(classes)}
    return FeatureSet(
        embedding=rows.embedding,
        logits=rows.logits,
        pooled=rows.pooled,
        n_known=n_known,
        labels=rows.labels,
        ids=rows.ids,
        class_index=np.array([places[name] for name in class_names(split.samples)], np.int32),
        classes=classes,
        meta=meta,
    )
