"""A training driver in a process of its own, for tests that kill it (IMAGES FOLDER WORKERS EPOCHS)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from small_images import small_labels, write_split

from oscbench.training.job import TrainingJob
from oscbench.training.recipes import Recipe, TrainConfig


def make_job(images: Path, folder: Path, *, workers: int, epochs: int, loss: str = "eos") -> TrainingJob:
    """The same small training for every process that asks; draws the images when they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(
        loss=loss,
        network="tiny",
        crop=28,
        stored_side=32,
        recipe=Recipe(epochs=epochs, batch_size=4, learning_rate=2e-3),
        workers=workers,
    )
    return TrainingJob(
        config=config,
        folder=folder,
        train=write_split(images, "train", small_labels(4, 20, 21)),
        val=write_split(images, "val", small_labels(4, 6, 9)),
        n_known=4,
        what="a small test",
        fingerprint="small",
    )


def main() -> None:
    """Trains on a Ray started here."""
    from oscbench.distributed.cluster import connect
    from oscbench.distributed.train import WorkerShare, train_on_ray

    images, folder, workers, epochs = sys.argv[1:]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    job = make_job(Path(images), Path(folder), workers=int(workers), epochs=int(epochs))
    with connect():
        train_on_ray(job, WorkerShare())


if __name__ == "__main__":
    main()
