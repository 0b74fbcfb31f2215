"""Images, samples and FFCV files: made when missing, re-used when nothing changed, others beside them when it did."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from photo_folder import draw_photo
from PIL import Image

from oscbench.data.convert import ConvertConfig
from oscbench.data.demo import DemoConfig
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import SPLITS
from oscbench.stages import beton as beton_stage
from oscbench.stages.beton import Beton
from oscbench.stages.images import Images
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples, SplitSamples
from oscbench.stages.stage import ensure, plan
from oscbench.stages.verification import Verification, verify_data
from oscbench.stages.workspace import Workspace, open_workspace

SESSION = Session()

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


def made_samples(workspace: Workspace) -> Samples:
    samples = Samples.of(workspace)
    ensure([samples], SESSION)
    return samples


def converted(workspace: Workspace, config: ConvertConfig = SMALL) -> Beton:
    beton = Beton.of(Samples.of(workspace), config, processes=1)
    ensure([beton], SESSION)
    return beton


def verified(workspace: Workspace) -> Verification:
    return verify_data(Samples.in_use(workspace) or made_samples(workspace))


# --- workspaces --------------------------------------------------------------------------------------------------


def test_names_of_the_data(data: Path, tmp_path: Path):
    options = {"runs": tmp_path / "runs", "protocol": "1"}
    demo = open_workspace(data="demo", **options)
    assert demo.room.data == f"demo-{DemoConfig().fingerprint[:8]}"
    assert Images.of(demo).folder.parent == tmp_path / "runs" / demo.room.data / "p1"
    assert (demo.stored_side, demo.crop) == (48, 40)
    other = open_workspace(data="demo", demo=DemoConfig(seed=1), **options)
    assert other.room.data != demo.room.data
    own = open_workspace(data=str(data), **options)
    assert (own.room.data, own.images, own.stored_side, own.crop) == ("pictures", data, 256, 224)
    assert open_workspace(data=str(data), name="mine", **options).room.root == tmp_path / "runs" / "mine" / "p1"


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="data folder /none does not exist; give an image folder, or 'demo'"):
        open_workspace(runs=tmp_path, data="/none", protocol="1")


def test_results_of_an_earlier_version_are_refused(data: Path, tmp_path: Path):
    (tmp_path / "runs" / "pictures" / "p1" / "samples").mkdir(parents=True)
    (tmp_path / "runs" / "pictures" / "p1" / "samples" / "meta.json").write_text("{}")
    with pytest.raises(UsageError, match="was written by an earlier version"):
        open_workspace(runs=tmp_path / "runs", data=str(data), protocol="1")


# --- samples -----------------------------------------------------------------------------------------------------


def test_samples_are_made_once(workspace: Workspace, messages):
    first = made_samples(workspace)
    test = first.result.splits["test"]
    assert test == SplitSamples(
        samples=4 * PER_CLASS, known=2 * PER_CLASS, negative=PER_CLASS, unknown=PER_CLASS, sha256=test.sha256
    )
    messages()
    again = made_samples(workspace)
    assert f"samples: re-using {first.folder}" in messages()
    assert again.meta == first.meta
    assert sum(len(first.table(split)) for split in ("train", "val")) == 3 * PER_CLASS
    assert again.expected_counts() == first.result.splits


def test_the_counts_of_a_plan_are_those_of_the_tables(workspace: Workspace, tmp_path: Path):
    samples = Samples.of(workspace)
    expected = samples.expected_counts()
    ensure([samples], SESSION)
    for split, counts in samples.result.splits.items():
        assert (counts.known, counts.negative) == (expected[split].known, expected[split].negative)
    demo = Samples.of(few_drawn(tmp_path))
    expected = demo.expected_counts()
    ensure([demo], SESSION)
    for split, counts in demo.result.splits.items():
        assert (counts.samples, counts.unknown) == (expected[split].samples, expected[split].unknown)


def test_another_size_of_an_image_makes_other_samples(workspace: Workspace):
    first = made_samples(workspace)
    path = workspace.images / "train" / "apple" / "3.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    second = made_samples(workspace)
    assert second.fingerprint != first.fingerprint
    assert first.folder.is_dir()  # side by side
    assert Samples.in_use(workspace).folder == second.folder


def test_the_same_data_elsewhere_has_the_same_fingerprint(workspace: Workspace, tmp_path: Path):
    first = made_samples(workspace)
    moved = workspace.images.rename(tmp_path / "moved")
    again = open_workspace(runs=tmp_path / "other", data=str(moved), protocol=str(tmp_path / "small.yaml"))
    assert Samples.of(again).fingerprint == first.fingerprint


def test_another_protocol_of_the_same_name_makes_other_samples(workspace: Workspace, tmp_path: Path):
    first = made_samples(workspace)
    swapped = PROTOCOL.replace("apple: apple, bread: bread", "apple: apple").replace(
        "chair: chair", "chair: chair, bread: bread"
    )
    (tmp_path / "small.yaml").write_text(swapped)
    again = open_workspace(runs=tmp_path / "runs", data=str(workspace.images), protocol=str(tmp_path / "small.yaml"))
    second = made_samples(again)
    assert second.fingerprint != first.fingerprint
    assert second.table("train").labels.max() == 0


def test_a_vanished_image_is_an_error_not_another_split(workspace: Workspace):
    first = made_samples(workspace)
    gone = first.table("train").paths[0]
    (workspace.images / gone).unlink()
    with pytest.raises(OscbenchError, match=f"1 missing image: {gone}; restore them, or remove .*samples-"):
        Samples.of(workspace)
    import shutil

    shutil.rmtree(first.folder)
    assert len(made_samples(workspace).table("train")) + len(Samples.of(workspace).table("val")) == 3 * PER_CLASS - 1


def test_published_tables_in_the_folder_are_used_as_they_are(workspace: Workspace):
    rows = {"train": "train/bread/1.JPEG, 1\r\ntrain/chair/0.JPEG, -1\r\n", "val": "train/apple/2.JPEG,0\n"}
    rows["test"] = "val/drum/5.JPEG,-2\nval/apple/1.JPEG,0\n"
    for split, text in rows.items():
        (workspace.images / f"small_{split}.csv").write_bytes(text.encode())
    train = made_samples(workspace).table("train")
    assert (train.paths, train.labels.tolist()) == (("train/bread/1.JPEG", "train/chair/0.JPEG"), [1, -1])
    (workspace.images / "train" / "apple" / "2.JPEG").unlink()
    with pytest.raises(OscbenchError, match="1 missing image: train/apple/2.JPEG; restore them, or remove the tables"):
        Samples.of(workspace)
    (workspace.images / "small_val.csv").unlink()
    with pytest.raises(UsageError, match=r"has some tables of small but not small_val\.csv; add or remove them"):
        Samples.of(workspace)


def test_a_label_out_of_range_is_refused(workspace: Workspace):
    for split in SPLITS:
        (workspace.images / f"small_{split}.csv").write_text("train/bread/1.JPEG,2\n")
    with pytest.raises(UsageError, match=r"small_train\.csv: 1 bad row: line 1: label 2 is outside -2\.\.1"):
        Samples.of(workspace)
    assert not workspace.room.root.exists()


def few_drawn(tmp_path: Path) -> Workspace:
    (tmp_path / "few.yaml").write_text(
        "protocol: few\nknown: [n02085620, n02086240]\nnegative: [n02077923]\nunknown: [n03895866]\n"
    )
    settings = DemoConfig(per_class=5, test_per_class=2, size=24)
    return open_workspace(runs=tmp_path, data="demo", protocol=str(tmp_path / "few.yaml"), demo=settings)


def test_demo_images_are_drawn_once(tmp_path: Path, messages):
    workspace = few_drawn(tmp_path)
    samples = Samples.of(workspace)
    assert [(step.stage.name, step.state) for step in plan([samples], SESSION)] == [
        ("images", "missing"),
        ("samples", "missing"),
    ]
    ensure([samples], SESSION)
    root = Images.of(workspace).root
    assert len(list(root.rglob("*.JPEG"))) == 3 * 5 + 4 * 2
    assert samples.data_split("val").root == root.absolute()
    written = {path: path.stat().st_mtime_ns for path in root.rglob("*.JPEG")}
    messages()
    ensure([Samples.of(few_drawn(tmp_path))], SESSION)
    assert "images: re-using" in messages()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.JPEG")} == written


# --- FFCV files --------------------------------------------------------------------------------------------------


@pytest.mark.ffcv
def test_conversion_is_done_once(workspace: Workspace, messages):
    first = converted(workspace)
    assert messages().count("beton: wrote") == 3
    assert {split: file.samples for split, file in first.result.files.items()} == {"train": 24, "val": 6, "test": 40}
    assert converted(workspace).meta == first.meta
    assert "beton: re-using" in messages()


@pytest.mark.ffcv
def test_an_interrupted_conversion_keeps_what_was_done(workspace: Workspace, messages, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def interrupted(root: Path, samples, beton: Path, *rest, **options):
        calls.append(beton.stem)
        if beton.stem == "val" and len(calls) == 2:
            raise KeyboardInterrupt
        return convert_split(root, samples, beton, *rest, **options)

    convert_split = beton_stage.convert_split
    monkeypatch.setattr(beton_stage, "convert_split", interrupted)
    beton = Beton.of(Samples.of(workspace), SMALL, processes=1)
    with pytest.raises(KeyboardInterrupt):
        ensure([beton], SESSION)
    assert beton.state() == "resumable"
    written = beton.file("train").stat().st_mtime_ns
    messages()
    ensure([beton], SESSION)
    assert calls == ["train", "val", "val", "test"]
    assert f"beton: keeping {beton.file('train')}" in messages()
    assert beton.file("train").stat().st_mtime_ns == written
    assert verified(workspace).problems == ()


@pytest.mark.ffcv
def test_other_settings_and_other_images_are_converted_beside(workspace: Workspace, messages):
    first = converted(workspace)
    messages()
    second = converted(workspace, ConvertConfig(side=32, quality=60))
    assert messages().count("beton: wrote") == 3
    assert second.folder != first.folder
    assert first.state() == "done"
    path = workspace.images / "val" / "drum" / "0.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    third = converted(workspace, ConvertConfig(side=32, quality=60))
    assert messages().count("beton: wrote") == 3
    assert third.folder != second.folder
    raw = ConvertConfig(side=32, mode="raw", quality=10)
    assert Beton.of(Samples.of(workspace), raw).config == ConvertConfig(side=32, mode="raw")  # pixels have no quality


@pytest.mark.ffcv
def test_only_a_truncated_file_is_converted_again(workspace: Workspace, messages):
    beton = converted(workspace)
    whole = beton.file("val").read_bytes()
    beton.file("val").write_bytes(whole[:1000])
    assert beton.state() == "resumable"
    messages()
    converted(workspace)
    assert messages().count("beton: wrote") == 1
    assert beton.file("val").read_bytes() == whole


@pytest.mark.ffcv
def test_training_takes_the_conversion_in_use_where_its_size_fits(workspace: Workspace):
    samples = made_samples(workspace)
    usual = Beton.in_use(samples, workspace)
    assert usual.config == ConvertConfig(side=256)
    converted(workspace, ConvertConfig(side=32))  # of another size: not what training takes
    assert Beton.in_use(samples, workspace).folder == usual.folder
    raw = converted(workspace, ConvertConfig(mode="raw"))
    assert Beton.in_use(samples, workspace).folder == raw.folder
    assert Beton.named(samples, workspace, usual.fingerprint).folder == usual.folder
    split = samples.data_split("val", raw.file("val"))
    assert split.beton == raw.file("val").absolute()
    assert np.array_equal(split.samples.labels, samples.table("val").labels)


# --- verifying ---------------------------------------------------------------------------------------------------


@pytest.mark.ffcv
def test_verification_names_what_was_altered(workspace: Workspace):
    beton_files = converted(workspace)
    found = verified(workspace)
    assert found.checked == ("3 sample tables", "3 FFCV files", "70 images by checksum")
    assert found.problems == ()

    table = Samples.in_use(workspace).folder / "val.csv"
    table.write_text(table.read_text().replace(",0", ",1"))
    beton = beton_files.file("test")
    with beton.open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"\1\2\3")
    altered = workspace.images / "train" / "chair" / "4.JPEG"
    content = bytearray(altered.read_bytes())
    content[-20] ^= 1  # the size stays
    altered.write_bytes(content)
    (workspace.images / "val" / "drum" / "7.JPEG").unlink()

    problems = verified(workspace).problems
    assert len(problems) == 4
    for path, problem in zip((table, beton, altered), problems, strict=False):
        assert problem == f"{path} was altered: its SHA-256 differs"
    assert problems[3] == f"{workspace.images}/val/drum/7.JPEG cannot be read (No such file or directory)"


@pytest.mark.ffcv
def test_a_truncated_ffcv_file_and_an_altered_list_are_found(workspace: Workspace):
    beton_files = converted(workspace)
    beton = beton_files.file("train")
    size = beton.stat().st_size
    with beton.open("r+b") as file:
        file.truncate(size - 100)
    beton_files.file("val").with_suffix(".sha256").write_text("")
    problems = verified(workspace).problems
    assert problems[0] == f"{beton} has {size - 100} bytes instead of {size}"
    assert "val.sha256 is missing or was altered, the images of val were not checked" in problems[1]


def test_images_that_were_never_converted_are_decoded(workspace: Workspace):
    assert verified(workspace).checked == ("3 sample tables", "70 images by decoding")
    bad = workspace.images / "val" / "apple" / "2.JPEG"
    bad.write_bytes(b"x" * bad.stat().st_size)
    (problem,) = verified(workspace).problems
    assert "apple/2.JPEG does not decode" in problem
