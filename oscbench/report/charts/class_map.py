"""Where the classes of a protocol lie in the WordNet tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from oscbench.errors import UsageError
from oscbench.protocols.wordnet import load_tree
from oscbench.report.blocks import Chart
from oscbench.report.charts.base import heading_of, label_of
from oscbench.report.results import Results

if TYPE_CHECKING:
    from oscbench.report.plots.style import Figure

ROLES: Final = ("known", "negative", "unknown")
_LEAST_NAMED = 12
"""Groups of at least a twelfth of all classes get their name in the picture."""

NOTE = "Every class on the rim, groups of WordNet inside; the colour of a branch says what all classes below it are."


@dataclass(frozen=True)
class Node:
    """A synset of the map.

    Attributes:
        name: Its first lemma.
        depth: Links from the root of the map, a chain of groups with one branch counting once.
        place: Along the rim, 0 to 1; of a group the middle of its classes.
        role: Of a class, or of all classes below; empty for mixed groups.
        parent: Number of the group above in the map; ``None`` for the root.
        is_class: Whether it lies on the rim.
        classes: How many classes lie below, itself included.
    """

    name: str
    depth: int
    place: float
    role: str
    parent: int | None
    is_class: bool
    classes: int


def map_charts(results: Results) -> list[Chart]:
    """A map for each protocol whose classes are known to WordNet."""
    classes: dict[str, Mapping[str, Sequence[str]]] = {}
    for work in results.work:
        if work.stage == "samples" and all(work.config["classes"].get(role) for role in ROLES):
            classes[work.protocol] = work.config["classes"]
    charts = []
    for protocol, roles in sorted(classes.items()):
        try:
            nodes = class_tree(roles)
        except UsageError:  # classes of one's own
            continue
        counts = ", ".join(f"{len(roles[role])} {role}" for role in ROLES)
        title = f"Classes of {label_of('protocol', protocol)}: {counts}"
        whole = "\n".join(filter(None, (heading_of(results), title)))
        figure = partial(_draw, nodes, whole)
        charts.append(Chart(name=f"classes-{protocol}", title=title, document=None, figure=figure, note=NOTE))
    return charts


def _draw(nodes: Sequence[Node], title: str) -> Figure:
    from oscbench.report.plots.class_map import class_map_figure

    return class_map_figure(nodes, title=title)


def class_tree(roles: Mapping[str, Sequence[str]]) -> list[Node]:
    """The smallest subtree of WordNet with all classes, parents before children; groups of one branch fall away."""
    tree = load_tree()
    role_of = {wnid: role for role in ROLES for wnid in roles[role]}
    children: dict[str | None, dict[str, None]] = {}
    for wnid in role_of:
        path = tree.path(wnid)
        for parent, child in zip((None, *path), path, strict=False):
            children.setdefault(parent, {})[child] = None
    nodes: list[Node] = []
    rim = iter(range(len(role_of)))

    def visit(wnid: str, parent: int | None, depth: int) -> tuple[float, set[str], int]:
        below = [*children.get(wnid, ())]
        if wnid not in role_of and len(below) == 1:
            return visit(below[0], parent, depth)
        number = len(nodes)
        nodes.append(Node("", 0, 0.0, "", None, is_class=False, classes=0))
        own = wnid in role_of
        found = [visit(child, number, depth + 1) for child in sorted(below, key=lambda w: tree[w].name.lower())]
        places = [place for place, _, _ in found] + ([next(rim) / len(role_of)] if own else [])
        kinds = {kind for _, kinds, _ in found for kind in kinds} | ({role_of[wnid]} if own else set())
        count = sum(count for _, _, count in found) + own
        place = (min(places) + max(places)) / 2
        role = next(iter(kinds)) if len(kinds) == 1 else ""
        nodes[number] = Node(tree[wnid].name, depth, place, role, parent, is_class=not found, classes=count)
        return place, kinds, count

    (root,) = children[None]
    visit(root, None, 0)
    return nodes


def named_groups(nodes: Sequence[Node]) -> list[Node]:
    """Groups whose names are worth their room: large ones, and of a chain of nearly the same only the lowest."""
    total = max(node.classes for node in nodes)
    groups = [i for i, node in enumerate(nodes) if not node.is_class and node.classes * _LEAST_NAMED >= total]
    largest: dict[int, int] = {}
    for i in groups:
        parent = nodes[i].parent
        if parent is not None:
            largest[parent] = max(largest.get(parent, 0), nodes[i].classes)
    return [nodes[i] for i in groups if largest.get(i, 0) < 0.8 * nodes[i].classes and nodes[i].parent is not None]
