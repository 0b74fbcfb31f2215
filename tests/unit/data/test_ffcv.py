"""FFCV files and their loader: pixels against PIL, the layout against FFCV's own reader, damage and hangs."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from photo_folder import write_photos
from PIL import Image

from oscbench.data.convert import ConvertConfig, convert_split
from oscbench.data.loading import Batch, DataSplit, ImageLoader, LoaderConfig, RandAugment, open_loader
from oscbench.data.samples import SampleTable
from oscbench.errors import OscbenchError, UsageError

pytestmark = pytest.mark.ffcv

N = 23
SIDE, CROP = 64, 56
JPEG_MAX, JPEG_MEAN = 8, 1.5
"""Levels by which FFCV's JPEG decoding may differ from PIL's of the same bytes (quality 90); measured: 5 and 1.0."""


def convert(source: DataSplit, mode: str, folder: Path) -> DataSplit:
    beton = folder / f"{mode}.beton"
    convert_split(source.root, source.samples, beton, ConvertConfig(side=SIDE, mode=mode))
    return replace(source, beton=beton)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> DataSplit:
    return write_photos(tmp_path_factory.mktemp("photos"), N)


@pytest.fixture(scope="module")
def splits(photos: DataSplit, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataSplit]:
    folder = tmp_path_factory.mktemp("beton")
    return {mode: convert(photos, mode, folder) for mode in ("raw", "jpeg", "mix")}


def config(**changes: object) -> LoaderConfig:
    return LoaderConfig(**({"train": True, "crop": CROP, "stored_side": SIDE, "backend": "ffcv"} | changes))


def load(source: DataSplit, ids: np.ndarray, batch_size: int, epoch: int = 0, **changes: object) -> list[Batch]:
    loader = open_loader(source, config(**changes))
    try:
        return list(loader.epoch(epoch, ids, batch_size))
    finally:
        loader.close()


def images(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([batch.images for batch in batches])


@pytest.fixture(scope="module")
def raw_loader(splits: dict[str, DataSplit]) -> Iterator[ImageLoader]:
    loader = open_loader(splits["raw"], config(threads=2))
    yield loader
    loader.close()


# --- pixels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_raw_pixels_equal_pils(splits: dict[str, DataSplit], train: bool, threads: int):
    ids = np.random.default_rng(0).permutation(N)
    options = {"train": train, "threads": threads, "seed": 4, "normalise": train}
    ffcv = load(splits["raw"], ids, 5, epoch=3, **options)
    pil = load(splits["raw"], ids, 5, epoch=3, backend="pil", **options)
    for ours, theirs in zip(ffcv, pil, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.ids, theirs.ids)


def stored_jpegs(source: DataSplit, folder: Path) -> DataSplit:
    """The very bytes that the FFCV file stores, as files that PIL can read."""
    from oscbench.data.ffcv import open_reader

    reader, content = open_reader(source.beton), source.beton.read_bytes()
    for sample, start, size in reader.alloc_table.tolist():
        (folder / f"{sample}.jpg").write_bytes(content[start : start + size])
    return DataSplit(folder, SampleTable(tuple(f"{row}.jpg" for row in range(N)), source.samples.labels))


@pytest.mark.parametrize("train", [True, False])
def test_jpeg_pixels_are_within_the_stated_bound_of_pils(splits: dict[str, DataSplit], tmp_path: Path, train: bool):
    same_bytes = stored_jpegs(splits["jpeg"], tmp_path)
    ffcv = images(load(splits["jpeg"], np.arange(N), 8, train=train))
    pil = images(load(same_bytes, np.arange(N), 8, train=train, backend="pil"))
    difference = (ffcv - pil).abs() * 255
    assert 0 < difference.mean() < JPEG_MEAN
    assert difference.max() < JPEG_MAX + 0.5


def test_stored_jpegs_are_near_the_originals(splits: dict[str, DataSplit]):
    ffcv = images(load(splits["jpeg"], np.arange(N), 8, train=False))
    pil = images(load(splits["jpeg"], np.arange(N), 8, train=False, backend="pil"))
    assert ((ffcv - pil).abs() * 255).mean() < 5  # quality 90 on noisy pixels


def test_a_mix_has_both_kinds(splits: dict[str, DataSplit]):
    from oscbench.data.ffcv import JPEG, RAW, open_reader

    modes = open_reader(splits["mix"].beton).metadata["f0"]["mode"]
    assert set(modes.tolist()) == {JPEG, RAW}
    mixed, raw, jpeg = (images(load(splits[mode], np.arange(N), 8, train=False)) for mode in ("mix", "raw", "jpeg"))
    for row in range(N):
        assert torch.equal(mixed[row], raw[row] if modes[row] == RAW else jpeg[row])


def test_randaugment_equals_pils(splits: dict[str, DataSplit]):
    options = {"randaugment": RandAugment(), "seed": 2}
    ffcv, pil = (load(splits["raw"], np.arange(N), 6, backend=backend, **options) for backend in ("ffcv", "pil"))
    assert torch.equal(images(ffcv), images(pil))


# --- the interface -----------------------------------------------------------------------------------------------


def test_each_epoch_brings_its_own_order_and_batch_size(raw_loader: ImageLoader, splits: dict[str, DataSplit]):
    for epoch, ids, batch_size in [(0, np.arange(N), 4), (1, np.array([5, 5, 22, 0]), 3), (0, np.arange(N)[::-1], N)]:
        batches = list(raw_loader.epoch(epoch, ids, batch_size))
        assert torch.cat([batch.ids for batch in batches]).tolist() == ids.tolist()
        assert [len(batch.ids) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert torch.equal(images(batches), images(load(splits["raw"], ids, 7, epoch=epoch, backend="pil")))


def test_any_number_of_shards_gives_each_sample_once(raw_loader: ImageLoader):
    whole = images(list(raw_loader.epoch(0, np.arange(N), 4)))
    for n_workers in (2, 3, 5):
        shards = [list(raw_loader.epoch(0, shard, 4)) for shard in np.array_split(np.arange(N), n_workers)]
        assert torch.equal(torch.cat([images(shard) for shard in shards]), whole)


def test_batches_are_safe_to_keep(raw_loader: ImageLoader):
    kept, copies = [], []
    for batch in raw_loader.epoch(0, np.arange(N), 1):  # many more batches than the queue holds
        kept.append(batch.images)
        copies.append(batch.images.clone())
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_two_epochs_may_run_side_by_side(raw_loader: ImageLoader):
    alone = images(list(raw_loader.epoch(0, np.arange(N), 4)))
    first, second = raw_loader.epoch(0, np.arange(N), 4), raw_loader.epoch(0, np.arange(N), 4)
    pairs = list(zip(first, second, strict=True))
    assert torch.equal(images([a for a, _ in pairs]), alone)
    assert torch.equal(images([b for _, b in pairs]), alone)


def test_nothing_asked_for_gives_no_batch(raw_loader: ImageLoader):
    assert list(raw_loader.epoch(0, np.array([], np.int64), 4)) == []


def test_an_abandoned_epoch_leaves_no_thread(raw_loader: ImageLoader):
    before = threading.active_count()
    epoch = raw_loader.epoch(0, np.arange(N), 1)
    next(epoch)
    assert threading.active_count() == before + 1
    epoch.close()
    assert threading.active_count() == before


def test_closing_ends_epochs_that_are_still_held(splits: dict[str, DataSplit]):
    before = threading.active_count()
    loader = open_loader(splits["raw"], config())
    epoch = loader.epoch(0, np.arange(N), 1)
    next(epoch)
    loader.close()
    loader.close()
    assert threading.active_count() == before
    epoch.close()


def test_importing_compiles_no_dictionary_and_leaves_numba_as_it_was():
    from numba.typed import Dict, typeddict

    from oscbench.data.ffcv import IMAGE_MODES

    assert type(IMAGE_MODES) is dict
    assert Dict is typeddict.Dict


def test_thread_counts_of_torch_and_numba_stay(splits: dict[str, DataSplit]):
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(2)
    numba.set_num_threads(2)
    try:
        load(splits["raw"], np.arange(N), 4, threads=1)
        assert (torch.get_num_threads(), numba.get_num_threads()) == (2, 2)
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


# --- the file ----------------------------------------------------------------------------------------------------


def test_ffcvs_own_loader_reads_the_file(splits: dict[str, DataSplit]):
    """An independent reader of the layout: FFCV's stock pipeline, its centre crop at scale 1."""
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption

    from oscbench.data.ffcv import kept_thread_counts

    source = splits["raw"]
    with kept_thread_counts():
        loader = Loader(
            str(source.beton),
            batch_size=N,
            num_workers=1,
            order=OrderOption.SEQUENTIAL,
            drop_last=False,
            pipelines={"image": [CenterCropRGBImageDecoder((SIDE, SIDE), ratio=1)]},
        )
        ((pixels, labels, ids),) = [tuple(torch.as_tensor(part).numpy().copy() for part in batch) for batch in loader]
    assert labels[:, 0].tolist() == source.samples.labels.tolist()
    assert ids[:, 0].tolist() == list(range(N))
    square = images(load(replace(source, beton=None), np.arange(N), N, train=False, crop=SIDE, backend="pil"))
    even = [row for row in range(N) if _even_margin(source, row)]  # where both round the centre alike
    assert len(even) > 5
    ours = (square * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(pixels[even], ours[even])


def _even_margin(source: DataSplit, row: int) -> bool:
    from oscbench.data.images import read_resized

    height, width = read_resized(source.root / source.samples.paths[row], SIDE).shape[:2]
    return (height - SIDE) % 2 == 0 and (width - SIDE) % 2 == 0


def test_two_loaders_on_one_file_agree(splits: dict[str, DataSplit], raw_loader: ImageLoader):
    again = images(load(splits["raw"], np.arange(N), 9, threads=1))
    assert torch.equal(again, images(list(raw_loader.epoch(0, np.arange(N), 4))))


# --- damage ------------------------------------------------------------------------------------------------------


def damaged(
    source: DataSplit, folder: Path, change: bytes | None = None, at: int = 0, keep: int | None = None
) -> DataSplit:
    content = bytearray(source.beton.read_bytes()[:keep])
    if change is not None:
        content[at : at + len(change)] = change
    path = folder / "damaged.beton"
    path.write_bytes(content)
    return replace(source, beton=path)


@pytest.mark.parametrize("keep", [0, 10, 3000, -1, -24])
def test_a_truncated_file_is_named_when_opened(splits: dict[str, DataSplit], tmp_path: Path, keep: int):
    with pytest.raises(OscbenchError, match=r"damaged\.beton is damaged \(.*\); delete it and run"):
        load(damaged(splits["jpeg"], tmp_path, keep=keep), np.arange(N), 4)


@pytest.mark.parametrize("at", [0, 2, 8, 16, 24, 30])
def test_a_wrong_header_is_named_when_opened(splits: dict[str, DataSplit], tmp_path: Path, at: int):
    with pytest.raises(OscbenchError, match=r"damaged\.beton is damaged"):
        load(damaged(splits["jpeg"], tmp_path, b"\xff\x7f", at), np.arange(N), 4)


def test_no_wrong_byte_in_the_tables_leads_outside_the_file(splits: dict[str, DataSplit], tmp_path: Path):
    """Compiled code trusts the tables: whatever passes the checks must stay inside file and image."""
    from oscbench.data.ffcv import check_beton, open_reader

    source = damaged(splits["mix"], tmp_path)
    content = source.beton.read_bytes()
    tables_end, allocations = 24 + 3 * 1041 + N * 32, len(content) - 24 * N
    rng, accepted, refused = np.random.default_rng(0), 0, []
    places = [*rng.integers(0, tables_end, 300).tolist(), *rng.integers(allocations, len(content), 150).tolist()]
    with source.beton.open("r+b") as file:
        for place in places:
            _overwrite(file, place, bytes([content[place] ^ int(rng.integers(1, 256))]))
            try:
                reader = open_reader(source.beton)
                check_beton(reader, source.beton, source.samples.labels, SIDE)
            except OscbenchError as error:
                refused.append(str(error))
            else:
                accepted += 1
                images, sizes = reader.metadata["f0"], reader.alloc_table["size"]
                assert np.all(images["data_ptr"] + sizes <= allocations)
                assert np.all(np.minimum(images["height"], images["width"]) == SIDE)
            _overwrite(file, place, content[place : place + 1])
    assert accepted > 0  # unused bytes of the field table may change
    assert refused
    assert all("damaged.beton" in message for message in refused)


def _overwrite(file: io.BufferedRandom, place: int, byte: bytes) -> None:
    file.seek(place)
    file.write(byte)
    file.flush()


def test_a_missing_file_is_named(splits: dict[str, DataSplit], tmp_path: Path):
    with pytest.raises(OscbenchError, match=r"none\.beton is missing on .*; make it with `oscbench data convert`"):
        load(replace(splits["jpeg"], beton=tmp_path / "none.beton"), np.arange(N), 4)


def test_a_damaged_jpeg_inside_ends_the_epoch(splits: dict[str, DataSplit], tmp_path: Path):
    from oscbench.data.ffcv import open_reader

    start = int(open_reader(splits["jpeg"].beton).metadata["f0"]["data_ptr"][9])
    source = damaged(splits["jpeg"], tmp_path, b"\0" * 400, start)
    with pytest.raises(OscbenchError, match="image of sample 9 does not decode"):
        load(source, np.arange(N), 4)


def test_an_error_in_the_reader_thread_is_raised_not_waited_for(
    raw_loader: ImageLoader, monkeypatch: pytest.MonkeyPatch
):
    from oscbench.data.ffcv import _Epoch

    def fail(*arguments: object) -> None:
        raise RuntimeError("inside the thread")

    monkeypatch.setattr(_Epoch, "run_pipeline", fail)
    with pytest.raises(RuntimeError, match="inside the thread"):
        list(raw_loader.epoch(0, np.arange(N), 4))


def test_a_reader_thread_that_dies_silently_is_noticed(raw_loader: ImageLoader, monkeypatch: pytest.MonkeyPatch):
    from oscbench.data.ffcv import _Epoch

    monkeypatch.setattr(_Epoch, "run", lambda self: None)
    with pytest.raises(OscbenchError, match="reader thread ended"):
        list(raw_loader.epoch(0, np.arange(N), 4))


def test_files_of_another_table_or_size_are_refused(splits: dict[str, DataSplit]):
    source = splits["jpeg"]
    labels = source.samples.labels.copy()
    labels[7] = 9
    with pytest.raises(UsageError, match="sample 7 has label 0, the sample table says 9"):
        open_loader(replace(source, samples=SampleTable(source.samples.paths, labels)), config())
    fewer = SampleTable(source.samples.paths[:-1], source.samples.labels[:-1])
    with pytest.raises(UsageError, match=f"holds {N} samples, the sample table {N - 1}"):
        open_loader(replace(source, samples=fewer), config())
    with pytest.raises(UsageError, match=r"shorter side 64\.\.64, asked for 72; .* --side 72"):
        open_loader(source, config(stored_side=72))


def test_an_image_larger_than_a_page_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    Image.new("RGB", (12_000, 40)).save(buffer, "PNG")
    (tmp_path / "wide.png").write_bytes(buffer.getvalue())
    table = SampleTable(("wide.png",), np.zeros(1, np.int64))
    with pytest.raises(OscbenchError, match="an FFCV page holds 8388608; use --mode jpeg"):
        convert_split(tmp_path, table, tmp_path / "a.beton", ConvertConfig(side=256, mode="raw"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wide.png"]
