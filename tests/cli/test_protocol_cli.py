import json

import pytest

from oscbench.protocols.base import load_protocol


@pytest.fixture
def images(tmp_path):
    """Empty image files, five per training class and two per test class, of a small protocol and its file."""
    for folder, wnids, count in (
        ("train", ("n02119789", "n02119022", "n02114367"), 5),
        ("val", ("n02119789", "n02119022", "n02114367", "n02132136"), 2),
    ):
        for wnid in wnids:
            (tmp_path / "images" / folder / wnid).mkdir(parents=True)
            for i in range(count):
                (tmp_path / "images" / folder / wnid / f"{wnid}_{i}.JPEG").touch()
    classes = {"known": ["n02119789", "n02119022"], "negative": ["n02114367"], "unknown": ["n02132136"]}
    (tmp_path / "foxes.yaml").write_text(json.dumps({"protocol": "foxes"} | classes))
    return tmp_path


def test_list(run):
    code, out, err = run("protocol", "list")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["1", "116", "67", "166"],
        ["2", "30", "31", "55"],
        ["3", "151", "97", "164"],
    ]
    code, out, _ = run("protocol", "list", "--json")
    assert json.loads(out)["protocols"][2] == {"protocol": "3", "known": 151, "negative": 97, "unknown": 164}


@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_show_prints_every_class(run, number):
    protocol = load_protocol(number)
    code, out, _ = run("protocol", "show", number, "--json")
    document = json.loads(out)
    assert (code, document["protocol"]) == (0, number)
    for role in ("known", "negative", "unknown"):
        expected = [(c.wnid, c.name, c.label, c.printed_order) for c in protocol.role(role)]
        found = [(c["wnid"], c["name"], c["label"], c["printed_order"]) for c in document["classes"][role]]
        assert found == expected
    assert [c["label"] for c in document["classes"]["known"]] == list(range(protocol.n_known))
    code, out, _ = run("protocol", "show", number)
    assert len(out.splitlines()) == 1 + len(protocol.classes)


def test_build_then_use_the_file(run, tmp_path):
    path = tmp_path / "mine.yaml"
    code, out, err = run(
        *("protocol", "build", "--name", "mine", "--known", "dog", "--negative", "fox, wolf"),
        *("--unknown", "n03183080", "--out", path),
    )
    assert (code, out, err) == (0, f"{path}  116 known, 8 negative, 121 unknown\n", "")
    code, out, _ = run("protocol", "show", path, "--json")
    document = json.loads(out)
    assert document["protocol"] == "mine"
    assert [len(document["classes"][role]) for role in ("known", "negative", "unknown")] == [116, 8, 121]


def test_export_writes_the_published_format(run, images):
    arguments = ("protocol", "export", "--data", images / "images", "--protocol", images / "foxes.yaml")
    code, out, err = run(*arguments, "--out", images / "tables")
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()] == ["12", "3", "8"]
    test = (images / "tables" / "foxes_test.csv").read_text().splitlines()
    assert test[0] == "val/n02119022/n02119022_0.JPEG,0"
    assert test[2] == "val/n02119789/n02119789_0.JPEG,1"
    assert test[-1] == "val/n02132136/n02132136_1.JPEG,-2"
    train = (images / "tables" / "foxes_train.csv").read_bytes()
    assert run(*arguments, "--out", images / "tables", "--seed", "1")[0] == 0
    assert (images / "tables" / "foxes_train.csv").read_bytes() != train


def test_verify_names_short_classes_and_fails(run, images):
    code, out, _ = run("protocol", "verify", "--data", images / "images", "--protocol", images / "foxes.yaml")
    assert code == 0
    assert "all counts agree" in out
    for file in (images / "images" / "val" / "n02132136").iterdir():
        file.unlink()
    code, out, _ = run("protocol", "verify", "--data", images / "images", "--protocol", images / "foxes.yaml")
    assert code == 1
    assert "short: val/n02132136 (n02132136, unknown) has 0 images, at least 1 expected" in out
    code, out, _ = run("protocol", "verify", "--data", images / "images", "--protocol", "1", "--json")
    document = json.loads(out)
    assert (code, document["ok"], len(document["short"])) == (1, False, 183 + 349)
    assert document["counts"][0] == {
        **{"role": "known", "folder": "train", "classes": 116, "found": 0, "expected": 145273},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "p11"), "unknown protocol 'p11', did you mean 'p1'"),
        (("show", "nowhere.yaml"), "protocol file nowhere.yaml does not exist"),
        (("export", "--data", "nowhere"), "data folder nowhere does not exist"),
        (("verify", "--data", "nowhere"), "data folder nowhere does not exist"),
        (("build", "--known", "dgo", "--negative", "fox", "--unknown", "cat"), "'dgo', did you mean"),
        (("build", "--known", "crane", "--negative", "fox", "--unknown", "cat"), "n02012849"),
        (("build", "--known", "dog", "--negative", "", "--unknown", "cat"), "no negative classes"),
        (("build", "--known", "dog", "--negative", "canine", "--unknown", "cat"), "both known and negative"),
        (("build", "--known", "dog", "--negative", "fox", "--unknown", "cat", "--out", "a.txt"), "ends in .yaml"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("protocol", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_a_failure(run, images):
    (images / "file").touch()
    for arguments in (
        ("export", "--data", images / "images", "--protocol", images / "foxes.yaml", "--out", images / "file"),
        ("build", "--known", "dog", "--negative", "fox", "--unknown", "cat", "--out", images / "file" / "a.yaml"),
        ("build", "--known", "dog", "--negative", "fox", "--unknown", "cat", "--out", "/proc/a.yaml"),
    ):
        code, out, err = run("protocol", *arguments)
        assert (code, out) == (1, "")
        assert err.startswith("error: cannot write ")
        assert err.count("\n") == 1
