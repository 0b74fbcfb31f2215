"""The loader interface and its PIL loader, against torchvision's published transforms."""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from photo_folder import write_photos
from PIL import Image

from oscbench.data.loading import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Batch,
    DataSplit,
    LoaderConfig,
    PilLoader,
    RandAugment,
    decide_loader,
    open_loader,
)
from oscbench.errors import OscbenchError, UsageError
from oscbench.torchvision_import import torchvision

N = 17


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> DataSplit:
    return write_photos(tmp_path_factory.mktemp("photos"), N)


def config(**changes: object) -> LoaderConfig:
    return LoaderConfig(**({"train": True, "crop": 56, "stored_side": 64, "backend": "pil"} | changes))


def load(source: DataSplit, ids: np.ndarray, batch_size: int, epoch: int = 0, **changes: object) -> list[Batch]:
    loader = open_loader(source, config(**changes))
    try:
        return list(loader.epoch(epoch, ids, batch_size))
    finally:
        loader.close()


def images(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([batch.images for batch in batches])


def test_evaluation_is_the_published_transform(photos: DataSplit):
    transforms = torchvision.transforms
    published = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(56), transforms.ToTensor()])
    expected = torch.stack([published(Image.open(photos.root / path)) for path in photos.samples.paths])
    batches = load(photos, np.arange(N), 5, train=False)
    assert torch.equal(images(batches), expected)
    assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(N))
    assert torch.cat([batch.labels for batch in batches]).tolist() == photos.samples.labels.tolist()
    assert [len(batch.ids) for batch in batches] == [5, 5, 5, 2]
    assert (images(batches).dtype, batches[0].labels.dtype, batches[0].ids.dtype) == (
        torch.float32,
        torch.int64,
        torch.int64,
    )


def test_any_order_with_repeats_is_followed(photos: DataSplit):
    ids = np.array([3, 16, 3, 0, 7])
    batches = load(photos, ids, 2)
    assert torch.cat([batch.ids for batch in batches]).tolist() == ids.tolist()
    single = torch.cat([images(load(photos, np.array([i]), 1)) for i in ids])
    assert torch.equal(images(batches), single)


def test_any_number_of_shards_gives_each_sample_once(photos: DataSplit):
    whole = images(load(photos, np.arange(N), 4, train=False))
    for n_workers in (1, 2, 3):
        shards = np.array_split(np.arange(N), n_workers)
        parts = [load(photos, shard, 4, train=False) for shard in shards]
        assert torch.equal(torch.cat([images(part) for part in parts]), whole)


def test_training_repeats_and_changes_with_seed_and_epoch(photos: DataSplit):
    ids = np.arange(N)
    first = images(load(photos, ids, 4, epoch=2, seed=1))
    assert torch.equal(first, images(load(photos, ids, 7, epoch=2, seed=1, threads=3)))
    for changed in ({"epoch": 3, "seed": 1}, {"epoch": 2, "seed": 2}):
        assert not torch.equal(first, images(load(photos, ids, 4, **changed)))


def test_training_crops_come_from_the_resized_image(photos: DataSplit):
    resized = np.asarray(torchvision.transforms.Resize(64)(Image.open(photos.root / photos.samples.paths[1])))
    everywhere = {
        part.tobytes()
        for top in range(resized.shape[0] - 55)
        for left in range(resized.shape[1] - 55)
        for part in [resized[top : top + 56, left : left + 56]]
        for part in (part, part[:, ::-1])
    }
    seen = set()
    for epoch in range(20):
        (image,) = images(load(photos, np.array([1]), 1, epoch=epoch))
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy().tobytes()
        assert pixels in everywhere
        seen.add(pixels)
    assert len(seen) > 10


def test_normalisation_is_a_switch(photos: DataSplit):
    plain, normal = (images(load(photos, np.arange(3), 3, normalise=switch)) for switch in (False, True))
    expected = torchvision.transforms.functional.normalize(plain, IMAGENET_MEAN, IMAGENET_STD)
    assert torch.allclose(normal, expected, atol=1e-6)
    assert plain.min() >= 0
    assert plain.max() <= 1


