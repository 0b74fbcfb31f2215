"""A few small images whose colour and stripes tell their class: enough for a network to learn something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from oscbench.data.loading import DataSplit
from oscbench.data.samples import SampleTable

SIDE = 32


def write_split(root: Path, split: str, labels: list[int], seed: int = 0) -> DataSplit:
    """Writes one PNG per label below ``root/split/<class>/`` and returns the split."""
    rng = np.random.default_rng((seed, len(split)))
    paths = []
    for row, label in enumerate(labels):
        path = Path(split) / f"c{label}" / f"{row:04}.png"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_draw(label, rng)).save(root / path)
        paths.append(path.as_posix())
    return DataSplit(root, SampleTable(tuple(paths), np.array(labels, np.int64)))


def _draw(label: int, rng: np.random.Generator) -> np.ndarray:
    look = np.random.default_rng(label + 10)
    colour, angle = look.uniform(40, 215, 3), look.uniform(0, np.pi)
    y, x = np.mgrid[:SIDE, :SIDE]
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * look.uniform(0.4, 1.2) + rng.uniform(0, 6))
    pixels = colour + 40 * wave[..., None] + rng.normal(0, 12, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def small_labels(n_known: int, per_class: int, n_negative: int) -> list[int]:
    """Labels in mixed order: ``per_class`` of each known class and some negatives."""
    labels = [*np.repeat(np.arange(n_known), per_class), *([-1] * n_negative)]
    return [int(label) for label in np.random.default_rng(1).permutation(labels)]
