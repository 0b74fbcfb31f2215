"""Sample tables: which image belongs to which label, in the published protocols' CSV format."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from oscbench.artifacts import write_text
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import UNKNOWN, ProgressFn

SHOWN = 10
"""How many bad rows or files a message lists; it counts all of them."""


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Images of one split, row by row; the row number is the sample's id.

    Attributes:
        paths: Relative to the data folder, ``train/n02085620/n02085620_10074.JPEG``.
        labels: (N,) int64, known 0..K-1, negative -1, unknown -2.
    """

    paths: tuple[str, ...]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise UsageError(f"a sample table has {len(self.paths)} paths and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.paths)


def read_samples(path: Path, *, n_known: int | None = None) -> SampleTable:
    """Reads ``path,label`` rows without a header; CRLF, blanks after the comma and blank lines do not matter.

    Bad rows are reported together, by line: another number of fields, an empty or repeated path, a label that is no
    whole number or lies outside -2..K-1.

    Args:
        path: The CSV file.
        n_known: K, the number of known classes; default: labels have no upper bound.
    """
    first_line: dict[str, int] = {}
    labels: list[int] = []
    problems: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for row in reader:
                if len(row) < 2 and not "".join(row).strip():
                    continue
                problem = _row_problem(row, n_known, first_line)
                if problem:
                    problems.append(f"line {reader.line_num}: {problem}")
                else:
                    first_line[row[0].strip()] = reader.line_num
                    labels.append(int(row[1]))
    except FileNotFoundError as error:
        raise UsageError(f"sample table {path} does not exist") from error
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise UsageError(f"sample table {path} cannot be read as CSV: {error}") from error
    if problems:
        raise UsageError(f"{path}: {problem_list(problems, 'bad row')}; a row is 'path,label' and there is no header")
    if not labels:
        raise UsageError(f"sample table {path} has no rows")
    return SampleTable(tuple(first_line), np.array(labels, np.int64))


def _row_problem(row: list[str], n_known: int | None, first_line: dict[str, int]) -> str:
    """What is wrong with a row, or ``""``."""
    if len(row) != 2:
        return f"{len(row)} fields instead of 2"
    name, text = row[0].strip(), row[1].strip()
    if not name:
        return "the path is empty"
    if name in first_line:
        return f"{name} stands in line {first_line[name]} already"
    try:
        label = int(text)
    except ValueError:
        return f"label {text!r} is no whole number"
    if label < UNKNOWN or (n_known is not None and label >= n_known):
        upper = "known classes" if n_known is None else str(n_known - 1)
        return f"label {label} is outside -2..{upper}"
    return ""


def problem_list(problems: list[str], what: str) -> str:
    """All problems counted, the first ten shown, in one line: ``3 bad rows: line 2: …; line 5: …``."""
    plural = what if len(problems) == 1 else f"{what}s"
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return f"{len(problems)} {plural}: " + "; ".join(problems[:SHOWN]) + more


def format_samples(table: SampleTable) -> str:
    """The text of a sample table."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(table.paths, table.labels.tolist(), strict=True))
    return text.getvalue()


def write_samples(path: Path, table: SampleTable) -> None:
    """Writes ``path,label`` rows whole or not at all."""
    write_text(path, format_samples(table))


def class_names(table: SampleTable) -> list[str]:
    """The class of each row: the folder its image lies in."""
    names = [PurePosixPath(path).parent.name for path in table.paths]
    flat = [path for path, name in zip(table.paths, names, strict=True) if not name]
    if flat:
        raise UsageError(
            f"{problem_list(flat, 'image')} without a folder; a class is a folder, as in train/<class>/<image>"
        )
    return names


def check_images(root: Path, paths: Iterable[str], progress: ProgressFn | None = None) -> None:
    """Decodes every image below ``root`` completely; missing and damaged files are reported together."""
    names = list(paths)
    problems: list[str] = []
    with ThreadPoolExecutor() as pool:  # PIL decodes outside the interpreter lock
        for done, problem in enumerate(pool.map(lambda name: _image_problem(root / name), names), start=1):
            if problem:
                problems.append(problem)
            if progress is not None:
                progress(done, len(names))
    if problems:
        raise OscbenchError(f"{problem_list(problems, 'unreadable image')}; replace or remove them")


def _image_problem(path: Path) -> str:
    """Why an image cannot be read, or ``""``."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.convert("RGB")
    except FileNotFoundError:
        return f"{path} is missing"
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged data
        return f"{path} does not decode ({' '.join(str(error).split())})"
    return ""
