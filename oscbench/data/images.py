"""Images by PIL: reading, the resize before storing, JPEG coding and the cut that every loader makes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from oscbench.errors import OscbenchError

Pixels = NDArray[np.uint8]
"""(H, W, 3) RGB."""


def read_image(path: Path) -> Image.Image:
    """The decoded image as RGB; grey, palette and CMYK files are converted.

    EXIF rotation is ignored, as in the published code.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise OscbenchError(f"image {path} is missing; check --data or the sample table") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OscbenchError(
            f"image {path} does not decode ({error}); replace it or take it out of the sample table"
        ) from error


def resize_shorter(image: Image.Image, side: int) -> Image.Image:
    """The image with its shorter side at ``side``, bilinear with anti-aliasing, longer side rounded down.

    Equal to torchvision's ``Resize(side)`` on PIL images, up and down.
    """
    width, height = image.size
    if min(width, height) == side:
        return image
    if width <= height:
        return image.resize((side, int(side * height / width)), Image.Resampling.BILINEAR)
    return image.resize((int(side * width / height), side), Image.Resampling.BILINEAR)


def read_resized(path: Path, side: int) -> Pixels:
    """(H, W, 3) pixels of a file with its shorter side at ``side``."""
    return np.asarray(resize_shorter(read_image(path), side))


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """The image as a baseline JPEG with 4:2:0 chroma, the usual form of photographs."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()


def cut(pixels: Pixels, window: NDArray[np.int64], crop: int) -> Pixels:
    """(crop, crop, 3) part of the image at ``window`` = (top, left, flip)."""
    top, left, flip = window
    part = pixels[top : top + crop, left : left + crop]
    return part[:, ::-1] if flip else part
