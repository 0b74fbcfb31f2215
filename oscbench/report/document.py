"""The whole report: which sections each data set has, in order, and what made it."""

from __future__ import annotations

import dataclasses
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from oscbench import __version__
from oscbench.metrics import CcrRule
from oscbench.protocols.base import PUBLISHED
from oscbench.report.blocks import Block, Chart, Facts, Part, Section, Table
from oscbench.report.charts.accuracy import accuracy_charts
from oscbench.report.charts.base import heading_of
from oscbench.report.charts.class_map import map_charts
from oscbench.report.charts.cost import cost_charts
from oscbench.report.charts.epochs import epoch_charts
from oscbench.report.charts.oscr import oscr_charts
from oscbench.report.charts.ranks import rank_charts
from oscbench.report.charts.scores import score_charts
from oscbench.report.charts.settings import heat_charts, line_charts
from oscbench.report.contact_sheet import contact_sheets
from oscbench.report.measures import Measures
from oscbench.report.results import Results
from oscbench.report.sections.confidences import confidences_section
from oscbench.report.sections.costs import costs_section
from oscbench.report.sections.generalisation import generalisation_section
from oscbench.report.sections.left_out import left_out_section
from oscbench.report.sections.ranking import ranking_section
from oscbench.report.sections.rates import rates_section
from oscbench.report.sections.settings import best_settings_section, grids_section


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What sections are about.

    Attributes:
        everything: All that is finished on one data set.
        rule: How CCR is read at a rate.
        compare: Whether the papers' figures stand beside the measured ones.
        images: Image folder of the user's, for contact sheets.
        command: What makes the report again.
    """

    everything: Results
    rule: CcrRule = "inclusive"
    compare: bool = False
    images: Path | None = None
    command: str = ""

    @cached_property
    def results(self) -> Results:
        """One cell of each network and algorithm, by the rule."""
        return self.everything.preferred(self.rule)

    @cached_property
    def measures(self) -> Measures:
        """The figures of all cells."""
        return Measures.of(self.everything, self.rule)


def make_part(subject: Subject) -> Part:
    """Everything about one data set; sections with nothing to show or say fall away."""
    everything = subject.everything
    sections: dict[str, Section] = {}
    for section in (make(subject) for make in SECTIONS):
        first = sections.get(section.name, section)
        if first is not section:
            text = "\n\n".join(filter(None, (first.text, section.text)))
            section = dataclasses.replace(first, blocks=(*first.blocks, *section.blocks), text=text)
        if section.blocks or section.text:
            sections[section.name] = section
    return Part(
        data=everything.data_sets[0],
        heading=heading_of(everything) or f"Data: {everything.data_sets[0]}",
        warning=DEMO if everything.demo else "",
        sections=tuple(sections.values()),
    )


DEMO: Final = (
    "These are the embedded demonstration data: small drawn images. They show that everything works and say nothing "
    "about real images."
)


# --- sections --------------------------------------------------------------------------------------------------------


def _about(subject: Subject) -> Section:
    return Section(name="about", title="What this is", blocks=(facts_of(subject),))


def _compared(subject: Subject) -> Section:
    from oscbench.report.sections.compare import compare_with_papers

    if not subject.compare:
        return Section(name="compare", title="", blocks=())
    return compare_with_papers(subject.everything)


def _ranks(subject: Subject) -> Section:
    section = ranking_section(subject.everything, subject.measures)
    charts = rank_charts(section.blocks, heading_of(subject.everything))
    return dataclasses.replace(section, blocks=(*charts, *section.blocks))


def _tables(make: Callable[[Results, Measures], Section]) -> Callable[[Subject], Section]:
    return lambda subject: make(subject.everything, subject.measures)


def _figures(name: str, title: str, make: Callable[[Subject], Sequence[Block]]) -> Callable[[Subject], Section]:
    return lambda subject: Section(name=name, title=title, blocks=tuple(make(subject)))


SECTIONS: Final[tuple[Callable[[Subject], Section], ...]] = (
    _about,
    _tables(rates_section),
    _ranks,
    _tables(generalisation_section),
    _compared,
    _figures("oscr", "OSCR curves", lambda s: oscr_charts(s.results)),
    _figures("scores", "Score distributions", lambda s: score_charts(s.results)),
    _figures("accuracy", "Accuracy and AUROC", lambda s: accuracy_charts(s.results, s.measures)),
    _figures("images", "Surest mistakes", lambda s: contact_sheets(s.results, s.measures, s.images)),
    _tables(best_settings_section),
    _figures("grids", "All settings", lambda s: (*heat_charts(s.everything), *line_charts(s.everything))),
    _tables(grids_section),
    _figures("gamma", "Confidence", lambda s: epoch_charts(s.everything)),
    _tables(confidences_section),
    _figures("classes", "Classes", lambda s: map_charts(s.everything)),
    _figures("cost", "Cost", lambda s: cost_charts(s.results)),
    _tables(costs_section),
    _tables(left_out_section),
)
"""In the order of the page; blocks of sections of one name stand together where the first of them stands."""


# --- what made it ----------------------------------------------------------------------------------------------------


def facts_of(subject: Subject) -> Facts:
    """Data, seeds, versions, fingerprints and hardware behind a report, and the commands that make it again."""
    everything = subject.everything
    work, cells = everything.work, subject.results.cells
    stages = Counter(each.stage for each in work)
    created = sorted(each.created for each in work)
    rows = {
        "data": everything.data_sets[0],
        "protocols": _listed(each.protocol for each in work),
        "trainings": _listed(cell.origin.training for cell in cells),
        "algorithms": _listed(cell.algorithm for cell in cells),
        "seeds": _listed(cell.origin.seed for cell in cells),
        "networks": _listed(" ".join(filter(None, (c.origin.network, c.origin.recipe))) for c in cells),
        "CCR rule": subject.rule,
        "finished stages": ", ".join(f"{count} {stage}" for stage, count in sorted(stages.items())),
        "made": _moments(created),
        "hardware": _hardware(everything),
        "versions": _versions(everything),
        "runs folder": str(everything.runs),
        "fingerprints": _fingerprints(everything),
        "made again by": f"{benchmark_command(subject)}\n{subject.command}",
    }
    return Facts(name="facts", rows={name: text for name, text in rows.items() if text})


def _moments(created: Sequence[str]) -> str:
    """First and last of ISO moments in UTC, to the minute.

    >>> _moments(["2026-01-02T03:04:05+00:00", "2026-01-02T06:07:08+00:00"])
    '2026-01-02 03:04 to 2026-01-02 06:07 UTC'
    """
    ends = [moment[:16].replace("T", " ") for moment in (created[0], created[-1])] if created else []
    return f"{' to '.join(dict.fromkeys(ends))} UTC" if ends else ""


def benchmark_command(subject: Subject) -> str:
    """What makes the cells again, from nothing but the data; protocols of one's own by the file they may be in."""
    everything, cells = subject.everything, subject.results.cells
    numbers = [
        protocol[1:] if protocol in PUBLISHED else f"{protocol}.yaml"
        for protocol in dict.fromkeys(cell.origin.protocol for cell in cells)
    ]
    asked = {
        "protocols": numbers,
        "losses": dict.fromkeys(cell.origin.training for cell in cells),
        "algorithms": dict.fromkeys(cell.algorithm for cell in cells),
        "seeds": dict.fromkeys(str(cell.origin.seed or 0) for cell in cells),
    }
    words = ["oscbench", "benchmark"]
    for name, values in asked.items():
        words += [f"--{name}", ",".join(values)]
    if not everything.demo:
        words += ["--data", str(subject.images or "IMAGES")]
    words += ["--name", everything.data_sets[0], "--runs", str(everything.runs)]
    words += ["--rule", subject.rule] if subject.rule != "inclusive" else []
    return shlex.join(words)


