"""Images per second of the FFCV loader against torch's DataLoader with PIL, same images, same cores, taking turns.

    python benchmarks/ffcv_loader.py [--epochs 5] [--images 400]

Draws JPEGs of 500x375 (quality 90), converts them (shorter side 256, JPEG quality 90) and reads whole training epochs:
random 224 crop, flip, floats in [0, 1]. The DataLoader decodes with PIL and uses the published torchvision transforms
in two processes; FFCV uses two threads. Epochs alternate; the medians are compared. FFCV's first epoch, which
compiles, and the DataLoader's first, which starts its processes, are printed and left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from reporting import circumstances, markdown, publish

from oscbench.data.convert import ConvertConfig, convert_split
from oscbench.data.images import read_image
from oscbench.data.loading import DataSplit, LoaderConfig, open_loader
from oscbench.data.samples import SampleTable
from oscbench.torchvision_import import torchvision

BATCH = 64
WORKERS = 2
REQUIRED = 3.0


def draw_images(folder: Path, n: int) -> SampleTable:
    """JPEGs with the detail of photographs: a few large shapes, finer structure and sensor noise."""
    rng = np.random.default_rng(0)
    for i in range(n):
        layers = [
            np.asarray(
                Image.fromarray(rng.integers(0, 256, (375 // cell, 500 // cell, 3), np.uint8)).resize(
                    (500, 375), Image.Resampling.BICUBIC
                ),
                np.float32,
            )
            for cell in (125, 25, 5)
        ]
        image = 0.6 * layers[0] + 0.25 * layers[1] + 0.15 * layers[2] + rng.normal(0, 4, (375, 500, 3))
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / f"{i}.JPEG", quality=90)
    return SampleTable(tuple(f"{i}.JPEG" for i in range(n)), np.zeros(n, np.int64))


class PublishedImages(torch.utils.data.Dataset[torch.Tensor]):
    """The published training transforms on PIL images."""

    def __init__(self, folder: Path, samples: SampleTable) -> None:
        transforms = torchvision.transforms
        self.paths = [folder / path for path in samples.paths]
        self.transform = transforms.Compose(
            [
                transforms.Resize(256),
                transforms.RandomCrop(224),
                transforms.RandomHorizontalFlip(0.5),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image: torch.Tensor = self.transform(read_image(self.paths[index]))
        return image


def pil_epochs(folder: Path, samples: SampleTable) -> Callable[[int], Iterator[torch.Tensor]]:
    """Epochs of torch's DataLoader whose processes stay between epochs."""
    loader = torch.utils.data.DataLoader(
        PublishedImages(folder, samples), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return lambda _: iter(loader)


def ffcv_epochs(folder: Path, samples: SampleTable, beton: Path) -> Callable[[int], Iterator[torch.Tensor]]:
    """Epochs of the FFCV loader in a seeded order."""
    config = LoaderConfig(train=True, threads=WORKERS, backend="ffcv")
    loader = open_loader(DataSplit(folder, samples, beton), config)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        order = np.random.default_rng(number).permutation(len(samples))
        return (batch.images for batch in loader.epoch(number, order, BATCH))

    return epoch


def seconds(epochs: Callable[[int], Iterator[torch.Tensor]], number: int, expected: int) -> float:
    """Time of one epoch; every image must come out."""
    started = time.perf_counter()
    n = sum(len(images) for images in epochs(number))
    assert n == expected, f"{n} of {expected} images"
    return time.perf_counter() - started


def report(rows: list[dict[str, object]], ratio: float, first: dict[str, float]) -> None:
    """Prints and writes the summary, and every epoch as CSV."""
    summary = []
    for loader in ("pil", "ffcv"):
        rates = [float(str(row["images_per_second"])) for row in rows if row["loader"] == loader]
        summary.append(
            {
                "loader": loader,
                "images per second (median)": f"{statistics.median(rates):.0f}",
                "slowest": f"{min(rates):.0f}",
                "fastest": f"{max(rates):.0f}",
                "first epoch, left out, in s": f"{first[loader]:.1f}",
            }
        )
    verdict = "met" if ratio >= REQUIRED else "missed"
    publish(
        "ffcv_loader",
        "# FFCV loader against torch's DataLoader with PIL\n\n"
        f"`python benchmarks/ffcv_loader.py`, {circumstances('torch', 'ffcv')}.\n\n{markdown(summary)}\n"
        f"FFCV is {ratio:.1f} times as fast (at least {REQUIRED:.0f} asked for: {verdict}).\n",
        rows,
    )


def main() -> None:
    """Runs the comparison, prints it and writes the two result files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = draw_images(folder, options.images)
        convert_split(folder, samples, folder / "train.beton", ConvertConfig(), processes=WORKERS)
        loaders = {"pil": pil_epochs(folder, samples), "ffcv": ffcv_epochs(folder, samples, folder / "train.beton")}
        first = {loader: seconds(epochs, 0, len(samples)) for loader, epochs in loaders.items()}
        rows: list[dict[str, object]] = []
        for number in range(1, options.epochs + 1):
            for loader, epochs in loaders.items():
                took = seconds(epochs, number, len(samples))
                rate = round(len(samples) / took, 1)
                rows.append({"loader": loader, "epoch": number, "seconds": round(took, 4), "images_per_second": rate})
    median = {
        name: statistics.median(float(str(r["seconds"])) for r in rows if r["loader"] == name) for name in loaders
    }
    report(rows, median["pil"] / median["ffcv"], first)


if __name__ == "__main__":
    main()
