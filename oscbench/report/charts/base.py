"""How documents of figures are put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oscbench.errors import UsageError
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.losses import LOSSES
from oscbench.origin import Origin
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.report.blocks import Chart
from oscbench.report.results import Results, ordered

if TYPE_CHECKING:
    from oscbench.report.plots.style import Figure

Document = dict[str, Any]
Series = dict[str, Any]

KINDS: Final = {"negative": NEGATIVE, "unknown": UNKNOWN}

NAMES: Final = {
    "protocol": "protocol",
    "training": "training",
    "algorithm": "algorithm",
    "kind": "against",
    "split": "split",
    "seed": "seed",
    "network": "network",
}
"""What keys that many figures have are called."""


def origin_keys(origin: Origin) -> dict[str, str]:
    """The keys that a network has."""
    return {
        "protocol": origin.protocol,
        "training": origin.training,
        "seed": "none" if origin.seed is None else str(origin.seed),
        "network": " ".join(filter(None, (origin.network, origin.recipe))),
    }


def label_of(key: str, value: str) -> str:
    """What people call a value of a key."""
    registries: Mapping[str, Any] = {"training": LOSSES, "algorithm": POSTPROCESSORS}
    if key == "protocol":
        return value.upper() if value[:1] == "p" and value[1:].isdigit() else value
    if key in registries:
        try:
            return str(registries[key].info(value).label)
        except UsageError:  # of a plug-in that is no longer installed
            return value
    return {"negative": "negatives", "unknown": "unknowns"}.get(value, value) if key == "kind" else value


def heading_of(results: Results) -> str:
    """The line that names the data in a file."""
    origins = [cell.origin for cell in results.cells] + [search.origin for search in results.searches]
    first = next(iter(origins + [network.origin for network in results.networks]), None)
    if first is None:
        return ""
    return f"DEMO DATA, not a result about real images: {first.data}" if first.demo else f"Data: {first.data}"


def make_document(
    kind: str,
    series: Sequence[Series],
    *,
    choose: Sequence[str] = (),
    arrangements: Sequence[tuple[str, Sequence[str], str | None, str | None]],
    names: Mapping[str, str] = NAMES,
    values: Mapping[str, Mapping[str, str]] | None = None,
    off: Mapping[str, Sequence[str]] | None = None,
    styles: Mapping[str, int] | None = None,
    **more: Any,
) -> Document:
    """A document from series that say by what keys they differ.

    Args:
        kind: ``xy``, ``heat`` or ``parallel``.
        series: Each with ``keys``.
        choose: Keys of which one value is shown at a time.
        arrangements: Name, keys that set panels apart, key of the colour and key of the line.
        names: What keys are called.
        values: Values of a key with their labels, in order; default: those that occur, as papers order them.
        off: Values of a key that are not shown at first.
        styles: Number of the colour or line of a value; default: its place.
        more: Whatever else the kind needs.
    """
    keys = {}
    for key in dict.fromkeys(key for one in series for key in one["keys"]):
        found = {one["keys"][key] for one in series}
        labels = (values or {}).get(key) or {value: label_of(key, value) for value in _in_order(found)}
        hidden = (off or {}).get(key, ())
        keys[key] = {
            "label": names.get(key, key),
            "values": {
                value: {"label": label, "style": (styles or {}).get(value, place), "off": value in hidden}
                for place, (value, label) in enumerate(labels.items())
                if value in found
            },
        }
    return {
        "kind": kind,
        "keys": keys,
        "choose": list(choose),
        "arrangements": [
            {"name": name, "panels": list(panels), "colour": colour, "line": line}
            for name, panels, colour, line in arrangements
        ],
        "series": list(series),
        **more,
    }


def _in_order(values: Iterable[str]) -> list[str]:
    return ordered(sorted(values, key=lambda value: (len(value), value) if value.isdigit() else (0, value)), _alone)


def _alone(value: str) -> tuple[str, ...]:
    return (f"{int(value):09d}" if value.isdigit() else value,)


def rounded(values: Any, digits: int = 5) -> list[float | None]:
    """Numbers as a page holds them: so many significant digits, ``None`` for what is not finite.

    >>> rounded([0.123456789, float("nan"), 3.0])
    [0.12346, None, 3]
    """
    return [_short(value, digits) for value in np.asarray(values, np.float64).tolist()]


def _short(value: float, digits: int) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def chart_of(
    name: str,
    title: str,
    document: Document,
    *,
    note: str = "",
    heading: str = "",
    apart: Sequence[str] = (),
    files: Mapping[str, tuple[int, str | None]] | None = None,
) -> Chart:
    """The figure with its files, drawn from the document that the page shows.

    Args:
        name: Of the files and the place in the page.
        title: Above it.
        document: What is drawn.
        note: How it is to be read.
        heading: Names the data in the files, where no page does.
        apart: Keys that are chosen from, of which every value gets files of its own; of others the first one.
        files: Ends of file names with arrangement and scale; default: one file, as the page shows it first.
    """
    found = {tuple(one["keys"][key] for key in apart): None for one in document["series"]}
    drawn = {}
    for values in found:
        chosen = _chosen_beside(document, dict(zip(apart, values, strict=True)))
        told = [label for key, value in chosen.items() if (label := _told(document, key, value))]
        for end, (arrangement, scale) in (files or {"": (0, None)}).items():
            parts = [name, *values, end] if apart else [name, end]
            whole = "\n".join(filter(None, (heading, ", ".join([title, *told]))))
            drawn["-".join(filter(None, parts))] = partial(
                _draw, document, title=whole, arrangement=arrangement, scale=scale, chosen=chosen
            )
    return Chart(name=name, title=title, document=document, figure=None, note=note, files=drawn)


def _chosen_beside(document: Document, fixed: Mapping[str, str]) -> dict[str, str]:
    """A value of every key that is chosen from: as fixed, else the first one that there is together with the others.

    One protocol may have other networks or seeds than the next.
    """
    chosen = dict(fixed)
    for key in document["choose"]:
        if key in chosen:
            continue
        there = {
            one["keys"][key]
            for one in document["series"]
            if all(one["keys"].get(name, value) == value for name, value in chosen.items())
        }
        chosen[key] = next(value for value in document["keys"][key]["values"] if value in there)
    return chosen


def _draw(document: Document, **how: Any) -> Figure:
    from oscbench.report.plots.chart import chart_figure  # loads matplotlib, which a page needs not

    return chart_figure(document, **how)


def _told(document: Document, key: str, value: str) -> str:
    """A chosen value as titles say it; nothing where there is no other."""
    found = document["keys"][key]
    if len(found["values"]) < 2:
        return ""
    label: str = found["values"][value]["label"]
    return f"{found['label']} {label}" if label.isdigit() else label
