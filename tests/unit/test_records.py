from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscbench.errors import UsageError
from oscbench.records import canonical_json, check_choices, fingerprint, from_mapping


@dataclass(frozen=True, kw_only=True)
class Record:
    tail_size: int
    factor: float = 1.0
    rule: Literal["inclusive", "published"] = "inclusive"
    sizes: tuple[int, ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise ValueError(f"tail_size must be at least 1, got {self.tail_size}")


def test_record_from_a_mapping():
    record = from_mapping(Record, {"tail_size": 3, "factor": 2, "sizes": [1, 2], "note": None}, "f.yaml")
    assert record == Record(tail_size=3, factor=2.0, sizes=(1, 2))
    assert isinstance(record.factor, float)


def test_all_problems_are_reported_together_with_their_keys():
    with pytest.raises(UsageError) as raised:
        from_mapping(Record, {"tail_sise": 3, "factor": "a", "rule": "inclusiv", "sizes": [1, "b"]}, "f.yaml")
    message = str(raised.value)
    assert message.startswith("f.yaml: ")
    for part in (
        "'tail_sise', did you mean 'tail_size'?",
        "missing key 'tail_size'",
        "factor: expected float, got 'a'",
    ):
        assert part in message
    assert "did you mean 'inclusive'?" in message
    assert "sizes: expected int, got 'b'" in message
    assert "\n" not in message


@dataclass(frozen=True, kw_only=True)
class Nest:
    inner: Record
    counts: dict[str, int]
    anything: dict[str, Any]
    maybe: dict[str, float | None] | None = None


def test_records_within_records_and_mappings_are_read_as_strictly():
    raw = {"inner": {"tail_size": 3}, "counts": {"a": 1}, "anything": {"b": [None]}, "maybe": {"c": 1, "d": None}}
    nest = from_mapping(Nest, raw, "here")
    assert nest.inner == Record(tail_size=3)
    assert nest.maybe == {"c": 1.0, "d": None}
    assert from_mapping(Nest, raw | {"inner": Record(tail_size=3), "maybe": None}, "here").inner == nest.inner
    for change, message in [
        ({"inner": {"tail_size": 0}}, "here: inner: tail_size must be at least 1"),
        ({"inner": {"tail_sise": 3}}, "here: inner: unknown key 'tail_sise', did you mean 'tail_size'"),
        ({"inner": 7}, "inner: expected Record, got 7"),
        ({"counts": {"a": "1"}}, "counts: expected int, got '1'"),
        ({"counts": {1: 1}}, "counts: expected str, got 1"),
        ({"counts": []}, r"counts: expected a mapping, got \[\]"),
    ]:
        with pytest.raises(UsageError, match=message):
            from_mapping(Nest, raw | change, "here")


@pytest.mark.parametrize(("value", "part"), [(0, "at least 1"), (True, "expected int"), (1.5, "expected int")])
def test_impossible_values_are_refused(value: object, part: str):
    with pytest.raises(UsageError, match=part):
        from_mapping(Record, {"tail_size": value}, "here")


def test_fingerprint_is_the_stated_hash():
    text = '{"config":{"a":1,"b":[1,2]},"inputs":{"samples":"ab"},"schema":2,"stage":"train"}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert fingerprint("train", {"b": (1, 2), "a": 1}, {"samples": "ab"}) == expected


@given(
    st.dictionaries(st.text(min_size=1), st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=2)
)
def test_canonical_json_ignores_the_order_of_keys(mapping: dict[str, float]):
    backwards = dict(reversed(list(mapping.items())))
    assert canonical_json(mapping) == canonical_json(backwards)
    assert fingerprint("s", mapping, {}) == fingerprint("s", backwards, {})


@pytest.mark.parametrize(
    "change", [("s2", {"a": 1}, {"x": "1"}), ("s", {"a": 2}, {"x": "1"}), ("s", {"a": 1}, {"x": "2"})]
)
def test_fingerprint_changes_with_everything_that_decides(change: tuple[str, dict[str, int], dict[str, str]]):
    assert fingerprint(*change) != fingerprint("s", {"a": 1}, {"x": "1"})


def test_choices_of_records_made_in_python_are_checked():
    check_choices(Record(tail_size=1))
    wrong: Any = "inclusiv"
    message = "rule must be one of inclusive, published, got 'inclusiv', did you mean 'inclusive'?"
    with pytest.raises(UsageError) as raised:
        check_choices(Record(tail_size=1, rule=wrong))
    assert str(raised.value) == message