def test_randaugment_repeats_and_leaves_the_generator_alone(photos: DataSplit):
    settings = {"randaugment": RandAugment(operations=2, magnitude=9)}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    augmented = images(load(photos, np.arange(N), 4, **settings))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augmented, images(load(photos, np.arange(N), 9, threads=2, **settings)))
    assert not torch.equal(augmented, images(load(photos, np.arange(N), 4)))
    evaluated = images(load(photos, np.arange(N), 4, train=False, **settings))
    assert torch.equal(evaluated, images(load(photos, np.arange(N), 4, train=False)))


def test_batches_are_safe_to_keep(photos: DataSplit):
    loader = open_loader(photos, config())
    kept, copies = [], []
    for batch in loader.epoch(0, np.arange(N), 2):
        kept.append(batch.images)
        copies.append(batch.images.clone())
    loader.close()
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_nothing_asked_for_gives_no_batch(photos: DataSplit):
    assert load(photos, np.array([], np.int64), 4) == []


def test_an_abandoned_epoch_leaves_no_thread(photos: DataSplit):
    before = threading.active_count()
    loader = open_loader(photos, config(threads=2))
    epoch = loader.epoch(0, np.arange(N), 2)
    next(epoch)
    epoch.close()
    loader.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(("ids", "batch_size", "message"), [([17], 1, "id 17"), ([-1], 1, "id -1"), ([0], 0, "batch")])
def test_impossible_requests_are_refused_at_once(photos: DataSplit, ids: list[int], batch_size: int, message: str):
    loader = open_loader(photos, config())
    with pytest.raises(UsageError, match=message):
        loader.epoch(0, np.array(ids), batch_size)
    loader.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"crop": 65}, "crop must lie in 1..64"), ({"crop": 0}, "crop"), ({"threads": 0}, "at least 1 thread")],
)
def test_impossible_settings_are_refused(changes: dict[str, int], message: str):
    with pytest.raises(UsageError, match=message):
        config(**changes)


def test_impossible_randaugment_is_refused():
    with pytest.raises(UsageError, match="magnitude in 0..30"):
        RandAugment(magnitude=31)


def test_a_damaged_image_ends_the_epoch_with_its_name(tmp_path: Path):
    source = write_photos(tmp_path, 4)
    (tmp_path / source.samples.paths[2]).write_bytes(b"no image")
    with pytest.raises(OscbenchError, match=r"002\.JPEG does not decode"):
        load(source, np.arange(4), 2)


@pytest.fixture
def without_ffcv(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"ffcv", *(name for name in sys.modules if name.startswith("ffcv."))}:
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    monkeypatch.delitem(sys.modules, "oscbench.data.ffcv", raising=False)


def test_the_loader_is_decided_by_what_is_here(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("oscbench.data.loading.ffcv_problem", lambda: "")
    cases = [(wanted, converted) for wanted in ("auto", "ffcv", "pil") for converted in (True, False)]
    assert [decide_loader(wanted, converted=converted) for wanted, converted in cases] == ["ffcv"] * 4 + ["pil"] * 2
    assert caplog.messages == []
    monkeypatch.setattr("oscbench.data.loading.ffcv_problem", lambda: "ffcv cannot be imported (why)")
    for converted, level in ((True, "WARNING"), (False, "INFO")):
        caplog.clear()
        assert decide_loader("auto", converted=converted) == decide_loader("pil", converted=converted) == "pil"
        assert caplog.messages == ["ffcv cannot be imported (why): images are read with PIL"]
        assert caplog.records[0].levelname == level
    assert decide_loader("ffcv", converted=True) == "ffcv"  # the workers may have it
    with pytest.raises(UsageError, match=r"ffcv cannot be imported \(why\); `oscbench doctor`.*--loader pil"):
        decide_loader("ffcv", converted=False)


def test_a_loader_never_falls_back_to_another(photos: DataSplit, without_ffcv: None, tmp_path: Path):
    assert isinstance(open_loader(photos, config()), PilLoader)
    with pytest.raises(UsageError, match="needs a converted file"):
        open_loader(photos, config(backend="ffcv"))
    converted = DataSplit(photos.root, photos.samples, tmp_path / "train.beton")
    host = re.escape(socket.gethostname())
    with pytest.raises(OscbenchError, match=rf"train\.beton is missing on {host}; .*--loader pil"):
        open_loader(converted, config(backend="ffcv"))
    (tmp_path / "train.beton").touch()
    with pytest.raises(OscbenchError, match=rf"ffcv cannot be imported .* on {host}, so .*train\.beton .*--loader pil"):
        open_loader(converted, config(backend="ffcv"))
