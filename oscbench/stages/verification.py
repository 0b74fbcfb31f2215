"""``data verify``: tables, FFCV files and images against the checksums taken when they were made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oscbench.data.convert import beton_problem, image_problems, originals_path
from oscbench.data.samples import check_images
from oscbench.errors import OscbenchError
from oscbench.labels import SPLITS
from oscbench.progress import show_progress
from oscbench.records import sha256_file
from oscbench.stages.beton import Beton
from oscbench.stages.samples import Samples


@dataclass(frozen=True)
class Verification:
    """What ``verify_data`` looked at, in words, and everything it found wrong."""

    checked: tuple[str, ...]
    problems: tuple[str, ...]


def verify_data(samples: Samples) -> Verification:
    """Compares tables, FFCV files and original images with the checksums taken when they were made.

    Images that were never converted have no checksum: they are decoded instead.

    Args:
        samples: The finished tables.
    """
    checked, problems = [f"{len(SPLITS)} sample tables"], _table_problems(samples)
    listings: list[Path] = []
    beton = Beton.last_made(samples)
    if beton is not None and beton.room.store.exists(beton.path):
        files = beton.result.files
        checked.append(f"{len(files)} FFCV files")
        for split, file in files.items():
            problems += filter(None, [beton_problem(beton.file(split), file)])
            listing = originals_path(beton.file(split))
            if not listing.is_file() or sha256_file(listing) != file.originals_sha256:
                problems.append(f"{listing} is missing or was altered, the images of {split} were not checked")
            else:
                listings.append(listing)
        problems += _original_problems(samples.image_root, listings)
        checked.append(f"{sum(files[listing.stem].samples for listing in listings)} images by checksum")
    elif not problems:
        paths = [path for split in SPLITS for path in samples.table(split).paths]
        problems += _decoding_problems(samples.image_root, paths)
        checked.append(f"{len(paths)} images by decoding")
    return Verification(tuple(checked), tuple(problems))


def _table_problems(samples: Samples) -> list[str]:
    problems = []
    for split, recorded in samples.result.splits.items():
        path = samples.folder / f"{split}.csv"
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif sha256_file(path) != recorded.sha256:
            problems.append(f"{path} was altered: its SHA-256 differs")
    return problems


def _original_problems(root: Path, listings: Iterable[Path]) -> Iterator[str]:
    for listing in listings:
        with show_progress(f"checking the images of {listing.stem}") as progress:
            yield from image_problems(root, listing, progress)


def _decoding_problems(root: Path, paths: list[str]) -> list[str]:
    try:
        with show_progress("decoding images") as progress:
            check_images(root, paths, progress)
    except OscbenchError as error:
        return [str(error)]
    return []
