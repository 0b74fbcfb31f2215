"""Named plug-in points: algorithms, losses and models register themselves and everybody else asks here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, NamedTuple, TypeVar

from oscbench.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NoParams:
    """The parameter record of a method or loss that has no hyperparameters."""


class About(NamedTuple):
    """What a method or loss is, in four lines: its idea, its formula, what it is good and what it is poor for."""

    idea: str
    formula: str
    good: str
    poor: str


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for a mistyped name: ``", did you mean 'evm'?"``, or ``""`` when nothing is close."""
    lowered = {candidate.lower(): candidate for candidate in names}
    match = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f", did you mean {lowered[match[0]]!r}?" if match else ""


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[T]):
    """One registered thing with what tables, help texts and search spaces say about it.

    Attributes:
        name: As the user types it.
        value: What was registered.
        label: As tables show it.
        params: Its parameter record.
        paper: Where it is described: ``arXiv:ID``, ``doi:ID`` or ``openreview ID`` become links.
        about: ``None`` for one that does not say.
    """

    name: str
    value: T
    label: str
    params: type[Any] = NoParams
    paper: str = ""
    about: About | None = None


class Registry(Generic[T]):
    """Maps names to entries; a taken name and an unknown name are both errors.

    Third parties add entries through the entry-point group ``oscbench.<kind>``: the named module is imported the
    first time the registry is asked for anything.

    Args:
        kind: Plural, names the entry-point group.
        noun: What users call one of them.
    """

    def __init__(self, kind: str, noun: str) -> None:
        self.kind = kind
        self.noun = noun
        self._entries: dict[str, Entry[T]] = {}
        self._plugins_loaded = False

    def register(
        self,
        name: str,
        *,
        label: str | None = None,
        params: type[Any] = NoParams,
        paper: str = "",
        about: About | None = None,
    ) -> Callable[[T], T]:
        """Decorator that registers a class or function under ``name``."""

        def add(value: T) -> T:
            self.add(Entry(name=name, value=value, label=label or name, params=params, paper=paper, about=about))
            return value

        return add

    def add(self, entry: Entry[T]) -> None:
        """Registers an entry; for registries whose entries say more than these."""
        if entry.name in self._entries:
            raise ValueError(f"{self.noun} {entry.name!r} is already registered by {self._entries[entry.name].value!r}")
        self._entries[entry.name] = entry

    def _load_plugins(self) -> None:
        if not self._plugins_loaded:
            self._plugins_loaded = True
            for point in entry_points(group=f"oscbench.{self.kind}"):
                point.load()

    def info(self, name: str) -> Entry[T]:
        """The entry called ``name``."""
        self._load_plugins()
        if name not in self._entries:
            raise UsageError(
                f"unknown {self.noun} {name!r}{nearest(name, self._entries)} (one of {', '.join(self.names())})"
            )
        return self._entries[name]

    def get(self, name: str) -> T:
        """What was registered as ``name``."""
        return self.info(name).value

    def names(self) -> list[str]:
        """All registered names, in order of registration."""
        self._load_plugins()
        return list(self._entries)
