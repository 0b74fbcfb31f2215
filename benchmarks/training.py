"""Times training and compares the losses on the embedded data.

    python benchmarks/training.py [overhead] [scaling] [embedded] [eos] [--quick]

runs the named parts (default: all), prints a table and writes benchmarks/training_<n>cpu_<date>.md and .csv; parts that
are not run keep their rows. ``--quick`` runs less of everything, to see that it works; its figures are not written.

overhead  resnet50, 224 px, batch 16: Ray Train with FFCV beside the same loop without Ray on batches decoded before.
scaling   resnet18, 64 px, batch 32 per worker: two workers of one core each beside one.
embedded  the embedded protocol 1 with its default network: convert, train softmax, extract.
eos       EOS beside SoftMax on the embedded protocol 1, seeds 0 to 2: sum of CCR@FPR on validation negatives.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image
from reporting import CPUS, Row, half_interval, row, run_parts

import oscbench.training.run as run_module
from oscbench.data.convert import ConvertConfig, convert_split
from oscbench.data.loading import Batch, DataSplit, LoaderConfig, open_loader
from oscbench.data.samples import SampleTable
from oscbench.distributed.cluster import connect
from oscbench.distributed.runner import open_ray
from oscbench.distributed.train import train_on_ray
from oscbench.labels import IntArray
from oscbench.resources import WorkerShare
from oscbench.stages.beton import Beton
from oscbench.stages.features import Features
from oscbench.stages.images import Images
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import ensure
from oscbench.stages.training import Training, TrainingOptions, default_config, training_of
from oscbench.stages.workspace import Workspace, open_workspace
from oscbench.training.job import TrainingJob
from oscbench.training.recipes import Recipe, TrainConfig
from oscbench.training.run import run_training
from oscbench.training.workers import Workers

# --- drawn photographs -----------------------------------------------------------------------------------------------


def draw_split(root: Path, name: str, n: int, height: int, width: int, side: int) -> DataSplit:
    """JPEG files of quality 90 with soft blobs and noise, converted to one FFCV file of the given shorter side."""
    rng = np.random.default_rng(n)
    paths = []
    for number in range(n):
        small = rng.uniform(0, 255, (6, 8, 3)).astype(np.uint8)
        image = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), np.float32)
        image += rng.normal(0, 12, image.shape)
        path = Path(name) / "c0" / f"{number:05}.JPEG"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(root / path, quality=90)
        paths.append(path.as_posix())
    table = SampleTable(tuple(paths), np.arange(n, dtype=np.int64) % 4)
    beton = root / f"{name}.beton"
    convert_split(root, table, beton, ConvertConfig(side=side), processes=CPUS)
    return DataSplit(root, table, beton)


class DecodedBefore:
    """A loader that has all its batches in memory."""

    def __init__(self, source: DataSplit, config: LoaderConfig) -> None:
        loader = open_loader(source, config)
        (batch,) = loader.epoch(0, np.arange(len(source)), len(source))
        self.images, self.labels = batch.images, batch.labels
        loader.close()

    def epoch(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        """The asked samples."""
        for start in range(0, len(ids), batch_size):
            rows = torch.from_numpy(ids[start : start + batch_size])
            yield Batch(self.images[rows], self.labels[rows], rows)

    def close(self) -> None:
        """Nothing to end."""


# --- parts -----------------------------------------------------------------------------------------------------------


def job_of(folder: Path, train: DataSplit, val: DataSplit, config: TrainConfig, threads: int) -> TrainingJob:
    """A training of four classes that nobody will use."""
    folder.mkdir(parents=True)
    return TrainingJob(
        config=config,
        folder=folder,
        train=train,
        val=val,
        n_known=4,
        what="benchmark",
        fingerprint="benchmark",
        threads=threads,
        loader="ffcv",
    )


def overhead(quick: bool) -> list[Row]:
    """Seconds per epoch with and without Ray and decoding, in turns; the first epoch of each run warms up."""
    n_images, epochs = (16, 2) if quick else (48, 5)
    recipe = Recipe(epochs=epochs, batch_size=16)
    config = TrainConfig(network="resnet50", crop=224, stored_side=256, recipe=recipe)
    seconds: dict[str, list[float]] = {"plain": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        train, val = draw_split(root, "train", n_images, 375, 500, 256), draw_split(root, "val", 4, 375, 500, 256)
        for turn in ("plain", "ray") * (1 if quick else 2):
            job = job_of(root / f"{turn}{len(seconds[turn])}", train, val, config, CPUS)
            if turn == "plain":
                with mock.patch.object(run_module, "open_loader", DecodedBefore):
                    rows = list(run_training(job, Workers(), torch.device("cpu")))
            else:
                with connect():
                    rows = train_on_ray(job, WorkerShare(cpus=CPUS))
            seconds[turn] += [epoch["train_seconds"] for epoch in rows[1:]]
    plain, on_ray = statistics.median(seconds["plain"]), statistics.median(seconds["ray"])
    return [
        row("overhead", "loop without Ray, decoded before", plain / n_images * 16, "s per batch"),
        row("overhead", "Ray Train with FFCV", on_ray / n_images * 16, "s per batch"),
        row("overhead", "ratio", on_ray / plain, "", "at most 1.05", on_ray / plain <= 1.05),
    ]


def scaling(quick: bool) -> list[Row]:
    """Images per second of one and of two workers, one core each; median of five epochs after the first."""
    n_images, epochs = (128, 3) if quick else (640, 6)
    config = TrainConfig(network="resnet18", crop=64, stored_side=72, recipe=Recipe(epochs=epochs, batch_size=32))
    speed = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        train, val = draw_split(root, "train", n_images, 80, 96, 72), draw_split(root, "val", 8, 80, 96, 72)
        with connect():
            for workers in (1, 2):
                settings = dataclasses.replace(config, workers=workers)
                rows = train_on_ray(job_of(root / str(workers), train, val, settings, 1), WorkerShare(cpus=1))
                speed[workers] = statistics.median(epoch["images_per_second"] for epoch in rows[1:])
    ratio = speed[2] / speed[1]
    return [
        row("scaling", "one worker of one core", speed[1], "images/s"),
        row("scaling", "two workers of one core", speed[2], "images/s"),
        row("scaling", "ratio", ratio, "", "at least 1.6", ratio >= 1.6),
    ]


def embedded(quick: bool) -> list[Row]:
    """Seconds of each stage of the embedded protocol 1 from nothing, and the accuracy reached."""
    with tempfile.TemporaryDirectory() as name:
        workspace = open_workspace(runs=Path(name), data="demo", protocol="1")
        training = training_on(workspace, "softmax", 0, quick)
        samples = training.samples
        stages = {
            "draw": Images.of(workspace),
            "convert": Beton.in_use(samples, workspace),
            "train": training,
            "extract": Features.of(workspace, training, TrainingOptions()),
        }
        seconds = {}
        for name, stage in stages.items():
            started = time.perf_counter()
            with Session(open_ray) as session:
                ensure([stage], session)
            seconds[name] = time.perf_counter() - started
        trained = figures_of(training)
    accuracy = trained["val_accuracy"]
    total = seconds["convert"] + seconds["train"] + seconds["extract"]
    return [
        *(row("embedded", stage, value, "s") for stage, value in seconds.items()),
        row("embedded", "convert + train + extract", total, "s", "below 180", total < 180),
        row("embedded", "validation accuracy", accuracy, "", "0.3 to 0.9", 0.3 <= accuracy <= 0.9),
        row("embedded", "gamma", trained["gamma"], ""),
        row("embedded", "CCR@FPR sum", trained["ccr_sum"], ""),
    ]


def eos(quick: bool) -> list[Row]:
    """Sum of CCR@FPR on validation negatives after the last epoch, and the interval of the paired difference."""
    sums: dict[str, list[float]] = {"softmax": [], "eos": []}
    accuracy: dict[str, list[float]] = {"softmax": [], "eos": []}
    with tempfile.TemporaryDirectory() as name, Session(open_ray) as session:
        workspace = open_workspace(runs=Path(name), data="demo", protocol="1")
        for seed in range(2 if quick else 3):
            for loss, values in sums.items():
                training = training_on(workspace, loss, seed, quick)
                ensure([training], session)
                figures = figures_of(training)
                values.append(figures["ccr_sum"])
                accuracy[loss].append(figures["val_accuracy"])
    differences = [a - b for a, b in zip(sums["eos"], sums["softmax"], strict=True)]
    mean = statistics.fmean(differences)
    half = half_interval(differences)
    return [
        *(row("eos", f"{loss}: mean CCR@FPR sum, seeds 0-2", statistics.fmean(v), "") for loss, v in sums.items()),
        *(row("eos", f"{loss}: mean accuracy, seeds 0-2", statistics.fmean(v), "") for loss, v in accuracy.items()),
        row("eos", "eos - softmax, mean of the CCR@FPR sum", mean, ""),
        row("eos", "lower end of its 95 % interval (paired, t)", mean - half, ""),
        row("eos", "upper end", mean + half, ""),
    ]


def training_on(workspace: Workspace, loss: str, seed: int, quick: bool) -> Training:
    """The default training."""
    config = default_config(workspace, loss=loss, seed=seed)
    if quick:
        config = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, epochs=2))
    return training_of(workspace, Samples.of(workspace), config, TrainingOptions())


def figures_of(training: Training) -> dict[str, float]:
    """Figures of the last epoch."""
    return {name: float(value) for name, value in training.result.last.items() if value is not None}


# --- the table -------------------------------------------------------------------------------------------------------

PARTS = {"overhead": overhead, "scaling": scaling, "embedded": embedded, "eos": eos}

if __name__ == "__main__":
    run_parts("training", "Training", __doc__, PARTS, ("torch", "ray", "ffcv"))
