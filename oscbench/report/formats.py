"""Tables as files: CSV with everything, Markdown and LaTeX with what people see. Written whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pandas as pd

from oscbench.artifacts import atomic_file, write_text
from oscbench.errors import UsageError
from oscbench.registry import nearest
from oscbench.report.blocks import Column, Mark, Table
from oscbench.report.tables import markdown

TableFormat = Literal["csv", "markdown", "latex"]
"""As what a table of a report is written."""

ExportFormat = Literal["csv", "parquet", "latex"]
"""As what ``oscbench export`` writes."""

ENDINGS: Final[Mapping[str, str]] = {"csv": ".csv", "markdown": ".md", "latex": ".tex", "parquet": ".parquet"}

_PAGE_ROWS: Final = 45
"""A LaTeX table with more rows goes on over pages."""

_PLAIN: Final = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_SIGNS: Final = {
    "±": r"\pm",
    "−": "-",
    "≤": r"\leq",
    "≥": r"\geq",
    "×": r"\times",
    "⁺": "^{+}",
    "⁻": "^{-}",
    "²": "^{2}",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "ζ": r"\zeta",
    "κ": r"\kappa",
    "λ": r"\lambda",
    "χ": r"\chi",
    "ω": r"\omega",
    "Δ": r"\Delta",
    "Σ": r"\Sigma",
}
_LATEX_MARKS: Final[Mapping[Mark, str]] = {"best": r"\textbf", "second": r"\underline", "third": r"\textit"}
_MARKDOWN_MARKS: Final[Mapping[Mark, str]] = {"best": "**{}**", "second": "<u>{}</u>", "third": "*{}*"}


# --- tables of a report -----------------------------------------------------------------------------------------------


def write_table(
    table: Table, folder: Path, formats: Iterable[TableFormat] = ("csv", "markdown", "latex")
) -> list[Path]:
    """Writes the table as ``folder/<name>.csv``, ``.md`` and ``.tex``; returns the files."""
    paths = []
    for name in formats:
        path = folder / (table.name + ENDINGS[name])
        write_text(path, _TEXTS[name](table))
        paths.append(path)
    return paths


def csv_text(table: Table) -> str:
    """All columns of the frame, figures with all their digits; blanks where there is nothing."""
    text: str = table.frame.to_csv(index=False, lineterminator="\n")
    return text


def markdown_text(table: Table) -> str:
    """Heading, note and table as Markdown; best bold, second underlined, third italic."""
    rows = [
        [_MARKDOWN_MARKS.get(mark, "{}").format(text) if text and mark else text for text, mark in cells]
        for cells in _cells(table)
    ]
    frame = pd.DataFrame(rows, columns=[column.title for column in table.columns])
    note = f"{table.note}\n\n" if table.note else ""
    return f"## {table.title}\n\n{note}{markdown(frame)}\n"


def latex_text(table: Table) -> str:
    """A ``table`` with booktabs rules, or a ``longtable`` of many rows; best bold, second underlined, third italic."""
    rows = [[_marked(latex_escaped(text), mark) for text, mark in cells] for cells in _cells(table)]
    return _latex(table, rows)


_TEXTS: Final[Mapping[str, Callable[[Table], str]]] = {
    "csv": csv_text,
    "markdown": markdown_text,
    "latex": latex_text,
}


def _cells(table: Table) -> Iterable[list[tuple[str, Mark | None]]]:
    """Text and mark of each cell that people see, row by row."""
    for number, row in enumerate(table.frame.to_dict("records")):
        named = {str(key): value for key, value in row.items()}
        yield [(column.text(named), table.marks.get((number, column.key))) for column in table.columns]


# --- LaTeX ------------------------------------------------------------------------------------------------------------


def latex_escaped(text: str) -> str:
    r"""A text as LaTeX prints it: what has a meaning there is escaped, signs and Greek letters become mathematics.

    >>> print(latex_escaped("50 % of p_1, λ ± 2"))
    50 \% of p\_1, $\lambda$ $\pm$ 2
    """
    return "".join(f"${_SIGNS[sign]}$" if sign in _SIGNS else _PLAIN.get(sign, sign) for sign in text)


def _marked(text: str, mark: Mark | None) -> str:
    return f"{_LATEX_MARKS[mark]}{{{text}}}" if text and mark is not None and mark in _LATEX_MARKS else text


def _latex(table: Table, rows: Sequence[Sequence[str]]) -> str:
    long = len(rows) > _PAGE_ROWS
    places = "".join("r" if column.numeric else "l" for column in table.columns)
    heading = " & ".join(latex_escaped(column.title) for column in table.columns) + r" \\"
    caption = latex_escaped(" ".join(filter(None, (f"{table.title}.", table.note))))
    named = rf"\caption{{{caption}}}\label{{tab:{_label(table.name)}}}"
    body = [" & ".join(row) + r" \\" for row in rows]
    if long:
        lines = [rf"\begin{{longtable}}{{{places}}}", rf"{named} \\", r"\toprule", heading, r"\midrule", r"\endhead"]
        lines += [*body, r"\bottomrule", r"\end{longtable}"]
    else:
        lines = [r"\begin{table}", r"\centering", named, rf"\begin{{tabular}}{{{places}}}", r"\toprule", heading]
        lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    packages = r"\usepackage{booktabs}" + (r" \usepackage{longtable}" if long else "")
    return "\n".join([f"% {packages}", *lines]) + "\n"


def _label(name: str) -> str:
    """A name without what labels may not hold."""
    return "".join(sign if sign.isalnum() or sign in "-.:" else "-" for sign in name)


# --- exported tables --------------------------------------------------------------------------------------------------


def export_format(out: Path, asked: str | None) -> ExportFormat:
    """The format that was asked for, else the one that the file's name ends in.

    >>> export_format(Path("all.parquet"), None), export_format(Path("all.txt"), "csv")
    ('parquet', 'csv')
    """
    formats: tuple[ExportFormat, ...] = get_args(ExportFormat)
    for name in formats:
        if asked == name or (asked is None and out.suffix == ENDINGS[name]):
            return name
    if asked is not None:
        raise UsageError(f"unknown format {asked!r}{nearest(asked, formats)} (one of {', '.join(formats)})")
    endings = ", ".join(ENDINGS[name] for name in formats)
    raise UsageError(f"--out {out}: give a name that ends in one of {endings}, or --format")


def export_table(frame: pd.DataFrame, out: Path, form: ExportFormat, title: str) -> None:
    """Writes a table for other programs, whole or not at all.

    Args:
        frame: The table.
        out: The file.
        form: CSV and Parquet hold all digits; LaTeX, which is for people, four decimals.
        title: What LaTeX writes above it.
    """
    if form == "latex":
        write_text(out, latex_text(_shown(frame, out.stem, title)))
        return
    with atomic_file(out) as temporary:
        if form == "csv":
            frame.to_csv(temporary, index=False, lineterminator="\n")
        else:
            frame.to_parquet(temporary, index=False)


def _shown(frame: pd.DataFrame, name: str, title: str) -> Table:
    """Every column but those that are blank throughout."""
    kept = [str(key) for key in frame.columns if not frame[key].map(_blank).all()]
    decimals: dict[str, Any] = {key: 4 for key in kept if pd.api.types.is_float_dtype(frame[key])}
    columns = tuple(Column(key=key, title=key, decimals=decimals.get(key)) for key in kept)
    return Table(name=name, title=title, frame=frame, columns=columns)


def _blank(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value))
