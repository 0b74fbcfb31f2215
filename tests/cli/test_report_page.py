"""The page of a report in a real Chromium: it sorts, filters, switches, zooms, tells values and asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Page, chromium
from runs_factory import make_runs

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import oscr_curve
from oscbench.report.document import Subject, make_part
from oscbench.report.page import build_page
from oscbench.report.results import Results, read_results

CURVES = "section[id$='-oscr'] .chart"
TABLE = "section[id$='-test'] .table"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    runs = tmp_path_factory.mktemp("page") / "runs"
    make_runs(runs, protocols=("p1", "p2"), trainings=("softmax", "eos"), algorithms=("mss", "openmax"))
    make_runs(runs, protocols=("p1",), trainings=("softmax",), algorithms=("mss",), data="own <b>images", demo=False)
    return read_results(runs)


@pytest.fixture(scope="module")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = [make_part(Subject(everything=results.of(name))) for name in results.data_sets]
    path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(build_page(parts, title="test"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page, written: Path) -> Iterator[Page]:
    """The page as it is opened; whatever a test does to it, its console stays empty and it asks for nothing."""
    browser.problems.clear()
    browser.requests.clear()
    browser.size(1400, 900)
    browser.open(written)
    yield browser
    assert browser.problems == []
    assert {url.split(":")[0] for url in browser.requests} <= {"file", "data"}
    assert {url for url in browser.requests if url.startswith("file:")} == {written.resolve().as_uri()}


def texts(page: Page, selector: str) -> list[str]:
    """What the elements that are shown say."""
    shown = f"[...document.querySelectorAll({selector!r})].filter((e) => e.checkVisibility())"
    found = page.run(f"{shown}.map((e) => e.textContent.trim())")
    assert isinstance(found, list)
    return found


def choose(page: Page, selector: str, value: str) -> None:
    """What a user's choice does: the value, and the event."""
    page.run(
        f"(() => {{ const s = document.querySelector({selector!r}); s.value = {value!r};"
        " s.dispatchEvent(new Event('input')); })()"
    )


def click(page: Page, selector: str) -> None:
    """A real click in the middle of an element."""
    page.run(f"document.querySelector({selector!r}).scrollIntoView({{ block: 'center' }})")
    x, y, width, height = box(page, selector)
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, x + width / 2, y + height / 2)


def box(page: Page, selector: str) -> tuple[float, float, float, float]:
    found = page.run(
        f"(({{ x, y, width, height }}) => [x, y, width, height])"
        f"(document.querySelector({selector!r}).getBoundingClientRect())"
    )
    return tuple(found)


def test_a_click_sorts_a_table_by_its_values(page: Page) -> None:
    first = f"main:not([hidden]) {TABLE}"
    headings = f"[...document.querySelector({first!r}).querySelectorAll('th')]"
    heading = page.run(f"{headings}.findIndex((th) => th.classList.contains('number'))")
    cells = f"{first}:first-of-type tbody tr td:nth-child({heading + 1})"
    before = texts(page, cells)
    click(page, f"{first} th:nth-child({heading + 1}) button")
    values = [float(text.split()[0]) for text in texts(page, cells) if text]
    assert values == sorted(values, reverse=True)
    assert sorted(before) == sorted(texts(page, cells))
    click(page, f"{first} th:nth-child({heading + 1}) button")
    values = [float(text.split()[0]) for text in texts(page, cells) if text]
    assert values == sorted(values)
    assert texts(page, f"{cells}")[-1] == "" or "" not in before  # blanks stand last


def test_a_text_and_a_choice_filter_a_table(page: Page) -> None:
    table = f"main:not([hidden]) {TABLE}:first-of-type"
    rows = texts(page, f"{table} tbody tr")
    choose(page, f"{table} input[type=search]", "eos  p2")
    left = texts(page, f"{table} tbody tr")
    assert left == [row for row in rows if "EOS" in row and "P2" in row]
    assert 0 < len(left) < len(rows)
    assert texts(page, f"{table} .count") == [f"{len(left)} of {len(rows)} rows"]
    choose(page, f"{table} input[type=search]", "")
    choose(page, f"{table} .tools select", "P1")
    assert texts(page, f"{table} tbody tr") == [row for row in rows if row.startswith("P1")]


