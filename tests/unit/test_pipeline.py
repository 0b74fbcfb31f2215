"""Data stages: made when missing, re-used when nothing changed, made again when something did; verified by content."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from photo_folder import draw_photo
from PIL import Image

from oscbench import pipeline
from oscbench.artifacts import Meta
from oscbench.data.convert import ConvertConfig
from oscbench.data.demo import DemoConfig
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import SPLITS
from oscbench.pipeline import (
    Workspace,
    data_split,
    ensure_beton,
    ensure_images,
    ensure_samples,
    open_workspace,
    read_split_samples,
)
from oscbench.verification import verify_data

PROTOCOL = """protocol: small
known: {apple: apple, bread: bread}
negative: {chair: chair}
unknown: {drum: drum}
"""
PER_CLASS = 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of one's own images under a protocol of one's own."""
    (tmp_path / "small.yaml").write_text(PROTOCOL)
    root = tmp_path / "pictures"
    for part, names in {"train": ("apple", "bread", "chair"), "val": ("apple", "bread", "chair", "drum")}.items():
        for name in names:
            (root / part / name).mkdir(parents=True)
            for i in range(PER_CLASS):
                pixels = draw_photo(40, 50, seed=i)
                Image.fromarray(pixels).save(root / part / name / f"{i}.JPEG")
    return root


@pytest.fixture
def workspace(data: Path, tmp_path: Path) -> Workspace:
    return open_workspace(runs=tmp_path / "runs", data=str(data), protocol=str(tmp_path / "small.yaml"))


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture):
    """What was said since the last call."""
    caplog.set_level(logging.INFO)

    def take() -> str:
        text = " | ".join(record.getMessage() for record in caplog.records)
        caplog.clear()
        return text

    return take


SMALL = ConvertConfig(side=32, quality=80)


# --- workspaces --------------------------------------------------------------------------------------------------


def test_names_of_the_data(data: Path, tmp_path: Path):
    options = {"runs": tmp_path / "runs", "protocol": "1"}
    demo = open_workspace(data="demo", **options)
    assert demo.run.data == f"demo-{DemoConfig().fingerprint[:8]}"
    assert demo.images == tmp_path / "runs" / demo.run.data / "images"
    assert (demo.stored_side, demo.crop) == (64, 56)
    other = open_workspace(data="demo", demo=DemoConfig(seed=1), **options)
    assert other.run.data != demo.run.data
    own = open_workspace(data=str(data), **options)
    assert (own.run.data, own.images, own.stored_side, own.crop) == ("pictures", data, 256, 224)
    assert open_workspace(data=str(data), name="mine", **options).run.root == tmp_path / "runs" / "mine" / "p1"


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="data folder /none does not exist; give an image folder, or 'demo'"):
        open_workspace(runs=tmp_path, data="/none", protocol="1")


# --- samples -----------------------------------------------------------------------------------------------------


def test_samples_are_made_once(workspace: Workspace, messages):
    first = ensure_samples(workspace)
    assert "samples: making the tables of pictures, protocol small (not there yet)" in messages()
    assert first.details["files"]["test"] | {"sha256": ""} == {
        "samples": 4 * PER_CLASS,
        "known": 2 * PER_CLASS,
        "negative": PER_CLASS,
        "unknown": PER_CLASS,
        "sha256": "",
    }
    assert (first.n_known, first.classes) == (2, ("apple", "bread", "chair", "drum"))
    assert ensure_samples(workspace) == first
    assert "samples: re-using" in messages()
    assert sum(len(read_split_samples(workspace, split)) for split in ("train", "val")) == 3 * PER_CLASS


def test_another_size_of_an_image_makes_new_samples(workspace: Workspace, messages):
    first = ensure_samples(workspace)
    path = workspace.images / "train" / "apple" / "3.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    second = ensure_samples(workspace)
    assert "(tables or images changed)" in messages()
    assert second.fingerprint != first.fingerprint


def test_the_same_data_elsewhere_has_the_same_fingerprint(workspace: Workspace, tmp_path: Path):
    first = ensure_samples(workspace)
    moved = workspace.images.rename(tmp_path / "moved")
    again = open_workspace(runs=tmp_path / "other", data=str(moved), protocol=str(tmp_path / "small.yaml"))
    assert ensure_samples(again).fingerprint == first.fingerprint


def test_another_protocol_of_the_same_name_makes_new_samples(workspace: Workspace, tmp_path: Path, messages):
    first = ensure_samples(workspace)
    swapped = PROTOCOL.replace("apple: apple, bread: bread", "apple: apple").replace(
        "chair: chair", "chair: chair, bread: bread"
    )
    (tmp_path / "small.yaml").write_text(swapped)
    again = open_workspace(runs=tmp_path / "runs", data=str(workspace.images), protocol=str(tmp_path / "small.yaml"))
    assert ensure_samples(again).fingerprint != first.fingerprint
    assert "(the protocol changed)" in messages()
    assert read_split_samples(again, "train").labels.max() == 0


