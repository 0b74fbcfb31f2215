"""The shipped tree against Debian's WordNet 3.0, and the published class lists against both."""

import csv
import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest
from protocol_rules import derive_classes

from oscbench.errors import UsageError
from oscbench.protocols.base import ROLES, load_protocol
from oscbench.protocols.wordnet import load_tree

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY / "oscbench" / "protocols" / "data"


def _script():
    spec = importlib.util.spec_from_file_location("make_wordnet_tree", REPOSITORY / "scripts" / "make_wordnet_tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows(name):
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def script():
    return _script()


@pytest.fixture(scope="module")
def wordnet(script):
    if not script.WORDNET.exists():
        pytest.skip("needs Debian's wordnet-base and wordnet-sense-index; run scripts/setup.sh")
    with script.open_wordnet() as reader:
        yield reader


@pytest.fixture(scope="module")
def printed():
    """(protocol, role) -> wnids in printed order, straight from the shipped lists."""
    lists = defaultdict(list)
    for row in _rows("classes.csv"):
        lists[int(row["protocol"]), row["role"]].append(row["wnid"])
    return lists


def test_the_printed_lists_follow_from_wordnet_itself(wordnet, printed):
    """All hypernyms of the real database except 22 links: another route than the shipped one-parent tree takes."""
    dropped = {
        (row["child_wnid"], row["dropped_parent_wnid"])
        for row in _rows("tree_overrides.csv")
        if row["needed_with_multi_parent_graph"] == "1"
    }
    assert len(dropped) == 22
    below = defaultdict(set)
    for row in _rows("wordnet_tree.csv"):
        if row["ilsvrc"] != "1":
            continue
        waiting = [wordnet.synset_from_pos_and_offset("n", int(row["wnid"][1:]))]
        while waiting:
            synset = waiting.pop()
            here = f"n{synset.offset():08}"
            below[here].add(row["wnid"])
            waiting += [s for s in synset.hypernyms() if (here, f"n{s.offset():08}") not in dropped]
    for number in (1, 2, 3):
        derived = derive_classes(number, lambda wnid: sorted(below[wnid]))
        assert derived == {role: printed[number, role] for role in ROLES}


def test_the_printed_lists_follow_from_the_shipped_tree(printed):
    for number in (1, 2, 3):
        derived = derive_classes(number, load_tree().classes_below)
        assert derived == {role: printed[number, role] for role in ROLES}


def test_the_shipped_tree_is_what_the_script_writes(script, wordnet):
    classes = script.shipped_classes()
    text = script.tree_text(classes, wordnet, script.database_order(script.WORDNET))
    assert text == (DATA / "wordnet_tree.csv").read_text(encoding="utf-8")
    assert (len(classes), text.count("\n")) == (1000, 1861)


def test_class_names_are_the_first_lemmas_and_printed_names_their_cuts():
    tree = load_tree()
    for row in _rows("classes.csv"):
        assert tree[row["wnid"]].is_class
        assert tree[row["wnid"]].name == row["wordnet_name"]
        assert row["wordnet_name"][:20].rstrip() == row["name"]


def test_overrides_choose_among_the_real_parents():
    parents = {row["wnid"]: row["parents"].split() for row in _rows("wordnet_tree.csv")}
    for row in _rows("tree_overrides.csv"):
        assert row["kept_parent_wnid"] in parents[row["child_wnid"]]
        assert row["dropped_parent_wnid"] in parents[row["child_wnid"]]
        assert load_tree()[row["child_wnid"]].parent == row["kept_parent_wnid"]


@pytest.mark.parametrize(("number", "sizes"), [("1", (116, 67, 166)), ("2", (30, 31, 55)), ("3", (151, 97, 164))])
def test_published_protocols(number, sizes, printed):
    protocol = load_protocol(number)
    assert (protocol.slug, protocol.number) == (f"p{number}", int(number))
    assert tuple(len(protocol.role(role)) for role in ROLES) == sizes
    for role in ROLES:
        in_print = sorted(protocol.role(role), key=lambda c: c.printed_order)
        assert [c.wnid for c in in_print] == printed[int(number), role]
        assert [c.wnid for c in protocol.role(role)] == sorted(printed[int(number), role])


def test_paths_and_distances():
    tree = load_tree()
    path = tree.path("n02085620")  # Chihuahua
    assert [tree[wnid].name for wnid in path[:2]] == ["entity", "physical entity"]
    assert [tree[wnid].name for wnid in path[-4:]] == ["canine", "dog", "toy dog", "Chihuahua"]
    assert tree.distance("n02085620", "n02085620") == 0
    assert tree.distance("n02085620", "n02084071") == 2
    assert tree.distance("n02085620", "n02114367") == 5  # timber wolf: toy dog, dog, canine, wolf


def test_find_by_name_lemma_or_wnid():
    tree = load_tree()
    assert {tree.find(name).wnid for name in ("dog", "Dog", "domestic_dog", "n02084071")} == {"n02084071"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crane", "'crane' has 2 meanings, give a wnid: n02012849 .*wading bird.*n03126707 .*lifting device"),
        ("chihuahu", "no class or group of ILSVRC-2012 is called 'chihuahu', did you mean 'Chihuahua'"),
        ("n02085621", "'n02085621', did you mean 'n020"),
    ],
)
def test_names_that_do_not_decide(name, message):
    with pytest.raises(UsageError, match=message):
        load_tree().find(name)


def test_an_unknown_wnid_is_refused():
    with pytest.raises(UsageError, match="'n99999999' is not above or among the ILSVRC-2012 classes"):
        load_tree().path("n99999999")
