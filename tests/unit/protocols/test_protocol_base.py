import json

import pytest

from oscbench.errors import UsageError
from oscbench.protocols.base import load_protocol, make_protocol, protocol_document, read_protocol, write_protocol
from oscbench.protocols.build import build_protocol

ROLES = {"known": {"n3": "three", "n1": "one"}, "negative": {"n2": "two"}, "unknown": {"n9": "nine", "n4": "four"}}


def test_labels_follow_the_sorted_wnids():
    protocol = make_protocol("own", ROLES, "test")
    assert protocol.classes == ("n1", "n3", "n2", "n4", "n9")
    assert [protocol.label_of(wnid) for wnid in protocol.classes] == [0, 1, -1, -2, -2]
    assert [(c.wnid, c.label, c.printed_order) for c in protocol.known] == [("n1", 0, 1), ("n3", 1, 0)]
    assert (protocol.n_known, protocol.slug, protocol.number) == (2, "own", None)


def test_label_of_a_foreign_class_names_the_nearest():
    with pytest.raises(UsageError, match="class 'n02085621' is not in protocol p1, did you mean 'n020856"):
        load_protocol("1").label_of("n02085621")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"negative": {}}, "protocol own has no negative classes"),
        ({"unknown": {"n1": "one"}}, r"1 classes both known and unknown: n1 \(one\)"),
        ({"unknown": {"n2": "two"}}, r"1 classes both negative and unknown: n2 \(two\)"),
    ],
)
def test_impossible_roles_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        make_protocol("own", ROLES | change, "test")


def test_a_name_must_do_for_a_folder():
    with pytest.raises(UsageError, match="protocol name '../x' may hold only"):
        make_protocol("../x", ROLES, "test")


def test_round_trip_through_a_file(tmp_path):
    protocol = make_protocol("own", ROLES, "test")
    write_protocol(tmp_path / "own.yaml", protocol)
    assert load_protocol(str(tmp_path / "own.yaml")) == protocol


def test_the_json_document_is_a_protocol_file_too(tmp_path):
    protocol = build_protocol("dogs", {"known": ["toy dog"], "negative": ["fox"], "unknown": ["bear", "n02120997"]})
    (tmp_path / "dogs.json").write_text(json.dumps(protocol_document(protocol)))
    assert load_protocol(str(tmp_path / "dogs.json")).classes == protocol.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "holds no mapping"),
        ("known: {a: b}\nnegativ: {c: d}", "unknown key 'negativ', did you mean 'negative'"),
        ("known: [a, a]\nnegative: [b]\nunknown: [c]", "known: class a is listed twice"),
        ("known: [a]\nnegative: [b]\nunknown: [7]", "unknown: 7 is no class id"),
        ("known: [a]\nnegative: [b]\nunknown: c", "unknown: expected classes, got 'c'"),
        ("known: [a]\nnegative: [b]", "has no unknown classes"),
        ("known: [a\n", "cannot be read"),
        ("protocol: p1\nknown: [a]\nnegative: [b]\nunknown: [c]", "name p1 belongs to a published protocol"),
    ],
)
def test_bad_files_name_file_and_fault(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_protocol(path)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("p11", "unknown protocol 'p11', did you mean 'p1'"),
        ("4", "unknown protocol '4' .1, 2, 3, or a .yaml file"),
        ("absent.yaml", "protocol file absent.yaml does not exist"),
    ],
)
def test_unknown_protocols(spec, message):
    with pytest.raises(UsageError, match=message):
        load_protocol(spec)


def test_build_takes_all_classes_at_or_below_the_names():
    built = build_protocol("mine", {"known": ["dog"], "negative": ["fox", "wolf"], "unknown": ["n03183080"]})
    first = load_protocol("1")
    assert [c.wnid for c in built.known] == [c.wnid for c in first.known]
    assert {c.wnid for c in built.negative} < {c.wnid for c in first.negative}
    assert (len(built.negative), len(built.unknown)) == (8, 121)
    single = build_protocol("one", {"known": ["n02085620"], "negative": ["red fox", "fox"], "unknown": ["tench"]})
    assert single.classes[0] == "n02085620"
    assert len(single.negative) == 4  # red fox is below fox and counts once


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {"known": ["hunting dog"], "negative": ["dog"], "unknown": ["cat"]},
            "61 classes both known and negative: .*…",
        ),
        ({"known": ["dog"], "negative": [], "unknown": ["cat"]}, "no negative classes"),
        ({"known": ["dgo"], "negative": ["fox"], "unknown": ["cat"]}, "is called 'dgo', did you mean"),
    ],
)
def test_build_refuses(roles, message):
    with pytest.raises(UsageError, match=message):
        build_protocol("mine", roles)


def test_build_keeps_published_names_free():
    with pytest.raises(UsageError, match="p2 belongs to a published protocol"):
        build_protocol("p2", {"known": ["dog"], "negative": ["fox"], "unknown": ["cat"]})
