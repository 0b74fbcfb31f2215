"""How many images a data folder has per role and class, against what the paper counted in ILSVRC-2012."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oscbench.data.splits import list_images
from oscbench.protocols.base import ROLES, Protocol, ProtocolClass, Role
from oscbench.protocols.wordnet import read_table

LEAST_PER_CLASS = {"train": 732, "val": 50}
"""Smallest class of ILSVRC-2012 in either folder (Russakovsky et al. 2015, Table 2)."""


@dataclass(frozen=True)
class RoleCount:
    """Images of one role in one folder; ``expected`` is ``None`` for protocols of one's own.

    The folder ``train`` holds the training and the validation rows of the paper's Table 1, ``val`` its test rows.
    """

    role: Role
    folder: str
    classes: int
    found: int
    expected: int | None


@dataclass(frozen=True)
class ShortClass:
    """A class folder with fewer images than any class of ILSVRC-2012 has (one's own protocol: with none)."""

    wnid: str
    name: str
    role: Role
    folder: str
    found: int
    at_least: int


@dataclass(frozen=True)
class CountComparison:
    """What ``verify_counts`` found."""

    counts: tuple[RoleCount, ...]
    short: tuple[ShortClass, ...]

    @property
    def ok(self) -> bool:
        """Whether no class is short and every count is the printed one."""
        return not self.short and all(count.expected in (None, count.found) for count in self.counts)


def published_split_counts(protocol: Protocol) -> dict[tuple[Role, str], int]:
    """Samples by (role, split) in Table 1 of the protocols' paper; empty for protocols of one's own."""
    columns = {"train": "train_samples", "val": "validation_samples", "test": "test_samples"}
    rows = {row["role"]: row for row in read_table("paper_counts.csv") if row["protocol"] == str(protocol.number)}
    return {
        (role, split): int(rows[role][column])
        for role in ROLES
        for split, column in columns.items()
        if role in rows and rows[role][column]
    }


def published_counts(protocol: Protocol) -> dict[tuple[str, str], int]:
    """Images by (role, folder) in Table 1: the folder ``train`` is split into training and validation."""
    folders = {"train": "train", "val": "train", "test": "val"}
    counts: dict[tuple[str, str], int] = {}
    for (role, split), n in published_split_counts(protocol).items():
        counts[role, folders[split]] = counts.get((role, folders[split]), 0) + n
    return counts


def verify_counts(protocol: Protocol, root: Path) -> CountComparison:
    """Counts the images of every class below ``root/train`` (known, negative) and ``root/val`` (all)."""
    expected = published_counts(protocol)
    counts, short = [], []
    for folder in ("train", "val"):
        for role in ROLES if folder == "val" else ROLES[:2]:
            members = protocol.role(role)
            images = list_images(root, folder, members)
            found = sum(map(len, images.values()))
            counts.append(RoleCount(role, folder, len(members), found, expected.get((role, folder))))
            least = LEAST_PER_CLASS[folder] if expected else 1
            short += [
                _short(c, role, folder, len(images[c.wnid]), least) for c in members if len(images[c.wnid]) < least
            ]
    return CountComparison(tuple(counts), tuple(short))


def _short(member: ProtocolClass, role: Role, folder: str, found: int, least: int) -> ShortClass:
    return ShortClass(member.wnid, member.name, role, folder, found, least)
