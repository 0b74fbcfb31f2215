"""Protocols: which classes are known, which serve as negatives in training and which stay unknown until the test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from oscbench.artifacts import write_text
from oscbench.errors import UsageError
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.registry import nearest

Role = Literal["known", "negative", "unknown"]
ROLES: Final[tuple[Role, ...]] = ("known", "negative", "unknown")
PUBLISHED: Final = ("p1", "p2", "p3")
"""Names of the protocols of "Large-Scale Open-Set Classification Protocols for ImageNet"."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class ProtocolClass:
    """One class of a protocol.

    Attributes:
        wnid: WordNet id, which is also the name of its image folder.
        name: What people call it; not a key ("crane" is a bird and a machine).
        label: 0..K-1 for known classes, -1 for negatives, -2 for unknowns.
        printed_order: Its place in its role's list as the paper prints it, or as a protocol of one's own names it.
    """

    wnid: str
    name: str
    label: int
    printed_order: int


@dataclass(frozen=True)
class Protocol:
    """Three disjoint lists of classes, each sorted by wnid; the place of a known class is its label.

    Make one with ``make_protocol`` or ``load_protocol``.
    """

    name: str
    known: tuple[ProtocolClass, ...]
    negative: tuple[ProtocolClass, ...]
    unknown: tuple[ProtocolClass, ...]

    @property
    def slug(self) -> str:
        """The protocol's name in folders and tables: ``p1``, ``p2``, ``p3`` or one's own."""
        return self.name

    @property
    def number(self) -> int | None:
        """1, 2 or 3 for the published protocols."""
        return PUBLISHED.index(self.name) + 1 if self.name in PUBLISHED else None

    @property
    def n_known(self) -> int:
        """K, the number of known classes."""
        return len(self.known)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """All wnids: known ones in label order, then negatives, then unknowns."""
        return tuple(member.wnid for role in ROLES for member in self.role(role))

    def role(self, role: Role) -> tuple[ProtocolClass, ...]:
        """The classes of one role."""
        members: tuple[ProtocolClass, ...] = getattr(self, role)
        return members

    @cached_property
    def _labels(self) -> dict[str, int]:
        return {member.wnid: member.label for role in ROLES for member in self.role(role)}

    def label_of(self, wnid: str) -> int:
        """0..K-1 for a known class, -1 for a negative, -2 for an unknown one."""
        if wnid not in self._labels:
            raise UsageError(f"class {wnid!r} is not in protocol {self.name}{nearest(wnid, self._labels)}")
        return self._labels[wnid]


def make_protocol(name: str, roles: Mapping[Role, Mapping[str, str]], where: str) -> Protocol:
    """A checked protocol from wnid → name mappings in the order given.

    Args:
        name: Lower-case letters, digits, ``-`` and ``_``.
        roles: Classes of each role; none may be empty and none may share a class.
        where: What the classes come from, named in messages (a file, the command line).
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: protocol name {name!r} may hold only a-z, 0-9, - and _")
    for role in ROLES:
        if not roles.get(role):
            raise UsageError(f"{where}: protocol {name} has no {role} classes; each role needs at least one")
    for i, first in enumerate(ROLES):
        for second in ROLES[i + 1 :]:
            shared = sorted(set(roles[first]) & set(roles[second]))
            if shared:
                shown = [f"{wnid} ({roles[first][wnid]})" for wnid in shared[:10]] + ["…"] * (len(shared) > 10)
                raise UsageError(f"{where}: {len(shared)} classes both {first} and {second}: {', '.join(shown)}")
    return Protocol(name, *(_members(role, roles[role]) for role in ROLES))


def _members(role: Role, names: Mapping[str, str]) -> tuple[ProtocolClass, ...]:
    printed = {wnid: place for place, wnid in enumerate(names)}
    fixed = {"negative": NEGATIVE, "unknown": UNKNOWN}
    return tuple(
        ProtocolClass(wnid, names[wnid], fixed.get(role, place), printed[wnid])
        for place, wnid in enumerate(sorted(names))
    )


def load_protocol(spec: str) -> Protocol:
    """The protocol called ``1``, ``2``, ``3`` (or ``p1`` …), or the one in a YAML or JSON file of that path."""
    name = spec if spec.startswith("p") else f"p{spec}"
    if name in PUBLISHED:
        from oscbench.protocols.imagenet import published_protocol

        return published_protocol(name)
    path = Path(spec)
    if path.suffix in (".yaml", ".yml", ".json"):
        return read_protocol(path)
    hint = nearest(name, PUBLISHED)
    raise UsageError(f"unknown protocol {spec!r}{hint} (1, 2, 3, or a .yaml file made by 'oscbench protocol build')")


def protocol_document(protocol: Protocol) -> dict[str, Any]:
    """The protocol as ``protocol show --json`` prints it and own protocol files hold it."""
    label = str(protocol.number or protocol.name)
    return {"protocol": label, "classes": {role: [asdict(c) for c in protocol.role(role)] for role in ROLES}}


def write_protocol(path: Path, protocol: Protocol) -> None:
    """Writes a protocol of one's own as YAML, classes in the order given: ``wnid: name`` per role."""
    import yaml

    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: a protocol file ends in .yaml")
    in_order = {role: sorted(protocol.role(role), key=lambda c: c.printed_order) for role in ROLES}
    document = {"protocol": protocol.name} | {r: {c.wnid: c.name for c in members} for r, members in in_order.items()}
    write_text(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def read_protocol(path: Path) -> Protocol:
    """Reads a protocol file: YAML or JSON with ``protocol`` and, per role, ``wnid: name`` or a list of wnids.

    The document of ``protocol show --json`` is read as well. A class need not be in WordNet: its id is the name of its
    image folder.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"protocol file {path} does not exist") from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"protocol file {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise UsageError(f"protocol file {path} holds no mapping; 'oscbench protocol build' writes one")
    lists = document.get("classes", document)
    name = document.get("protocol", path.stem)
    if not isinstance(lists, dict):
        raise UsageError(f"protocol file {path}: 'classes' must map each role to its classes")
    extra = [f"unknown key {key!r}{nearest(str(key), ROLES)}" for key in lists if key not in (*ROLES, "protocol")]
    if extra:
        raise UsageError(f"protocol file {path}: {'; '.join(extra)}")
    name = f"p{name}" if f"p{name}" in PUBLISHED else str(name)
    protocol = make_protocol(name, {r: _names(lists.get(r), f"{path}, {r}") for r in ROLES}, f"protocol file {path}")
    if name in PUBLISHED and protocol.classes != load_protocol(name).classes:
        raise UsageError(f"protocol file {path}: name {name} belongs to a published protocol; choose another")
    return protocol


def _names(value: Any, where: str) -> dict[str, str]:
    """Names by wnid of one role of a protocol file."""
    if value is None:
        return {}
    if isinstance(value, dict):
        pairs = [(wnid, name) for wnid, name in value.items()]
    elif isinstance(value, list):
        pairs = [(c.get("wnid"), c.get("name")) if isinstance(c, dict) else (c, c) for c in value]
    else:
        raise UsageError(f"{where}: expected classes, got {value!r}")
    names: dict[str, str] = {}
    for wnid, name in pairs:
        if not isinstance(wnid, str) or not wnid or "/" in wnid:
            raise UsageError(f"{where}: {wnid!r} is no class id (the name of an image folder)")
        if wnid in names:
            raise UsageError(f"{where}: class {wnid} is listed twice")
        names[wnid] = str(name or wnid)
    return names