def test_a_vanished_image_is_an_error_not_another_split(workspace: Workspace):
    ensure_samples(workspace)
    before = (workspace.run.samples / "train.csv").read_bytes()
    gone = read_split_samples(workspace, "train").paths[0]
    (workspace.images / gone).unlink()
    with pytest.raises(OscbenchError, match=f"1 missing image: {gone}; restore them, or delete"):
        ensure_samples(workspace)
    assert (workspace.run.samples / "train.csv").read_bytes() == before


def test_published_tables_in_the_folder_are_used_as_they_are(workspace: Workspace):
    rows = {"train": "train/bread/1.JPEG, 1\r\ntrain/chair/0.JPEG, -1\r\n", "val": "train/apple/2.JPEG,0\n"}
    rows["test"] = "val/drum/5.JPEG,-2\nval/apple/1.JPEG,0\n"
    for split, text in rows.items():
        (workspace.images / f"small_{split}.csv").write_bytes(text.encode())
    ensure_samples(workspace)
    train = read_split_samples(workspace, "train")
    assert (train.paths, train.labels.tolist()) == (("train/bread/1.JPEG", "train/chair/0.JPEG"), [1, -1])
    (workspace.images / "small_val.csv").unlink()
    (workspace.run.samples / "meta.json").unlink()
    with pytest.raises(UsageError, match=r"has some tables of small but not small_val\.csv; add or remove them"):
        ensure_samples(workspace)


def test_a_label_out_of_range_is_refused(workspace: Workspace):
    for split in SPLITS:
        (workspace.images / f"small_{split}.csv").write_text("train/bread/1.JPEG,2\n")
    with pytest.raises(UsageError, match=r"small_train\.csv: 1 bad row: line 1: label 2 is outside -2\.\.1"):
        ensure_samples(workspace)
    assert not workspace.run.samples.exists()


def test_demo_images_are_drawn_once(tmp_path: Path, messages):
    (tmp_path / "few.yaml").write_text(
        "protocol: few\nknown: [n02085620, n02086240]\nnegative: [n02077923]\nunknown: [n03895866]\n"
    )
    settings = DemoConfig(per_class=5, test_per_class=2, size=24)
    workspace = open_workspace(runs=tmp_path, data="demo", protocol=str(tmp_path / "few.yaml"), demo=settings)
    root = ensure_images(workspace)
    assert "images: drew" in messages()
    assert len(list(root.rglob("*.JPEG"))) == 3 * 5 + 4 * 2
    ensure_samples(workspace)
    assert "images: re-using" in messages()


# --- FFCV files --------------------------------------------------------------------------------------------------


@pytest.mark.ffcv
def test_conversion_is_done_once_and_resumes_by_split(workspace: Workspace, messages):
    first = ensure_beton(workspace, SMALL, processes=1)
    assert messages().count("beton: wrote") == 3
    assert {split: file["samples"] for split, file in first.details["files"].items()} == {
        "train": 24,
        "val": 6,
        "test": 40,
    }
    assert ensure_beton(workspace, SMALL, processes=1) == first
    assert "beton: re-using" in messages()
    names = {path.name for path in workspace.run.beton.iterdir()}
    assert names == {f"{split}.{suffix}" for split in SPLITS for suffix in ("beton", "sha256")} | {"meta.json"}


