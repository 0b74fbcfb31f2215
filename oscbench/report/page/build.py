"""Parts of a report as one self-contained ``index.html``.

Everything from data is escaped by the template engine. The page's policy allows its own script and style by their
digests and images that it holds itself; nothing is fetched.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import jinja2
import numpy as np
from markupsafe import Markup

from oscbench.errors import OscbenchError
from oscbench.report.blocks import Block, Chart, Column, Facts, Part, Sheet, Table

if TYPE_CHECKING:
    from oscbench.report.plots.style import Figure

MOST_BYTES: Final = 15_000_000
"""Larger pages are refused: browsers take long to open them, and mail does not carry them."""

_SCRIPTS: Final = ("table.js", "plot.js", "chart.js", "page.js")
_LONG = 28
"""Characters above which a cell's text may be broken into lines."""


def build_page(parts: Sequence[Part], *, title: str) -> str:
    """The whole page; of very many results without the tables that are folded, which are files too."""
    page = _page(parts, title)
    if len(page.encode()) > MOST_BYTES:
        page = _page([_without_folded(part) for part in parts], title)
    size = len(page.encode())
    if size > MOST_BYTES:
        raise OscbenchError(
            f"the page has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}; report fewer runs, each from its own "
            "--runs folder"
        )
    return page


def _page(parts: Sequence[Part], title: str) -> str:
    style, script = _text("page.css"), "\n".join(map(_text, _SCRIPTS))
    return _template().render(
        title=title,
        parts=[_part(part, number) for number, part in enumerate(parts)],
        style=Markup(style),  # our own files
        script=Markup(script),
        policy=policy(style, script),
    )


def _without_folded(part: Part) -> Part:
    """Tables keep their headings, and say where their rows are."""
    sections = [dataclasses.replace(section, blocks=tuple(map(_emptied, section.blocks))) for section in part.sections]
    return dataclasses.replace(part, sections=tuple(sections))


def _emptied(block: Block) -> Block:
    if not isinstance(block, Table) or not block.folded:
        return block
    note = f"{len(block.frame)} rows, too many for the page: tables/{block.name}.csv has them."
    return dataclasses.replace(block, frame=block.frame.head(0), marks={}, note=note)


def policy(style: str, script: str) -> str:
    """What the page may load: its own script and style, images inside it, and nothing from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; script-src 'sha256-{digests[1]}'; style-src-elem 'sha256-{digests[0]}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _text(name: str) -> str:
    return files("oscbench.report.page").joinpath(name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "ensure_ascii": False,
        "separators": (",", ":"),
    }
    return environment.from_string(_text("page.html"))


# --- what the template is given --------------------------------------------------------------------------------------


def _part(part: Part, number: int) -> dict[str, Any]:
    anchor = f"data-{number + 1}"
    sections = []
    for section in part.sections:
        place = f"{anchor}-{_slug(section.name)}"
        blocks = [_block(block, f"{place}-{count}-{_slug(block.name)}") for count, block in enumerate(section.blocks)]
        sections.append({"anchor": place, "title": section.title, "text": section.text, "blocks": blocks})
    return {
        "anchor": anchor,
        "name": part.data,
        "heading": part.heading,
        "warning": part.warning,
        "sections": sections,
    }


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def _block(block: Block, anchor: str) -> dict[str, Any]:
    if isinstance(block, Table):
        return {"kind": "table", "anchor": anchor, **_table(block)}
    if isinstance(block, Facts):
        rows = {name: {"text": value, "wide": "\n" in value or len(value) > 90} for name, value in block.rows.items()}
        return {"kind": "facts", "anchor": anchor, "rows": rows}
    common = {"anchor": anchor, "title": block.title, "note": block.note}
    if isinstance(block, Sheet):
        images = [
            {"source": None if one.content is None else _data_url(one.content), "name": one.name, "said": one.said}
            for one in block.images
        ]
        return {"kind": "sheet", **common, "images": images}
    if block.document is not None:
        return {"kind": "chart", **common, "document": plain(block.document)}
    return {"kind": "picture", **common, "source": _picture(block)}


def _table(table: Table) -> dict[str, Any]:
    records = table.frame.to_dict("records")
    rows = [
        [_cell(row, column, table.marks.get((number, column.key), "")) for column in table.columns]
        for number, row in enumerate(records)
    ]
    columns = [{"title": column.title, "numeric": column.numeric, "choice": column.choice} for column in table.columns]
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "folded": table.folded,
        "columns": columns,
        "rows": rows,
    }


def _cell(row: Mapping[Any, Any], column: Column, mark: str) -> dict[str, Any]:
    text, value = column.text(row), row[column.key]
    number = None
    if text and isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value):
        number = repr(float(value))
    classes = ["number"] if column.numeric else (["long"] if len(text) > _LONG else [])
    return {"text": text, "value": number, "classes": " ".join([*classes, *filter(None, [mark])])}


def plain(value: Any) -> Any:
    """A document as JSON has it: numbers of Python, ``None`` for what is not finite.

    >>> plain({"x": (1.0, float("nan"))})
    {'x': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _data_url(content: bytes) -> str:
    kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _picture(chart: Chart) -> str:
    """The figure as SVG, which stays sharp however large."""
    from oscbench.report.plots.style import svg_text

    draw: Callable[[], Figure] | None = chart.figure
    assert draw is not None, "a chart has a document or a figure"
    return f"data:image/svg+xml;base64,{base64.b64encode(svg_text(draw()).encode()).decode()}"
