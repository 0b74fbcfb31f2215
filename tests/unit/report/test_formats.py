"""Tables as files: all in CSV, what people see in Markdown and LaTeX that holds together; whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oscbench.errors import OscbenchError, UsageError
from oscbench.report.blocks import Column, Table
from oscbench.report.formats import (
    csv_text,
    export_format,
    export_table,
    latex_escaped,
    latex_text,
    markdown_text,
    write_table,
)
from oscbench.report.measures import Measures
from oscbench.report.results import Results
from oscbench.report.sections.rates import rates_section
from oscbench.report.sections.settings import grids_section

AWKWARD = "50 % of p_1 & #2 {x} ~ ^ $ \\ <a> λ γ⁺ ±"


@pytest.fixture
def table() -> Table:
    """Two figures with an interval or a deviation, a blank, and text that means something to LaTeX and Markdown."""
    frame = pd.DataFrame(
        {
            "name": [AWKWARD, "a|b", "plain"],
            "ccr": [0.123456789012345, np.nan, 1 / 3],
            "ccr_low": [0.1, np.nan, np.nan],
            "ccr_high": [0.2, np.nan, np.nan],
            "ccr_std": [np.nan, np.nan, 0.02],
            "hidden": [1, 2, 3],
        }
    )
    columns = (Column(key="name", title="Name_1"), Column(key="ccr", title="CCR, %", decimals=3))
    marks = {(0, "ccr"): "best", (1, "ccr"): "second", (2, "ccr"): "third", (2, "name"): "open"}
    return Table(name="a-table", title="A title", frame=frame, columns=columns, note="A note.", marks=marks)  # type: ignore[arg-type]


class LatexError(Exception):
    """What a compiler would stop at."""


def read_latex(text: str) -> tuple[str, list[list[str]]]:
    """Column places and cells of a table, after a walk that keeps account of braces, mathematics and environments."""
    open_braces, in_math, environments = 0, False, list[str]()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    for token in re.findall(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+|\\.|.", code, flags=re.DOTALL):
        if begun := re.fullmatch(r"\\begin\{(\w+)\}", token):
            environments.append(begun[1])
        elif ended := re.fullmatch(r"\\end\{(\w+)\}", token):
            if environments.pop() != ended[1] or open_braces or in_math:
                raise LatexError(f"{token} ends something else")
        elif token == "{":
            open_braces += 1
        elif token == "}":
            open_braces -= 1
            if open_braces < 0:
                raise LatexError("a brace too many")
        elif token == "$":
            in_math = not in_math
        elif token in "#~_^%" and not in_math:
            raise LatexError(f"{token} has a meaning here")
        elif token.startswith("\\") and token[1:] in ("lambda", "gamma", "pm") and not in_math:
            raise LatexError(f"{token} outside mathematics")
    if environments or open_braces or in_math:
        raise LatexError("something is left open")
    (places,) = re.findall(r"\\begin\{(?:tabular|longtable)\}\{([lr]+)\}", code)
    body = code[code.index(r"\midrule") : code.index(r"\bottomrule")].removeprefix(r"\midrule")
    lines = [line.removesuffix(r" \\") for line in body.splitlines() if line.endswith(r"\\")]
    rows = [re.split(r"(?<!\\) & |(?<!\\) &$", line) for line in lines]
    if {len(row) for row in rows} - {len(places)}:
        raise LatexError(f"rows of {sorted({len(row) for row in rows})} cells in {len(places)} columns")
    return places, rows


def test_csv_holds_every_column_and_all_digits(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(csv_text(table))
    back = pd.read_csv(path)
    pd.testing.assert_frame_equal(back, table.frame, check_exact=True, check_dtype=False)


def test_markdown_shows_marks_intervals_and_blanks(table: Table) -> None:
    lines = markdown_text(table).splitlines()
    assert lines[0] == "## A title"
    assert lines[2] == "A note."
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[4:]]
    assert cells[0] == ["Name_1", "CCR, %"]
    assert cells[2][1] == "**0.123 [0.100, 0.200]**"
    assert cells[3] == ["a\\|b", ""]
    assert cells[4] == ["plain", "*0.333 ± 0.020*"]


def test_latex_holds_together_and_says_the_same(table: Table) -> None:
    text = latex_text(table)
    places, rows = read_latex(text)
    assert places == "lr"
    assert rows[0][1] == r"\textbf{0.123 [0.100, 0.200]}"
    assert rows[1] == [r"a|b", ""]
    assert rows[2] == ["plain", r"\textit{0.333 $\pm$ 0.020}"]
    assert r"\caption{A title. A note.}\label{tab:a-table}" in text
    assert r"Name\_1 & CCR, \% \\" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


def test_what_means_something_to_latex_is_escaped() -> None:
    assert latex_escaped(AWKWARD) == (
        r"50 \% of p\_1 \& \#2 \{x\} \textasciitilde{} \textasciicircum{} \$ \textbackslash{} "
        r"\textless{}a\textgreater{} $\lambda$ $\gamma$$^{+}$ $\pm$"
    )


@pytest.mark.parametrize("broken", ["{", "}", "%", "_", "$"])
def test_the_reader_of_latex_sees_what_is_broken(table: Table, broken: str) -> None:
    with pytest.raises(LatexError):
        read_latex(latex_text(table).replace("plain", f"pla{broken}in"))


def test_every_table_of_a_report_is_sound_latex(drawn: Results, measures: Measures) -> None:
    for section in (rates_section(drawn, measures), grids_section(drawn, measures)):
        for block in section.blocks:
            assert isinstance(block, Table)
            _, rows = read_latex(latex_text(block))
            assert len(rows) == len(block.frame)


def test_long_tables_go_on_over_pages(table: Table) -> None:
    frame = pd.concat([table.frame] * 20, ignore_index=True)
    text = latex_text(Table(name="x", title="X", frame=frame, columns=table.columns))
    assert r"\usepackage{longtable}" in text
    assert r"\endhead" in text
    assert len(read_latex(text)[1]) == 60


def test_tables_are_written_in_every_format(table: Table, tmp_path: Path) -> None:
    paths = write_table(table, tmp_path)
    assert [path.name for path in paths] == ["a-table.csv", "a-table.md", "a-table.tex"]
    assert paths[0].read_text() == csv_text(table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-table.csv", "a-table.md", "a-table.tex"]


def test_a_folder_that_takes_no_files_is_one_line(table: Table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OscbenchError, match="cannot write") as caught:
        write_table(table, tmp_path / "file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["csv", "parquet", "latex"])
def test_exported_tables_come_back(table: Table, tmp_path: Path, form: str) -> None:
    path = tmp_path / "out.any"
    export_table(table.frame, path, form, "Title")  # type: ignore[arg-type]
    if form == "latex":
        places, rows = read_latex(path.read_text())
        assert places == "lrrrrl"
        assert rows[2][1] == r"0.3333 $\pm$ 0.0200"
    else:
        back = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
        pd.testing.assert_frame_equal(back, table.frame, check_exact=True, check_dtype=False)
    assert [found.name for found in tmp_path.iterdir()] == ["out.any"]


def test_the_format_is_asked_for_or_the_files_name() -> None:
    assert export_format(Path("a.tex"), None) == "latex"
    assert export_format(Path("a.csv"), "parquet") == "parquet"
    with pytest.raises(UsageError, match=r"unknown format 'parket', did you mean 'parquet'"):
        export_format(Path("a.csv"), "parket")
    with pytest.raises(UsageError, match=r"--out a.xlsx: give a name that ends in one of .csv, .parquet, .tex"):
        export_format(Path("a.xlsx"), None)
