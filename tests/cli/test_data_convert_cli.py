"""``oscbench data convert`` and ``data verify`` as a user runs them: output, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PROTOCOL = "protocol: small\nknown: [apple, bread]\nnegative: [chair]\nunknown: [drum]\n"


def oscbench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oscbench", "data", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "small.yaml").write_text(PROTOCOL)
    rng = np.random.default_rng(0)
    for part, names in {"train": ("apple", "bread", "chair"), "val": ("apple", "bread", "chair", "drum")}.items():
        for name in names:
            (folder / "pictures" / part / name).mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 256, (48, 60, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "pictures" / part / name / f"{i}.JPEG")
    return folder


OPTIONS = ("--data", "pictures", "--protocol", "small.yaml")


@pytest.mark.ffcv
def test_convert_verify_and_damage(user_folder: Path):
    done = oscbench("convert", *OPTIONS, "--side", "32", "--processes", "2", "--json", folder=user_folder)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert {split: file["samples"] for split, file in manifest["files"].items()} == {"train": 14, "val": 4, "test": 24}
    assert done.stderr.count("beton: wrote") == 3

    again = oscbench("convert", *OPTIONS, "--side", "32", folder=user_folder)
    assert "beton: re-using runs/pictures/small/beton" in again.stderr
    first_line = again.stdout.splitlines()[0].split("  ")
    folder = Path(manifest["folder"])
    assert folder.parent == Path("runs/pictures/small")
    assert first_line[:2] == [f"{folder}/train.beton", "14 images"]

    whole = oscbench("verify", *OPTIONS, folder=user_folder)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout == (
        "pictures, protocol small: 3 sample tables, 3 FFCV files, 42 images by checksum: all as they were made\n"
    )

    beton = user_folder / "runs" / "pictures" / "small" / "beton" / "val.beton"
    with beton.open("r+b") as file:
        file.truncate(1000)
    found = oscbench("verify", *OPTIONS, "--json", folder=user_folder)
    assert found.returncode == 1
    problems = json.loads(found.stdout)["problems"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{folder}/val.beton has 1000 bytes instead of")
    assert found.stderr == f"error: pictures, protocol small: 1 problem: {problems[0]}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("convert", "--data", "nowhere"), 2, "error: data folder nowhere does not exist"),
        (("convert", *OPTIONS, "--quality", "0"), 2, "error: --quality must lie in 1..95, got 0"),
        (("convert", *OPTIONS, "--mode", "png"), 2, "'png' is not one of"),
        (("convert", *OPTIONS, "--protocol", "9"), 2, "error: unknown protocol '9'"),
        (("verify", "--data", "nowhere"), 2, "error: data folder nowhere does not exist"),
    ],
)
def test_wrong_use_is_one_line(user_folder: Path, arguments: tuple[str, ...], code: int, message: str):
    done = oscbench(*arguments, folder=user_folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
