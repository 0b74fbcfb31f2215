"""The embedded data: layout, bytes that depend on nothing but their names, resuming, refusals."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from oscbench.data.demo import DemoConfig, draw_demo
from oscbench.errors import OscbenchError, UsageError
from oscbench.protocols.base import make_protocol

SMALL = DemoConfig(per_class=3, test_per_class=2, size=24)
CHIHUAHUA, BEAGLE, WOLF, ABACUS = "n02085620", "n02088364", "n02114367", "n02666196"


def protocol(known=(CHIHUAHUA, BEAGLE), negative=(WOLF,), unknown=(ABACUS,), name="own"):
    roles = {"known": known, "negative": negative, "unknown": unknown}
    return make_protocol(name, {role: {wnid: wnid for wnid in wnids} for role, wnids in roles.items()}, "test")


def digests(root):
    """SHA-256 of every file below a folder."""
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files(root)}


def files(root):
    return sorted(path for path in Path(root).rglob("*") if path.is_file())


def test_the_tree_has_the_shape_of_ilsvrc(tmp_path):
    seen = []
    draw_demo(tmp_path / "demo", SMALL, protocol(), progress=lambda done, total: seen.append((done, total)))
    names = {path.relative_to(tmp_path / "demo").as_posix() for path in files(tmp_path / "demo")}
    train = {f"train/{wnid}/{wnid}_{i:05}.JPEG" for wnid in (CHIHUAHUA, BEAGLE, WOLF) for i in range(3)}
    val = {f"val/{wnid}/{wnid}_{i:05}.JPEG" for wnid in (CHIHUAHUA, BEAGLE, WOLF, ABACUS) for i in range(2)}
    assert names == train | val | {"demo.json"}
    assert seen[-1] == (17, 17)
    for path in files(tmp_path / "demo" / "val"):
        with Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (24, 24))
            image.load()


def test_every_byte_repeats_in_another_process_with_other_workers(tmp_path):
    draw_demo(tmp_path / "one", SMALL, protocol(), workers=1)
    draw_demo(tmp_path / "two", SMALL, protocol(), workers=3)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_demo as t\n"
        "t.draw_demo(Path(sys.argv[1]), t.SMALL, t.protocol())"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "three", Path(__file__).parent], check=True)
    assert digests(tmp_path / "one") == digests(tmp_path / "two") == digests(tmp_path / "three")


def test_images_do_not_depend_on_protocol_role_or_count(tmp_path):
    draw_demo(tmp_path / "one", SMALL, protocol())
    draw_demo(tmp_path / "other", SMALL, protocol((WOLF,), (ABACUS,), (BEAGLE, CHIHUAHUA)))
    draw_demo(tmp_path / "more", DemoConfig(per_class=5, test_per_class=3, size=24), protocol())
    first, other, more = (digests(tmp_path / name) for name in ("one", "other", "more"))
    shared = (set(first) & set(other)) - {"demo.json"}
    assert len(shared) == 11  # the wolf's training images and every test image
    assert all(first[name] == other[name] for name in shared)
    assert all(first[name] == more[name] for name in first if name != "demo.json")


def test_all_images_differ_and_another_seed_draws_others(tmp_path):
    draw_demo(tmp_path / "zero", SMALL, protocol())
    draw_demo(tmp_path / "one", DemoConfig(per_class=3, test_per_class=2, size=24, seed=1), protocol())
    zero, one = digests(tmp_path / "zero"), digests(tmp_path / "one")
    assert len(set(zero.values()) | set(one.values())) == len(zero) + len(one)


def test_a_second_call_draws_only_what_is_missing(tmp_path):
    draw_demo(tmp_path, SMALL, protocol())
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    content = digests(tmp_path)
    damaged = tmp_path / "train" / BEAGLE
    next(damaged.iterdir()).unlink()
    seen = []
    draw_demo(tmp_path, SMALL, protocol(), progress=lambda done, total: seen.append((done, total)))
    assert digests(tmp_path) == content
    assert seen == [(17, 17)]
    after = {path: path.stat().st_ino for path in files(tmp_path)}
    assert all(after[path] == before[path] for path in before if path.parent != damaged)


def test_protocols_share_a_tree(tmp_path):
    draw_demo(tmp_path / "shared", SMALL, protocol())
    draw_demo(tmp_path / "shared", SMALL, protocol((ABACUS,), (BEAGLE,), (WOLF,)))
    draw_demo(tmp_path / "alone", SMALL, protocol((ABACUS,), (BEAGLE,), (WOLF,)))
    shared, alone = digests(tmp_path / "shared"), digests(tmp_path / "alone")
    assert alone.items() <= shared.items()


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_demo as t\n"
        "def kill(done, total): done >= 8 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "t.draw_demo(Path(sys.argv[1]), t.SMALL, t.protocol(), kill, workers=1)"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path / "killed", Path(__file__).parent], check=False)
    assert killed.returncode == -signal.SIGKILL
    whole = [folder for folder in (tmp_path / "killed").glob("*/n*") if folder.is_dir()]
    assert 0 < len(whole) < 7
    assert {len(list(folder.iterdir())) for folder in whole} <= {2, 3}
    draw_demo(tmp_path / "killed", SMALL, protocol())
    draw_demo(tmp_path / "fresh", SMALL, protocol())
    assert digests(tmp_path / "killed") == digests(tmp_path / "fresh")


def test_other_settings_need_another_folder(tmp_path):
    draw_demo(tmp_path, SMALL, protocol())
    with pytest.raises(UsageError, match=r"other settings \(size 24 there, 32 here\); choose another --out"):
        draw_demo(tmp_path, DemoConfig(per_class=3, test_per_class=2, size=32), protocol())
    (tmp_path / "demo.json").write_text("{")
    with pytest.raises(OscbenchError, match="demo.json is damaged"):
        draw_demo(tmp_path, SMALL, protocol())


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and holds no demo data"):
        draw_demo(tmp_path, SMALL, protocol())
    assert [path.name for path in files(tmp_path)] == ["thesis.tex"]


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(OscbenchError, match="cannot write demo data to .*: Not a directory"):
        draw_demo(tmp_path / "out", SMALL, protocol())
    with pytest.raises(OscbenchError, match="cannot write .*: Not a directory"):
        draw_demo(tmp_path / "out" / "below", SMALL, protocol())


def test_a_full_disk_leaves_no_half_folder(tmp_path, monkeypatch):
    """The third image of a folder meets a full disk after its first bytes are written."""
    save = Image.Image.save

    def full(image, path, **options):
        if path.name.endswith("2.JPEG"):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(image, path, **options)

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OscbenchError, match="cannot write .*: No space left on device; free space there"):
        draw_demo(tmp_path, SMALL, protocol())
    assert not files(tmp_path / "train")
    assert not [path for path in tmp_path.rglob(".*")]
    monkeypatch.undo()
    draw_demo(tmp_path, SMALL, protocol())
    assert len(files(tmp_path)) == 18


def test_classes_outside_wordnet_cannot_be_drawn(tmp_path):
    with pytest.raises(UsageError, match="class 'teapots' of protocol own is not in WordNet"):
        draw_demo(tmp_path / "out", SMALL, protocol(unknown=("teapots",)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "value"), [("per_class", 1), ("test_per_class", 0), ("size", 8), ("seed", -1)])
def test_impossible_settings(name, value):
    with pytest.raises(UsageError, match=f"{name} must be at least .* got {value}"):
        DemoConfig(**{name: value})


def test_the_fingerprint_knows_every_setting():
    changed = [
        DemoConfig(),
        DemoConfig(per_class=151),
        DemoConfig(test_per_class=41),
        DemoConfig(size=49),
        DemoConfig(seed=1),
    ]
    assert len({config.fingerprint for config in changed}) == len(changed)
    assert DemoConfig().fingerprint == DemoConfig().fingerprint
