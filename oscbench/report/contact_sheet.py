"""What the best cell takes in most surely although it should not, and what it gets right by a hair, as small images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from oscbench.data.samples import SampleTable, read_samples
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import NEGATIVE, UNKNOWN, BoolArray, IntArray
from oscbench.protocols.wordnet import load_tree
from oscbench.report.blocks import Sheet, SheetImage
from oscbench.report.charts.base import label_of
from oscbench.report.measures import Measures
from oscbench.report.results import Cell, Results
from oscbench.scores import ScoreSet

SHOWN = 12
"""Images of each kind."""
SIDE = 112
"""Pixels of the longer side of a small image."""


class ImageFinder:
    """Finds the image of a sample of one protocol.

    Args:
        results: Of one data set.
        protocol: Whose samples.
        images: Image folder of the user's; embedded images lie in the runs folder.
    """

    def __init__(self, results: Results, protocol: str, images: Path | None) -> None:
        own = [work for work in results.work if work.protocol == protocol]
        self._samples = [work for work in own if work.stage == "samples"]
        self._drawn = {work.fingerprint: work.folder / "tree" for work in own if work.stage == "images"}
        self._given = images

    def paths(self, split: str, scores: ScoreSet, rows: IntArray) -> list[Path | None]:
        """Of rows of scores; ``None`` where no table fits them or nobody knows where the images are."""
        for work in self._samples:
            table = _read(work.folder / f"{split}.csv")
            if table is None or not _fits(table, scores):
                continue
            root = next((self._drawn[key] for key in work.inputs.values() if key in self._drawn), self._given)
            return [None if root is None else root / table.paths[scores.ids[row]] for row in rows]
        return [None] * len(rows)


@cache
def _read(path: Path) -> SampleTable | None:
    try:
        return read_samples(path)
    except (UsageError, OscbenchError):
        return None


def _fits(table: SampleTable, scores: ScoreSet) -> bool:
    return bool(scores.ids[-1] < len(table) and np.array_equal(table.labels[scores.ids], scores.labels))


def contact_sheets(results: Results, measures: Measures, images: Path | None = None) -> list[Sheet]:
    """For each protocol up to three sheets of the best cell."""
    sheets = []
    for protocol in dict.fromkeys(cell.origin.protocol for cell in results.cells):
        cell = best_cell(measures, protocol)
        if cell is not None:
            sheets += _sheets(cell, ImageFinder(results, protocol, images))
    return sheets


def best_cell(measures: Measures, protocol: str) -> Cell | None:
    """The cell with the largest sum of CCR on test unknowns; without any, on test negatives or on validation."""
    frame = measures.frame
    own = frame[(frame["protocol"] == protocol) & frame["preferred"] & frame["sum"].notna()]
    for split, kind in (("test", "unknown"), ("test", "negative"), ("val", "negative")):
        asked = own.loc[(own["split"] == split) & (own["kind"] == kind), "sum"]
        if len(asked):
            return measures.cells[int(np.asarray(asked.index)[asked.argmax()])]
    return None


def _sheets(cell: Cell, finder: ImageFinder) -> list[Sheet]:
    split = "test" if "test" in cell.splits else "val"
    scores = cell.splits[split]
    origin = cell.origin
    named = f"{label_of('algorithm', cell.algorithm)} on {label_of('training', origin.training)}"
    seed = "" if origin.seed is None else f", seed {origin.seed}"
    where = f"{label_of('protocol', origin.protocol)}, the best cell: {named}{seed}, {split}."
    wrong = "most confident false acceptances"
    kinds = {
        "unknown": (f"{wrong}: unknowns", _surest(scores, scores.labels == UNKNOWN)),
        "negative": (f"{wrong}: negatives", _surest(scores, scores.labels == NEGATIVE)),
        "correct": (
            "least confident correct ones",
            _surest(scores, scores.prediction == scores.labels, least=True),
        ),
    }
    return [
        _sheet(f"images-{origin.protocol}-{kind}", f"{label_of('protocol', origin.protocol)}: {title}", images, where)
        for kind, (title, rows) in kinds.items()
        if (images := _images(scores, rows, finder.paths(split, scores, rows)))
    ]


def _sheet(name: str, title: str, images: Sequence[SheetImage], where: str) -> Sheet:
    lost = all(image.content is None for image in images)
    more = " Nobody knows where the images are: --data FOLDER tells." if lost else ""
    return Sheet(name=name, title=title, images=tuple(images), note=where + more)


def _surest(scores: ScoreSet, mask: BoolArray, *, least: bool = False) -> IntArray:
    rows = np.flatnonzero(mask)
    order = np.argsort(scores.score[rows] if least else -scores.score[rows], kind="stable")
    return rows[order[:SHOWN]]


def _images(scores: ScoreSet, rows: IntArray, paths: Sequence[Path | None]) -> list[SheetImage]:
    found = []
    for row, path in zip(rows.tolist(), paths, strict=True):
        own, taken = (class_name(scores.classes[k]) for k in (scores.class_index[row], scores.prediction[row]))
        right = scores.prediction[row] == scores.labels[row]
        said = f"score {scores.score[row]:.4g}" if right else f"taken for {taken}, score {scores.score[row]:.4g}"
        found.append(SheetImage(content=thumbnail(path) if path is not None else None, name=own, said=said))
    return found


def class_name(name: str) -> str:
    """What people call a class: the first lemma of a WordNet id, else its name."""
    synset = load_tree().synsets.get(name)
    return synset.name.replace("_", " ") if synset is not None else name


def thumbnail(path: Path) -> bytes | None:
    """A small JPEG of an image; ``None`` where it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        written = io.BytesIO()
        small.save(written, "JPEG", quality=80)
    except Exception:  # noqa: BLE001 - decoders raise anything on damaged data, and a report needs no image
        return None
    return written.getvalue()