def test_data_sets_are_shown_one_at_a_time(page: Page, results: Results) -> None:
    headings = dict(zip(results.data_sets, ("data-1", "data-2"), strict=True))
    (first,) = texts(page, "h1")
    assert results.data_sets[0] in first
    assert "DEMO DATA" in first
    assert texts(page, "p.warning")
    choose(page, "#part-switch", headings["own <b>images"])
    (second,) = texts(page, "h1")
    assert "own <b>images" in second
    assert page.run("document.querySelectorAll('h1 b').length") == 0
    assert not texts(page, "p.warning")
    widths = page.run(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
        f' done([...document.querySelectorAll("main:not([hidden]) {CURVES} svg[role]")]'
        ".map((s) => Math.abs(s.viewBox.baseVal.width - s.clientWidth))))))"
    )
    assert widths
    assert max(widths) < 2  # drawn anew in the width they have now


def test_light_and_dark(page: Page, written: Path) -> None:
    def colour() -> str:
        return str(page.run("getComputedStyle(document.body).backgroundColor"))

    light = colour()
    click(page, "#theme-switch")
    dark = colour()
    assert light != dark
    assert page.run("document.getElementById('theme-switch').getAttribute('aria-pressed')") == "true"
    click(page, "#theme-switch")
    assert colour() == light
    page.size(1400, 900, dark=True)
    page.open(written)
    assert colour() == dark


def test_arrangements_set_other_panels_apart(page: Page) -> None:
    def panels() -> list[str]:
        return texts(page, f"main:not([hidden]) {CURVES} figcaption span")

    assert len(panels()) == 2 * 2 * 2  # protocol, kind, training
    assert "P1, negatives, SoftMax" in panels()
    choose(page, f"{CURVES} .tools label:last-of-type select", "1")
    assert panels() == ["P1, negatives", "P1, unknowns", "P2, negatives", "P2, unknowns"]
    choose(page, f"{CURVES} .tools label:first-of-type select", "val")
    assert panels() == ["P1, negatives", "P2, negatives"]


def test_axes_are_logarithmic_or_linear(page: Page) -> None:
    panel = f"{CURVES} .panel:first-child svg text"
    assert {"1e-3", "1e-2", "1e-1", "1"} <= set(texts(page, panel))
    click(page, f"{CURVES} [data-scale=linear]")
    shown = set(texts(page, panel))
    assert "1e-2" not in shown
    assert {"0", "1"} <= shown


def test_the_pointer_tells_a_curves_value(page: Page, results: Results) -> None:
    """What stands beside the pointer is what the curve of that cell has there."""
    svg = f"{CURVES} .panel:first-child svg"
    page.run(f"document.querySelector({svg!r}).scrollIntoView({{ block: 'center' }})")
    x, y, width, height = box(page, svg)
    assert not texts(page, f"{CURVES} .tip")
    told = set()
    for across in (0.5, 0.7, 0.9):
        for down in (0.2, 0.6):
            page.mouse("mouseMoved", x + across * width, y + down * height)
            left, top, wide, high = box(page, f"{CURVES} .panel:first-child .tip")
            assert x <= left <= left + wide <= x + 1.5 * width
            assert y - high <= top <= top + high <= y + height  # beside the curve, not below the figure
            name = texts(page, f"{CURVES} .tip b")[0]
            rate, ccr = (float(text.split(": ")[1]) for text in texts(page, f"{CURVES} .tip span"))
            algorithm = {"MSS": "mss", "OpenMax": "openmax"}[name]
            told.add(algorithm)
            assert ccr in [pytest.approx(value, abs=1e-4) for value in around(results, algorithm, rate)]
    assert told == {"mss", "openmax"}
    page.mouse("mouseMoved", 5, 5)
    assert not texts(page, f"{CURVES} .tip")


def around(results: Results, algorithm: str, rate: float) -> set[float]:
    """CCR of the first panel's cell at a rate that was rounded to four digits."""
    (cell,) = (
        cell
        for cell in results.cells
        if (cell.origin.demo, cell.origin.protocol, cell.origin.training, cell.algorithm)
        == (True, "p1", "softmax", algorithm)
    )
    scores = cell.splits["test"]
    curve = oscr_curve(scores.labels, scores.predictions, unknown_label=NEGATIVE)
    assert np.any(scores.labels == UNKNOWN)
    return {float(np.max(curve.ccr[curve.fpr <= near])) for near in (rate * 0.999, rate, rate * 1.001)}


