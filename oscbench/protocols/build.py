"""Protocols of one's own from WordNet names or ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oscbench.errors import UsageError
from oscbench.protocols.base import PUBLISHED, ROLES, Protocol, Role, make_protocol
from oscbench.protocols.wordnet import load_tree


def build_protocol(name: str, roles: Mapping[Role, Sequence[str]]) -> Protocol:
    """A protocol whose roles are the ILSVRC-2012 classes at or below the named synsets.

    Args:
        name: Its name in folders and tables.
        roles: Names (``dog``, ``hunting dog``) or wnids per role. A class below two synsets of one role counts once; a
            class in two roles is refused.
    """
    if name in PUBLISHED:
        raise UsageError(f"protocol name {name} belongs to a published protocol; choose another --name")
    return make_protocol(name, {role: _classes_of(roles.get(role, ())) for role in ROLES}, "protocol build")


def _classes_of(groups: Sequence[str]) -> dict[str, str]:
    """Names by wnid of the classes below some synsets, in the order of the synsets."""
    tree = load_tree()
    return {wnid: tree[wnid].name for group in groups for wnid in tree.classes_below(tree.find(group).wnid)}
