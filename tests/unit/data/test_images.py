"""Reading and resizing by PIL, against torchvision, and what damaged files say."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from photo_folder import SHAPES, draw_photo
from PIL import Image

from oscbench.data.images import convert_image, cut, encode_jpeg, read_image, read_resized, resize_shorter
from oscbench.errors import OscbenchError
from oscbench.torchvision_import import torchvision


@pytest.mark.parametrize("shape", [*SHAPES, (300, 33), (33, 301)])
@pytest.mark.parametrize("side", [64, 63, 256])
def test_resize_is_torchvisions(shape: tuple[int, int], side: int):
    image = Image.fromarray(draw_photo(*shape, seed=1))
    expected = torchvision.transforms.Resize(side)(image)
    assert np.array_equal(np.asarray(resize_shorter(image, side)), np.asarray(expected))
    assert min(expected.size) == side


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA"])
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path):
    suffix = "tiff" if mode == "CMYK" else "png"
    Image.fromarray(draw_photo(40, 50, 0)).convert(mode).save(tmp_path / f"a.{suffix}")
    assert read_image(tmp_path / f"a.{suffix}").mode == "RGB"
    assert read_resized(tmp_path / f"a.{suffix}", 20).shape == (20, 25, 3)


def test_a_missing_image_is_named(tmp_path: Path):
    with pytest.raises(OscbenchError, match=r"none\.JPEG is missing"):
        read_image(tmp_path / "none.JPEG")


@pytest.mark.parametrize("damage", ["empty", "text", "truncated"])
def test_a_damaged_image_is_named(damage: str, tmp_path: Path):
    path = tmp_path / "bad.JPEG"
    whole = encode_jpeg(draw_photo(60, 60, 0), 90)
    path.write_bytes({"empty": b"", "text": b"no image", "truncated": whole[: len(whole) // 2]}[damage])
    with pytest.raises(OscbenchError, match=r"bad\.JPEG does not decode .*; replace it"):
        read_image(path)


def test_cut_mirrors_the_crop_not_the_image():
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    part = cut(pixels, np.array([1, 2, 1]), 2)
    assert part[..., 0].tolist() == [[pixels[1, 3, 0], pixels[1, 2, 0]], [pixels[2, 3, 0], pixels[2, 2, 0]]]


def test_converted_images_are_what_pil_reads(tmp_path: Path):
    path = tmp_path / "a.JPEG"
    path.write_bytes(encode_jpeg(draw_photo(90, 120, 0), 95))
    pixels = read_resized(path, 64)
    raw, jpeg = convert_image(path, 64, None), convert_image(path, 64, 80)
    assert (raw.height, raw.width, raw.raw, jpeg.raw) == (64, 85, True, False)
    assert raw.data == pixels.tobytes()
    decoded = np.asarray(Image.open(io.BytesIO(jpeg.data)))
    assert decoded.shape == pixels.shape
    assert np.abs(decoded.astype(int) - pixels).mean() < 6  # quality 80 on noisy pixels
