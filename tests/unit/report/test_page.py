"""The page of a report: what is in it, that nothing in it can act, and that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from oscbench.errors import OscbenchError
from oscbench.report.blocks import Block, Chart, Column, Facts, Part, Section, Sheet, SheetImage, Table
from oscbench.report.page import MOST_BYTES, build_page
from oscbench.report.page.build import plain, policy

HOSTILE = """</script><script>alert(1)</script><img src=x onerror="alert(2)"> '"&{{ 7 * 7 }} \u2028 <!-- ]]>"""


class Found(HTMLParser):
    """Elements with their attributes, and the texts in scripts, styles and everywhere else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        _, attributes = self.elements[-1] if self.elements else ("", {})
        if self.cdata_elem == "script":
            self.scripts.append((attributes, data))
        elif self.cdata_elem == "style":
            self.styles.append(data)
        elif data.strip():
            self.texts.append(data)


def picture() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(written, "PNG")
    return written.getvalue()


def make_page(text: str) -> tuple[str, dict[str, Any]]:
    """A page with ``text`` wherever data can bring one, and the document of its figure."""
    document = {
        "kind": "xy",
        "keys": {text: {"label": text, "values": {text: {"label": text, "style": 0, "off": False}}}},
        "choose": [],
        "arrangements": [{"name": text, "panels": [], "colour": text, "line": None}],
        "series": [{"keys": {text: text}, "mark": "dot", "x": [1.0, math.nan], "y": [0.5, math.inf], "notes": [text]}],
        "x": {"label": text, "scales": {"linear": None}},
        "y": {"label": text, "scales": {"linear": None}},
    }
    frame = pd.DataFrame({"name": [text, ""], "value": [0.123456789012, math.nan], "whole": [3, 4]})
    columns = (
        Column(key="name", title=text, choice=True),
        Column(key="value", title="value", decimals=2),
        Column(key="whole", title="whole"),
    )
    blocks = (
        Table(name=text, title=text, frame=frame, columns=columns, note=text, marks={(0, "value"): "best"}),
        Chart(name=text, title=text, document=document, figure=None, note=text),
        Sheet(name=text, title=text, images=(SheetImage(content=picture(), name=text, said=text),) * 2, note=text),
        Sheet(name=text, title=text, images=(SheetImage(content=None, name=text, said=text),), note=text),
        Facts(name=text, rows={text: text, "lines": "a\nb"}),
    )
    section = Section(name=text, title=text, blocks=blocks, text=f"{text}\n\nsecond")
    part = Part(data=text, heading=text, warning=text, sections=(section,))
    return build_page([part, part], title=text), document


def test_what_comes_from_data_is_text_and_nothing_else() -> None:
    hostile, document = make_page(HOSTILE)
    harmless, _ = make_page("x" * len(HOSTILE))
    found, usual = Found(hostile), Found(harmless)
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in usual.elements]
    for (_, attributes), (_, expected) in zip(found.elements, usual.elements, strict=True):
        assert list(attributes) == list(expected)
        assert not [name for name in attributes if name.startswith("on")]
    assert sum(HOSTILE in text for text in found.texts) == sum("xxx" in text for text in usual.texts) > 20
    assert "49" not in "".join(found.texts)  # the engine's own language is text too
    documents = [json.loads(text) for attributes, text in found.scripts if attributes.get("type") == "application/json"]
    assert documents == [plain(document)] * 2


def test_anchors_are_unique_and_links_lead_to_them() -> None:
    found = Found(make_page(HOSTILE)[0])
    anchors = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
    assert links
    assert {link[1:] for link in links if link} <= set(anchors)


def test_nothing_comes_from_elsewhere() -> None:
    page, _ = make_page("harmless")
    found = Found(page)
    sources = [a[name] for _, a in found.elements for name in ("src", "href", "data", "action", "srcset") if name in a]
    assert sources
    assert all(source and source.startswith(("#", "data:image/png;base64,")) for source in sources)
    assert not [tag for tag, _ in found.elements if tag in ("link", "iframe", "object", "embed", "base", "form")]
    assert not re.search(r"@import|url\(", found.styles[0])
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|import\(|\beval\(|new Function", page)


def test_the_policy_names_the_very_script_and_style() -> None:
    found = Found(make_page("harmless")[0])
    (given,) = (a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = ((a, text) for a, text in found.scripts if a.get("type") != "application/json")
    rules = dict(rule.strip().split(" ", 1) for rule in str(given).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest(script[1])}'"
    assert rules["style-src-elem"] == f"'sha256-{digest(found.styles[0])}'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in rules["script-src"]
    assert policy("a", "b") != policy("a", "c")


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_cells_carry_all_digits_and_blanks_none() -> None:
    page, _ = make_page("harmless")
    cells = [attributes for tag, attributes in Found(page).elements if tag == "td"][:6]
    assert [cell.get("data-value") for cell in cells] == [None, "0.123456789012", "3.0", None, None, "4.0"]
    assert [cell.get("class") for cell in cells] == [None, "number best", None, None, "number", None]


def test_pictures_keep_their_bytes() -> None:
    page, _ = make_page("harmless")
    found = Found(page)
    sources = [attributes["src"] for tag, attributes in found.elements if tag == "img"]
    assert [base64.b64decode(str(source).split(",")[1]) for source in sources] == [picture()] * 4
    assert "no image" in found.texts


def part_of(*blocks: Block) -> Part:
    return Part(data="d", heading="d", warning="", sections=(Section(name="s", title="s", blocks=blocks),))


def test_a_page_nobody_could_open_is_refused() -> None:
    with pytest.raises(OscbenchError, match=r"15\.\d MB, more than 15"):
        build_page([part_of(Facts(name="f", rows={"x": "y" * MOST_BYTES}))], title="t")


def test_folded_tables_of_very_many_rows_stay_in_their_files() -> None:
    long = pd.DataFrame({"name": ["y" * 1000] * (MOST_BYTES // 1000)})
    columns = (Column(key="name", title="name"),)
    folded = Table(name="grid-evm", title="EVM", frame=long, columns=columns, folded=True, marks={(0, "name"): "best"})
    short = Table(name="short", title="short", frame=long.head(2), columns=columns, folded=True)
    found = Found(build_page([part_of(folded, short)], title="t"))
    assert f"{len(long)} rows, too many for the page: tables/grid-evm.csv has them." in found.texts
    assert "2 rows, too many for the page: tables/short.csv has them." in found.texts
    assert not [tag for tag, _ in found.elements if tag == "td"]
    found = Found(build_page([part_of(short)], title="t"))
    assert len([tag for tag, _ in found.elements if tag == "td"]) == 2