def _listed(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _hardware(everything: Results) -> str:
    """As the stages recorded it; a report may be made elsewhere."""
    cpus = sorted({each.cpus for each in everything.work})
    gpus = sorted({each.gpus for each in everything.work if each.gpus})
    had = f"{cpus[0]}" if len(cpus) == 1 else f"{cpus[0]} to {cpus[-1]}" if cpus else "0"
    used = f"{gpus[-1]:g} GPUs" if gpus else "no GPU"
    return f"{had} CPUs, {used}; the report on {platform.machine()} {platform.system()}"


def _versions(everything: Results) -> str:
    """Of what made the stages, and of what reports; several where stages were made by several."""
    found: dict[str, dict[str, None]] = {}
    for each in everything.work:
        for name, version in each.versions.items():
            found.setdefault(name, {})[version] = None
    told = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items())
    return f"{told}; report by oscbench {__version__}" if told else f"oscbench {__version__}"


def _fingerprints(everything: Results) -> str:
    """A line for each protocol: its samples, and the networks."""
    lines = []
    for protocol in dict.fromkeys(each.protocol for each in everything.work):
        own = [each for each in everything.work if each.protocol == protocol]
        parts = [
            f"{stage} {', '.join(each.fingerprint for each in own if each.stage == stage)}"
            for stage in ("samples", "train", "finetune")
            if any(each.stage == stage for each in own)
        ]
        lines.append(f"{protocol}: {'; '.join(parts)}")
    return "\n".join(lines)


def charts_of(parts: Sequence[Part]) -> list[tuple[Part, Chart]]:
    """All figures, part by part."""
    return [
        (part, block)
        for part in parts
        for section in part.sections
        for block in section.blocks
        if isinstance(block, Chart)
    ]


def tables_of(parts: Sequence[Part]) -> list[tuple[Part, Table]]:
    """All tables, part by part."""
    return [
        (part, block)
        for part in parts
        for section in part.sections
        for block in section.blocks
        if isinstance(block, Table)
    ]
