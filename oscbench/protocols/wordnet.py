"""The WordNet 3.0 tree above the 1000 ILSVRC-2012 classes, as shipped with the package."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from oscbench.errors import UsageError
from oscbench.registry import nearest


def read_table(name: str) -> Iterator[dict[str, str]]:
    """Rows of one of the package's own CSV files."""
    text = files("oscbench.protocols").joinpath("data", name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


@dataclass(frozen=True)
class Synset:
    """One node: its lemmas, the first of which is its name, and its one parent (the root has none)."""

    wnid: str
    lemmas: tuple[str, ...]
    parent: str | None
    is_class: bool

    @property
    def name(self) -> str:
        """The first lemma."""
        return self.lemmas[0]


@dataclass(frozen=True)
class Tree:
    """Synsets with one parent each; ``load_tree`` makes it."""

    synsets: dict[str, Synset]

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {wnid: [] for wnid in self.synsets}
        for synset in self.synsets.values():
            if synset.parent is not None:
                children[synset.parent].append(synset.wnid)
        return children

    def __getitem__(self, wnid: str) -> Synset:
        if wnid not in self.synsets:
            raise UsageError(f"{wnid!r} is not above or among the ILSVRC-2012 classes{nearest(wnid, self.synsets)}")
        return self.synsets[wnid]

    def path(self, wnid: str) -> tuple[str, ...]:
        """All wnids from the root (entity) down to ``wnid``."""
        synset: Synset | None = self[wnid]
        path = []
        while synset is not None:
            path.append(synset.wnid)
            synset = self.synsets[synset.parent] if synset.parent is not None else None
        return tuple(reversed(path))

    def distance(self, first: str, second: str) -> int:
        """Number of links between two synsets by way of their lowest common ancestor."""
        a, b = self.path(first), self.path(second)
        shared = sum(x == y for x, y in zip(a, b, strict=False))
        return len(a) + len(b) - 2 * shared

    def classes_below(self, wnid: str) -> list[str]:
        """ILSVRC classes at or below a synset, sorted by wnid."""
        waiting, found = [self[wnid].wnid], []
        while waiting:
            current = waiting.pop()
            if self.synsets[current].is_class:
                found.append(current)
            waiting.extend(self._children[current])
        return sorted(found)

    def find(self, name: str) -> Synset:
        """The synset of that wnid or name; a name that several synsets share is refused.

        A synset whose first lemma is ``name`` goes before those that merely list it. Case and ``_`` do not matter.
        """
        if name in self.synsets:
            return self.synsets[name]
        wanted = name.replace("_", " ").lower()
        first = [s for s in self.synsets.values() if s.name.lower() == wanted]
        matches = first or [s for s in self.synsets.values() if wanted in map(str.lower, s.lemmas)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            choices = "; ".join(f"{s.wnid} ({', '.join(s.lemmas)}; below {self._parent_name(s)})" for s in matches)
            raise UsageError(f"{name!r} has {len(matches)} meanings, give a wnid: {choices}")
        known = [*self.synsets, *(lemma for s in self.synsets.values() for lemma in s.lemmas)]
        raise UsageError(f"no class or group of ILSVRC-2012 is called {name!r}{nearest(wanted, known)}")

    def _parent_name(self, synset: Synset) -> str:
        return self.synsets[synset.parent].name if synset.parent is not None else "nothing"


@cache
def load_tree() -> Tree:
    """The shipped tree with the published protocols' choice of parents.

    WordNet is a graph: 75 of its 1860 synsets here have several hypernyms. The first one in the database's order is
    kept, except for the 26 children in ``tree_overrides.csv``, whose parents follow from the printed class lists.
    """
    kept = {row["child_wnid"]: row["kept_parent_wnid"] for row in read_table("tree_overrides.csv")}
    synsets = {}
    for row in read_table("wordnet_tree.csv"):
        wnid, parents = row["wnid"], row["parents"].split()
        parent = kept.get(wnid, parents[0] if parents else None)
        synsets[wnid] = Synset(wnid, tuple(row["lemmas"].split("|")), parent, row["ilsvrc"] == "1")
    return Tree(synsets)
