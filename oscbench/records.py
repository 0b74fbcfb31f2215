"""Strict records from mappings, canonical JSON and the fingerprints that decide what can be re-used."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from oscbench.errors import UsageError
from oscbench.registry import nearest

SCHEMA = 2
"""Version of every file format of this package; a folder of another version is refused."""

T = TypeVar("T")


def canonical_json(value: Any) -> str:
    """``value`` as JSON with sorted keys and no blanks: equal content gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=plain, allow_nan=False)


def plain(value: Any) -> Any:
    """What JSON stores for a value that it has no form for: records, paths and numpy scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # numpy scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def fingerprint(stage: str, config: Any, inputs: Mapping[str, str]) -> str:
    """First 16 hex digits of the SHA-256 over what decides a stage's result.

    Args:
        stage: Name of the stage (``samples``, ``train``, …).
        config: A record or mapping of only what changes the result: no paths, devices, block sizes or shard counts.
        inputs: Fingerprint of each input by its stage name.
    """
    text = canonical_json({"schema": SCHEMA, "stage": stage, "config": config, "inputs": dict(inputs)})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_mapping(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping; unknown keys, wrong types and impossible values are reported together.

    Args:
        cls: A dataclass, or a generic one with its types filled in; its ``__post_init__`` raises ``ValueError`` for
            impossible values.
        mapping: For example one section of a YAML file; a field that is a dataclass itself takes a mapping.
        where: Where the mapping came from, named in the message (``search_spaces/evm.yaml``).
    """
    try:
        return _record(cls, mapping)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


_type_hints = functools.cache(get_type_hints)  # resolving them takes longer than reading a record


def check_choices(record: Any) -> None:
    """Refuses a value that is none of its field's ``Literal`` choices, for records made in Python."""
    for name, hint in _type_hints(cast(Any, type(record))).items():
        value = getattr(record, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            choices = [str(choice) for choice in get_args(hint)]
            raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}{nearest(str(value), choices)}")


def _record(cls: type[T], mapping: Mapping[str, Any]) -> T:
    record: Any = get_origin(cls) or cls
    fields = {field.name: field for field in dataclasses.fields(record) if field.init}
    chosen = dict(zip(getattr(record, "__parameters__", ()), get_args(cls), strict=False))
    hints = {name: chosen.get(hint, hint) for name, hint in _type_hints(record).items()}
    problems = [f"unknown key {key!r}{nearest(str(key), fields)}" for key in mapping if key not in fields]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in mapping:
            try:
                values[name] = _typed(hints[name], mapping[name])
            except ValueError as error:
                problems.append(f"{name}: {error}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"missing key {name!r}")
    if not problems:
        try:
            return cast(T, record(**values))
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; ".join(problems))


def _typed(hint: Any, value: Any) -> Any:
    """``value`` as ``hint`` asks, without guessing: an int may become a float, nothing else is converted."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return _typed(option, value)
            except ValueError:
                continue
        raise ValueError(f"expected {hint}, got {value!r}")
    if origin is Literal:
        if value not in get_args(hint):
            choices = get_args(hint)
            raise ValueError(
                f"expected one of {', '.join(map(str, choices))}, got {value!r}{nearest(str(value), map(str, choices))}"
            )
        return value
    if origin in (tuple, list, Sequence):
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, got {value!r}")
        items = get_args(hint)
        if items[-1] is Ellipsis or origin is not tuple:
            items = (items[0],) * len(value)
        if len(items) != len(value):
            raise ValueError(f"expected {len(items)} values, got {value!r}")
        return tuple(_typed(item, part) for item, part in zip(items, value, strict=True))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a mapping, got {value!r}")
        return {_typed(get_args(hint)[0], key): _typed(get_args(hint)[1], part) for key, part in value.items()}
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _record(hint, value)  # type: ignore[arg-type]
    if hint is type(None):
        if value is not None:
            raise ValueError(f"expected nothing, got {value!r}")
        return None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ValueError(f"expected {hint.__name__}, got {value!r}")
    return value
