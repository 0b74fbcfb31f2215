"""Conversion: equal bytes for any number of processes, whole or nothing, resumable, and what it says of bad input."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from photo_folder import write_photos
from processes import wait_for_the_end_of, wait_until

from oscbench.data.convert import (
    ConvertConfig,
    beton_problem,
    convert_split,
    finished_file,
    image_problems,
    originals_path,
    record_finished,
)
from oscbench.data.loading import DataSplit
from oscbench.errors import OscbenchError, UsageError

pytestmark = pytest.mark.ffcv

N = 70
"""More than two chunks, so that two processes have something to race for."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> DataSplit:
    return write_photos(tmp_path_factory.mktemp("photos"), N)


def convert(source: DataSplit, beton: Path, **options: object):
    config = ConvertConfig(**({"side": 48} | options))
    return convert_split(source.root, source.samples, beton, config)


def test_processes_do_not_change_a_byte(photos: DataSplit, tmp_path: Path):
    config, calls = ConvertConfig(side=48, mode="mix"), []
    one = convert_split(photos.root, photos.samples, tmp_path / "one.beton", config)
    two = convert_split(
        photos.root,
        photos.samples,
        tmp_path / "two.beton",
        config,
        processes=2,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert one == two
    assert (tmp_path / "one.beton").read_bytes() == (tmp_path / "two.beton").read_bytes()
    assert calls == [(done, N) for done in range(1, N + 1)]
    content = (tmp_path / "one.beton").read_bytes()
    assert (one.samples, one.bytes, one.sha256) == (N, len(content), hashlib.sha256(content).hexdigest())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.beton", "one.sha256", "two.beton", "two.sha256"]


def test_processes_start_without_torch():
    """Each process imports this module; torch would cost it seconds and hundreds of megabytes."""
    code = "import oscbench.data.convert, sys; print({'torch', 'numba', 'ffcv', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_checksums_of_the_originals_are_as_sha256sum_writes_them(photos: DataSplit, tmp_path: Path):
    convert(photos, tmp_path / "a.beton")
    listing = originals_path(tmp_path / "a.beton")
    done = subprocess.run(["sha256sum", "--check", "--quiet", listing], cwd=photos.root, capture_output=True)
    assert done.returncode == 0
    assert len(listing.read_text().splitlines()) == N
    assert image_problems(photos.root, listing) == []


def test_quality_and_mode_decide_the_size(photos: DataSplit, tmp_path: Path):
    from oscbench.data.ffcv import open_reader

    sizes = {}
    for name, options in {"50": {"quality": 50}, "90": {"quality": 90}, "raw": {"mode": "raw"}}.items():
        convert(photos, tmp_path / f"{name}.beton", **options)
        sizes[name] = int(open_reader(tmp_path / f"{name}.beton").alloc_table["size"].sum())
    assert sizes["50"] < 0.7 * sizes["90"]
    assert sizes["90"] < 0.5 * sizes["raw"]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_mix_has_its_share_of_pixels(share: float):
    qualities = ConvertConfig(mode="mix", raw_share=share).qualities(10_000)
    assert abs(qualities.count(None) / 10_000 - share) < 0.02
    assert qualities[:500] == ConvertConfig(mode="mix", raw_share=share).qualities(500)


def test_only_fields_that_matter_decide():
    assert ConvertConfig(mode="raw", quality=50).normalised() == ConvertConfig(mode="raw", raw_share=0.1).normalised()
    assert ConvertConfig(quality=50).normalised() != ConvertConfig().normalised()
    assert ConvertConfig(raw_share=0.1).normalised() == ConvertConfig().normalised()
    mix = ConvertConfig(mode="mix", quality=50, raw_share=0.1)
    assert mix.normalised() == mix


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 4}, "--side must lie in 8..1024, got 4"),
        ({"quality": 0}, "--quality must lie in 1..95, got 0"),
        ({"quality": 100}, "--quality"),
        ({"mode": "png"}, "--mode must be jpeg, raw or mix"),
        ({"raw_share": 1.5}, "--raw-share must lie in 0..1"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        ConvertConfig(**options)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_bad_image_is_named_and_nothing_is_left(tmp_path: Path, processes: int, damage: str):
    source = write_photos(tmp_path / "images", 40)
    bad = source.root / source.samples.paths[37]
    bad.unlink() if damage == "missing" else bad.write_bytes(bad.read_bytes()[:300])
    out = tmp_path / "out"
    with pytest.raises(OscbenchError, match=rf"{bad.name} (is missing|does not decode)"):
        convert_split(source.root, source.samples, out / "a.beton", ConvertConfig(side=48), processes=processes)
    assert list(out.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(photos: DataSplit, tmp_path: Path):
    """The limit on file sizes gives the error that a full disk gives, at the first write beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, before[1]))
    try:
        with pytest.raises(OscbenchError, match=r"a\.beton: File too large; free space there or choose another folder"):
            convert(photos, tmp_path / "out" / "a.beton", side=256, mode="raw")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_process_and_can_be_repeated(photos: DataSplit, tmp_path: Path):
    from oscbench.data.samples import write_samples

    code = f"""
        from pathlib import Path
        from oscbench.data.convert import ConvertConfig, convert_split
        from oscbench.data.samples import SampleTable, read_samples
        import numpy as np
        if __name__ == "__main__":
            one = read_samples(Path(r"{tmp_path}/table/train.csv"))
            many = SampleTable(one.paths * 400, np.tile(one.labels, 400))
            convert_split(Path(r"{photos.root}"), many, Path(r"{tmp_path}/out/a.beton"), ConvertConfig(), processes=2)
    """
    write_samples(tmp_path / "table" / "train.csv", photos.samples)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    process = subprocess.Popen([sys.executable, script])
    try:
        wait_until(lambda: len(children(process.pid)) >= 3, "two workers and the resource tracker")
        wait_until(lambda: any(path.stat().st_size for path in (tmp_path / "out").glob(".a.beton*")), "the first bytes")
        workers = children(process.pid)
    finally:
        process.kill()
        process.wait()
    wait_for_the_end_of(workers, "the conversion's processes")
    assert len(list((tmp_path / "out").iterdir())) == 1
    convert(photos, tmp_path / "out" / "a.beton")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.beton", "a.sha256"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_only_a_whole_split_of_the_same_settings_counts_as_finished(photos: DataSplit, tmp_path: Path):
    beton = tmp_path / "a.beton"
    assert finished_file(beton, "f1") is None
    file = convert(photos, beton)
    record_finished(beton, "f1", file)
    assert finished_file(beton, "f1") == file
    assert finished_file(beton, "f2") is None
    beton.write_bytes(beton.read_bytes()[:-1])
    assert finished_file(beton, "f1") is None


def test_damage_is_told_apart(photos: DataSplit, tmp_path: Path):
    beton = tmp_path / "a.beton"
    file = convert(photos, beton)
    assert beton_problem(beton, file) == ""
    content = bytearray(beton.read_bytes())
    content[len(content) // 2 + 4_000_000] ^= 1
    beton.write_bytes(content)
    assert beton_problem(beton, file) == f"{beton} was altered: its SHA-256 differs"
    beton.write_bytes(content[:-5])
    assert beton_problem(beton, file) == f"{beton} has {len(content) - 5} bytes instead of {len(content)}"
    beton.unlink()
    assert beton_problem(beton, file) == f"{beton} is missing"


def test_labels_come_back_as_they_were(photos: DataSplit, tmp_path: Path):
    from oscbench.data.ffcv import open_reader

    convert(photos, tmp_path / "a.beton")
    reader = open_reader(tmp_path / "a.beton")
    assert reader.metadata["f1"].tolist() == photos.samples.labels.tolist()
    assert set(reader.metadata["f1"].tolist()) == {-2, -1, 0, 1, 2}
    assert reader.metadata["f2"].tolist() == np.arange(N).tolist()
