"""Images by PIL: reading, the resize before storing, JPEG coding and the cut that every loader makes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from oscbench.errors import OscbenchError

Pixels = NDArray[np.uint8]
"""(H, W, 3) RGB."""


def read_image(path: Path) -> Image.Image:
    """The decoded image as RGB; grey, palette and CMYK files are converted.

    EXIF rotation is ignored, as in the published code.
    """
    return decode_image(read_file(path), path)


def read_file(path: Path) -> bytes:
    """The bytes of an image file; a missing one is named."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise OscbenchError(f"image {path} is missing; check --data or the sample table") from error
    except OSError as error:
        raise OscbenchError(f"image {path} cannot be read ({error.strerror}); check its permissions") from error


def decode_image(data: bytes, path: Path) -> Image.Image:
    """The RGB image of a file's bytes; ``path`` is named when they do not decode."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged data
        reason = "no known image format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise OscbenchError(
            f"image {path} does not decode ({reason}); replace it or take it out of the sample table"
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


@dataclass(frozen=True)
class StoredImage:
    """One image as it goes into a converted file.

    Attributes:
        data: The JPEG file, or the pixels in rows of RGB.
        raw: Whether ``data`` is pixels.
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        source_sha256: Of the original file.
    """

    data: bytes
    raw: bool
    height: int
    width: int
    source_sha256: str = ""


def convert_image(path: Path, side: int, quality: int | None) -> StoredImage:
    """The image of a file, resized for storing: as a JPEG of that quality, or as pixels when it is ``None``."""
    original = read_file(path)
    pixels = np.asarray(resize_shorter(decode_image(original, path), side))
    data = pixels.tobytes() if quality is None else encode_jpeg(pixels, quality)
    height, width = pixels.shape[:2]
    return StoredImage(data, quality is None, height, width, hashlib.sha256(original).hexdigest())


def cut(pixels: Pixels, window: NDArray[np.int64], crop: int) -> Pixels:
    """(crop, crop, 3) part of the image at ``window`` = (top, left, flip)."""
    top, left, flip = window
    part = pixels[top : top + crop, left : left + crop]
    return part[:, ::-1] if flip else part