@pytest.mark.ffcv
def test_an_interrupted_conversion_keeps_what_was_done(workspace: Workspace, messages, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def interrupted(root: Path, samples, beton: Path, *rest, **options):
        calls.append(beton.stem)
        if beton.stem == "val" and len(calls) == 2:
            raise KeyboardInterrupt
        return convert_split(root, samples, beton, *rest, **options)

    convert_split = pipeline.convert_split
    monkeypatch.setattr(pipeline, "convert_split", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_beton(workspace, SMALL, processes=1)
    train = workspace.run.beton / "train.beton"
    written = train.stat().st_mtime_ns
    assert not (workspace.run.beton / "meta.json").exists()
    messages()
    ensure_beton(workspace, SMALL, processes=1)
    assert calls == ["train", "val", "val", "test"]
    assert f"beton: keeping {train}" in messages()
    assert train.stat().st_mtime_ns == written
    assert verify_data(workspace).problems == ()


@pytest.mark.ffcv
def test_other_settings_and_other_images_convert_again(workspace: Workspace, messages):
    first = ensure_beton(workspace, SMALL, processes=1)
    messages()
    second = ensure_beton(workspace, ConvertConfig(side=32, quality=60), processes=1)
    assert messages().count("beton: wrote") == 3
    assert second.fingerprint != first.fingerprint
    (workspace.images / "val" / "drum" / "0.JPEG").write_bytes(
        (workspace.images / "val" / "drum" / "1.JPEG").read_bytes() + b"\0"
    )
    third = ensure_beton(workspace, ConvertConfig(side=32, quality=60), processes=1)
    assert messages().count("beton: wrote") == 3
    assert third.inputs != second.inputs


@pytest.mark.ffcv
def test_a_truncated_file_is_converted_again(workspace: Workspace, messages):
    ensure_beton(workspace, SMALL, processes=1)
    beton = workspace.run.beton / "val.beton"
    whole = beton.read_bytes()
    beton.write_bytes(whole[:1000])
    messages()
    ensure_beton(workspace, SMALL, processes=1)
    assert messages().count("beton: wrote") == 3
    assert beton.read_bytes() == whole


@pytest.mark.ffcv
def test_training_takes_a_conversion_of_its_size_and_refuses_another(workspace: Workspace, messages):
    ensure_beton(workspace, ConvertConfig(side=32), processes=1)
    with pytest.raises(UsageError, match="stores images of shorter side 32, training takes 256; run `oscbench data"):
        ensure_beton(workspace)
    ensure_beton(workspace, ConvertConfig(mode="raw"), processes=1)
    messages()
    assert ensure_beton(workspace).config["mode"] == "raw"
    assert "beton: re-using" in messages()
    split = data_split(workspace, "val")
    assert split.beton == workspace.run.beton / "val.beton"
    assert np.array_equal(split.samples.labels, read_split_samples(workspace, "val").labels)


@pytest.mark.ffcv
def test_a_long_conversion_is_not_started_unasked(workspace: Workspace):
    with pytest.raises(UsageError, match="converting 70 images of pictures, .* would take about .*; add --yes"):
        ensure_beton(workspace, ask_above_seconds=0.0)
    assert not workspace.run.beton.exists()
    assert ensure_beton(workspace, SMALL, processes=1, ask_above_seconds=60.0) is not None


def test_without_ffcv_images_are_read_with_pil(workspace: Workspace, messages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("oscbench.data.loading.ffcv_problem", lambda: "ffcv cannot be imported (no such module)")
    assert ensure_beton(workspace) is None
    assert "images are read with PIL" in messages()
    assert data_split(workspace, "train").beton is None
    with pytest.raises(UsageError, match="nothing can be converted: ffcv cannot be imported"):
        ensure_beton(workspace, SMALL)


# --- verifying ---------------------------------------------------------------------------------------------------


@pytest.mark.ffcv
def test_verification_names_what_was_altered(workspace: Workspace):
    ensure_beton(workspace, SMALL, processes=1)
    found = verify_data(workspace)
    assert found.checked == ("3 sample tables", "3 FFCV files", "70 images by checksum")
    assert found.problems == ()

    table = workspace.run.samples / "val.csv"
    table.write_text(table.read_text().replace(",0", ",1"))
    beton = workspace.run.beton / "test.beton"
    with beton.open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"\1\2\3")
    altered = workspace.images / "train" / "chair" / "4.JPEG"
    content = bytearray(altered.read_bytes())
    content[-20] ^= 1  # the size stays
    altered.write_bytes(content)
    (workspace.images / "val" / "drum" / "7.JPEG").unlink()

    problems = verify_data(workspace).problems
    assert len(problems) == 4
    for path, problem in zip((table, beton, altered), problems, strict=False):
        assert problem == f"{path} was altered: its SHA-256 differs"
    assert problems[3] == f"{workspace.images}/val/drum/7.JPEG cannot be read (No such file or directory)"


@pytest.mark.ffcv
def test_a_truncated_ffcv_file_and_an_altered_list_are_found(workspace: Workspace):
    ensure_beton(workspace, SMALL, processes=1)
    beton = workspace.run.beton / "train.beton"
    size = beton.stat().st_size
    with beton.open("r+b") as file:
        file.truncate(size - 100)
    (workspace.run.beton / "val.sha256").write_text("")
    problems = verify_data(workspace).problems
    assert problems[0] == f"{beton} has {size - 100} bytes instead of {size}"
    assert "val.sha256 is missing or was altered, the images of val were not checked" in problems[1]


def test_images_that_were_never_converted_are_decoded(workspace: Workspace):
    assert verify_data(workspace).checked == ("3 sample tables", "70 images by decoding")
    assert Meta.read(workspace.run.samples).stage == "samples"
    bad = workspace.images / "val" / "apple" / "2.JPEG"
    bad.write_bytes(b"x" * bad.stat().st_size)
    (problem,) = verify_data(workspace).problems
    assert "apple/2.JPEG does not decode" in problem
