"""A few JPEG files of different shapes, with structure at all scales and some noise, like photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from oscbench.data.loading import DataSplit
from oscbench.data.samples import SampleTable

SHAPES = ((120, 90), (90, 131), (64, 64), (77, 64), (64, 99), (200, 150), (51, 80))
"""Heights and widths in turn: tall, wide, square, already at the stored side, and one to be enlarged."""


def draw_photo(height: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    fine = Image.fromarray(rng.integers(0, 256, (20, 25, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    pixels = 0.7 * np.asarray(coarse, float) + 0.3 * np.asarray(fine, float) + rng.normal(0, 5, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_photos(root: Path, n: int, folder: str = "train") -> DataSplit:
    """``n`` JPEG files below ``root`` with labels -2, -1, 0, 1, … in turn."""
    paths = []
    for row in range(n):
        path = root / folder / f"c{row % 5}" / f"{row:03}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_photo(*SHAPES[row % len(SHAPES)], row)).save(path, quality=92)
        paths.append(path.relative_to(root).as_posix())
    return DataSplit(root, SampleTable(tuple(paths), np.arange(n, dtype=np.int64) % 5 - 2))
