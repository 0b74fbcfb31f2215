"""``report``: everything that lies in a runs folder as tables, figures and one page."""

from __future__ import annotations

import logging
import multiprocessing
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from oscbench.errors import UsageError
from oscbench.numerics.threads import usable_cpus
from oscbench.progress import duration, show_progress

if TYPE_CHECKING:
    from oscbench.metrics import CcrRule
    from oscbench.report.blocks import Part

logger = logging.getLogger(__name__)

PAGE: Final = "index.html"
_OURS: Final = 'content="oscbench report"'
"""Stands at the beginning of every page of ours."""

Comparison = Literal["paper"]


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """What a report has become.

    Attributes:
        out: Its folder.
        data_sets: Data it is about, each a part of the page.
        tables: Files of tables.
        figures: Files of figures.
        left_out: What could not be read, and why.
    """

    out: Path
    data_sets: tuple[str, ...]
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    left_out: tuple[tuple[Path, str], ...]

    @property
    def page(self) -> Path:
        """What to open in a browser."""
        return self.out / PAGE


def write_report(
    runs: str | Path = "runs",
    out: str | Path = "report",
    *,
    compare: Comparison | None = None,
    rule: CcrRule = "inclusive",
    data: str | Path | None = None,
) -> ReportResult:
    """Tables, figures and a page of all that is finished in a runs folder, as ``oscbench report`` makes them.

    Runs of different data are kept apart; what is damaged is named and left out. The folder appears whole or not at
    all; an older report in its place is replaced.

    Args:
        runs: Folder of all results.
        out: Receives ``index.html``, ``tables/`` and ``figures/``.
        compare: ``paper`` puts the published figures beside the measured ones.
        rule: How CCR at a rate is read from the curve.
        data: Image folder, for the contact sheets of images that were not drawn here.

    >>> import tempfile
    >>> from oscbench.api.tune import tune
    >>> from oscbench.data.synthetic import demo_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split, rows in demo_features().items():
    ...         rows.save(Path(folder) / "mine" / split)
    ...     here = {"features": f"{folder}/mine", "runs": f"{folder}/runs", "local": True}
    ...     _ = tune("gen", settings={"gamma": [0.1, 0.5], "top": [3]}, **here)
    ...     made = write_report(f"{folder}/runs", f"{folder}/report")
    ...     made.page.name, made.left_out
    ('index.html', ())
    """
    from oscbench.artifacts import atomic_folder, write_text
    from oscbench.report.document import Subject, make_part
    from oscbench.report.page import build_page
    from oscbench.report.results import read_results

    runs, out = Path(runs), Path(out)
    images = Path(data) if data is not None else None
    _check(out, compare, images)
    started = time.monotonic()
    results = read_results(runs)
    for path, reason in results.left_out:
        logger.warning("%s is left out: %s", path, reason)
    if len(results.data_sets) > 1:
        logger.info("runs of %d data sets are kept apart: %s", len(results.data_sets), ", ".join(results.data_sets))
    subjects = [
        Subject(
            everything=results.of(name),
            rule=rule,
            compare=compare is not None,
            images=images,
            command=_command(runs, out, compare, rule, images),
        )
        for name in results.data_sets
    ]
    parts = [make_part(subject) for subject in subjects]
    logger.info("report: %d cells read and put together, %s", len(results.cells), duration(time.monotonic() - started))
    with atomic_folder(out) as work:
        write_text(work / PAGE, build_page(parts, title=f"oscbench report: {', '.join(results.data_sets)}"))
        tables = _write_tables(parts, work)
        figures = _write_figures(parts, work)
    logger.info("report: %d tables and %d figures, %s", len(tables), len(figures), duration(time.monotonic() - started))
    return ReportResult(
        out=out,
        data_sets=results.data_sets,
        tables=tuple(out / path for path in tables),
        figures=tuple(out / path for path in figures),
        left_out=results.left_out,
    )


def _check(out: Path, compare: Comparison | None, images: Path | None) -> None:
    """Refuses what would lose somebody's files, or could not be done, before any work."""
    if compare not in (None, "paper"):
        raise UsageError(f"compare is 'paper' or nothing, got {compare!r}")
    if images is not None and not images.is_dir():
        raise UsageError(f"image folder {images} does not exist; leave it out, and the page shows no images")
    if out.exists() and not _is_report(out):
        raise UsageError(f"{out} exists and is no report; give another --out, or remove it")


def _is_report(out: Path) -> bool:
    if not out.is_dir():
        return False
    page = out / PAGE
    if not page.exists():
        return not any(out.iterdir())
    with page.open(encoding="utf-8", errors="replace") as file:
        return _OURS in file.read(2000)


def _command(runs: Path, out: Path, compare: Comparison | None, rule: CcrRule, images: Path | None) -> str:
    words = ["oscbench", "report", "--runs", str(runs), "--out", str(out)]
    words += ["--compare", compare] if compare is not None else []
    words += ["--rule", rule] if rule != "inclusive" else []
    words += ["--data", str(images)] if images is not None else []
    return shlex.join(words)


def _folder(parts: Sequence[Part], part: Part, kind: str) -> Path:
    """Where files of a part go; several data sets have folders of their own."""
    return Path(kind) / part.data if len(parts) > 1 else Path(kind)


def _write_tables(parts: Sequence[Part], work: Path) -> list[Path]:
    from oscbench.report.document import tables_of
    from oscbench.report.formats import write_table

    paths = []
    for part, table in tables_of(parts):
        folder = work / _folder(parts, part, "tables")
        folder.mkdir(parents=True, exist_ok=True)
        paths += [path.relative_to(work) for path in write_table(table, folder)]
    return paths


def _write_figures(parts: Sequence[Part], work: Path) -> list[Path]:
    """Draws all figures, in as many processes as there are CPUs: matplotlib uses one."""
    from oscbench.report.document import charts_of

    drawings: list[tuple[Callable[[], Any], Path, str]] = []
    for part, chart in charts_of(parts):
        folder = work / _folder(parts, part, "figures")
        folder.mkdir(parents=True, exist_ok=True)
        own = {chart.name: chart.figure} if chart.figure is not None else {}
        drawings += [(draw, folder, name) for name, draw in {**own, **chart.files}.items()]
    _Drawings.waiting = drawings
    written: list[Path] = []
    fork = multiprocessing.get_context("fork")  # the figures' numbers are there without being sent
    try:
        with show_progress("figures") as progress, ProcessPoolExecutor(usable_cpus(), mp_context=fork) as pool:
            for done, paths in enumerate(pool.map(_draw, range(len(drawings))), start=1):
                written += [path.relative_to(work) for path in paths]
                progress(done, len(drawings))
    finally:
        _Drawings.waiting = []
    return written


class _Drawings:
    """What is to be drawn, for processes that are forked from this one."""

    waiting: list[tuple[Callable[[], Any], Path, str]] = []


def _draw(number: int) -> list[Path]:
    from oscbench.report.plots.style import save_figure

    draw, folder, name = _Drawings.waiting[number]
    return save_figure(draw(), folder, name, dpi=120)
