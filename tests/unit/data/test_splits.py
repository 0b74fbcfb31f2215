import hashlib

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from oscbench.data.counts import published_counts, verify_counts
from oscbench.data.samples import write_samples
from oscbench.data.splits import make_splits
from oscbench.errors import UsageError
from oscbench.protocols.base import ROLES, load_protocol


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Empty image files of protocol 2: 5 to 7 per training class, 2 per test class; a split reads only names."""
    root = tmp_path_factory.mktemp("ilsvrc")
    protocol = load_protocol("2")
    for place, wnid in enumerate(protocol.classes):
        for folder, count in (("train", 5 + place % 3), ("val", 2)):
            if folder == "train" and protocol.label_of(wnid) == -2:
                continue
            (root / folder / wnid).mkdir(parents=True)
            for i in reversed(range(count)):
                (root / folder / wnid / f"{wnid}_{i * 7}.JPEG").touch()
    return root


def published_split(root, protocol, seed):
    """The split written out from its description."""
    images, classes = [], []
    for role in ("known", "negative"):
        for wnid in sorted(c.wnid for c in protocol.role(role)):
            for path in sorted((root / "train" / wnid).iterdir(), key=lambda p: p.name):
                images.append(f"train/{wnid}/{path.name}")
                classes.append(wnid)
    train, val = train_test_split(images, train_size=0.8, stratify=classes, random_state=seed)
    test = []
    for role in ROLES:
        for wnid in sorted(c.wnid for c in protocol.role(role)):
            test += [f"val/{wnid}/{name}" for name in sorted(p.name for p in (root / "val" / wnid).iterdir())]
    return {"train": train, "val": val, "test": test}


@pytest.mark.parametrize("seed", [42, 7])
def test_the_split_is_the_published_one(root, seed):
    protocol = load_protocol("2")
    tables = make_splits(protocol, root, seed=seed)
    expected = published_split(root, protocol, seed)
    assert {split: list(table.paths) for split, table in tables.items()} == expected
    known = sorted(c.wnid for c in protocol.known)
    for split, table in tables.items():
        assert table.labels.dtype == np.int64
        for path, label in zip(table.paths, table.labels, strict=True):
            wnid = path.split("/")[1]
            negative = wnid in {c.wnid for c in protocol.negative}
            assert label == (known.index(wnid) if wnid in known else -1 if negative else -2), split


def test_default_seed_and_golden_table(root, tmp_path):
    """Golden value: SHA-256 of p2_train.csv for the folder above, made by this test; no tolerance."""
    write_samples(tmp_path / "p2_train.csv", make_splits(load_protocol("2"), root)["train"])
    digest = hashlib.sha256((tmp_path / "p2_train.csv").read_bytes()).hexdigest()
    assert digest == "5a3785c923302f1686003279b4d017a45be6ee70492cf2e5d7e3e0c44e7bc6c4"


def test_no_image_is_in_two_splits_and_none_is_lost(root):
    tables = make_splits(load_protocol("2"), root)
    together = [path for table in tables.values() for path in table.paths]
    on_disk = [p.relative_to(root).as_posix() for p in root.rglob("*.JPEG")]
    assert sorted(together) == sorted(on_disk)


def test_other_files_are_no_images(root):
    folder = root / "val" / load_protocol("2").classes[0]
    for name in ("Thumbs.db", ".hidden.JPEG"):
        (folder / name).touch()
    try:
        assert not any("Thumbs" in p or "hidden" in p for p in make_splits(load_protocol("2"), root)["test"].paths)
    finally:
        for name in ("Thumbs.db", ".hidden.JPEG"):
            (folder / name).unlink()


def test_missing_folders_are_named(root, tmp_path):
    with pytest.raises(UsageError, match="data folder .*nowhere does not exist; make demo data"):
        make_splits(load_protocol("2"), tmp_path / "nowhere")
    (tmp_path / "train").mkdir()
    with pytest.raises(UsageError, match="has no folder val/"):
        make_splits(load_protocol("2"), tmp_path)
    with pytest.raises(UsageError, match=r"too few images in \d+ class folders: train/n0.*and \d+ more"):
        make_splits(load_protocol("1"), root)


def test_too_few_images_for_a_split(tmp_path):
    protocol = load_protocol("2")
    for wnid in protocol.classes:
        for folder in ("train", "val"):
            (tmp_path / folder / wnid).mkdir(parents=True)
            for i in range(2):
                (tmp_path / folder / wnid / f"{i}.JPEG").touch()
    with pytest.raises(UsageError, match="122 images of 61 classes are too few for an 80:20 split"):
        make_splits(protocol, tmp_path)


def test_published_counts_are_those_of_table_1():
    counts = published_counts(load_protocol("1"))
    assert counts["known", "train"] == 116218 + 29055
    assert counts["negative", "train"] == 69680 + 17420
    assert {role: counts[role, "val"] for role in ROLES} == {"known": 5800, "negative": 3350, "unknown": 8300}
    assert ("unknown", "train") not in counts
    for number in "123":
        protocol = load_protocol(number)
        for role in ROLES:
            assert published_counts(protocol)[role, "val"] == 50 * len(protocol.role(role))


def test_verify_names_every_short_class(root):
    protocol = load_protocol("2")
    found = verify_counts(protocol, root)
    assert not found.ok
    assert len(found.short) == 61 + 116
    assert {(s.folder, s.wnid) for s in found.short if s.folder == "val"} == {("val", w) for w in protocol.classes}
    counts = {(c.role, c.folder): (c.classes, c.found, c.expected) for c in found.counts}
    assert counts["known", "val"] == (30, 60, 1500)
    assert counts["known", "train"] == (30, sum(5 + i % 3 for i in range(30)), 28895 + 7224)


def test_verify_of_full_folders_agrees(tmp_path, monkeypatch):
    """Every class as large as ILSVRC's: the printed totals are met, and one image less is noticed."""
    protocol = load_protocol("2")
    sizes = {}
    for role, total in (("known", 36119), ("negative", 39743)):
        members = [c.wnid for c in protocol.role(role)]
        sizes |= {("train", w): total // len(members) + (i < total % len(members)) for i, w in enumerate(members)}
    sizes |= {("val", w): 50 for w in protocol.classes}

    def fake(root, part, members):
        return {c.wnid: [f"{i}.JPEG" for i in range(sizes[part, c.wnid])] for c in members}

    monkeypatch.setattr("oscbench.data.counts.list_images", fake)
    assert verify_counts(protocol, tmp_path).ok
    sizes["train", protocol.classes[3]] -= 1
    assert not verify_counts(protocol, tmp_path).ok
    sizes["train", protocol.classes[3]] = 700
    assert [s.wnid for s in verify_counts(protocol, tmp_path).short] == [protocol.classes[3]]