def test_dragging_zooms_and_one_comes_back(page: Page) -> None:
    panel = f"{CURVES} .panel:first-child"
    page.run(f"document.querySelector({panel!r}).scrollIntoView({{ block: 'center' }})")
    x, y, width, height = box(page, f"{panel} svg")
    whole = texts(page, f"{panel} svg text")
    curve = f"document.querySelector({f'{panel} svg .curve'!r}).getAttribute('d')"
    before = page.run(curve)
    page.mouse("mouseMoved", x + 0.5 * width, y + 0.2 * height)
    page.mouse("mousePressed", x + 0.5 * width, y + 0.2 * height)
    page.mouse("mouseMoved", x + 0.8 * width, y + 0.6 * height, held=True)
    assert page.run(f"document.querySelectorAll({f'{panel} .selection'!r}).length") == 1
    page.mouse("mouseReleased", x + 0.8 * width, y + 0.6 * height)
    assert page.run(curve) != before
    ticks = [float(text) for text in texts(page, f"{panel} svg text") if re.fullmatch(r"[\d.e-]+", text)]
    assert 0 < min(ticks) < max(ticks) < 1  # within both axes
    click(page, f"{panel} figcaption button")
    assert texts(page, f"{panel} svg text") == whole
    assert page.run(curve) == before


def test_keys_tell_values_and_zoom(page: Page) -> None:
    panel = f"{CURVES} .panel:first-child"
    page.run(f"document.querySelector({f'{panel} svg'!r}).focus()")
    whole = texts(page, f"{panel} svg text")
    page.key("ArrowRight")
    first = texts(page, f"{panel} .tip b")
    page.key("ArrowDown")
    assert {*first, *texts(page, f"{panel} .tip b")} == {"MSS", "OpenMax"}
    page.key("+")
    assert texts(page, f"{panel} svg text") != whole
    page.key("0")
    assert texts(page, f"{panel} svg text") == whole


def test_legends_hide_what_is_not_wanted(page: Page) -> None:
    curves = f"document.querySelector({f'{CURVES} .panel:first-child'!r}).querySelectorAll('.curve').length"
    assert page.run(curves) == 2
    click(page, f"{CURVES} .legend input[data-value=mss]")
    assert page.run(curves) == 1
    click(page, f"{CURVES} .legend input[data-value=mss]")
    assert page.run(curves) == 2


def test_a_panel_grows_and_shrinks(page: Page) -> None:
    svg, button = f"{CURVES} .panel:first-child svg", f"{CURVES} .panel:first-child figcaption button:last-of-type"
    small = box(page, svg)[2]
    click(page, button)
    assert box(page, svg)[2] > 1.5 * small
    click(page, button)
    assert box(page, svg)[2] == small


def test_every_figure_draws_something_inside_its_frame(page: Page) -> None:
    """No panel is empty, no text is cut off at the side, and the page is never wider than the window."""
    for width in (1400, 800, 400):
        page.size(width, 900)
        page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.run("document.documentElement.scrollWidth") <= width
        outside = page.run(
            "[...document.querySelectorAll('main:not([hidden]) .panel svg')].flatMap((svg) => {"
            " const frame = svg.getBoundingClientRect();"
            " return [...svg.querySelectorAll('text')].filter((text) => { const b = text.getBoundingClientRect();"
            "  return b.left < frame.left - 1 || b.right > frame.right + 1; }).map((text) => text.textContent) })"
        )
        assert outside == []
        empty = page.run(
            "[...document.querySelectorAll('main:not([hidden]) .panel')].filter((panel) =>"
            " !panel.querySelector('svg path, svg rect')).map((panel) => panel.textContent)"
        )
        assert empty == []


def test_it_prints(page: Page, tmp_path: Path) -> None:
    page.print(tmp_path / "page.pdf")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", content)) >= 3
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000  # an empty window has a tenth of that


def test_nothing_is_fetched_even_if_something_asks(page: Page) -> None:
    asked = "fetch('http://127.0.0.1:9/').then(() => 'got', () => 'refused')"
    assert page.run(asked) == "refused"
    assert any("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()
