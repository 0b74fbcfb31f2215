"""The example notebook runs from top to bottom and shows what it is stored with.

``jupyter execute --inplace examples/first_steps.ipynb`` stores its outputs again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PATH = re.compile(r"(?<![\w.<])/\w+/\w+")
"""A path from the root of somebody's machine."""


def texts(cell: Any) -> list[str]:
    """What a cell shows as text; pictures are left to the eye."""
    shown = [str(output["data"].get("text/plain", "")) for output in cell.outputs if "data" in output]
    return shown + [str(output["text"]) for output in cell.outputs if output.output_type == "stream"]


def forms(cell: Any) -> list[tuple[str, list[str]]]:
    """Kinds of output, and the formats of each."""
    return [(output.output_type, sorted(output.get("data", ()))) for output in cell.outputs]


def assert_alike(found: str, stored: str) -> None:
    """The same words and, up to a sample or two that another processor rounds otherwise, the same numbers."""
    assert NUMBER.sub("#", found).split() == NUMBER.sub("#", stored).split()
    assert [*map(float, NUMBER.findall(found))] == pytest.approx([*map(float, NUMBER.findall(stored))], abs=0.003)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_what_it_is_stored_with(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):  # nothing of the user's own counts
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    stored, run = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    (tmp_path / "work").mkdir()
    where = {"metadata": {"path": tmp_path / "work"}}
    NotebookClient(run, timeout=600, kernel_name="python3", resources=where).execute()
    cells = [pair for pair in zip(run.cells, stored.cells, strict=True) if pair[0].cell_type == "code"]
    assert [cell.execution_count for _, cell in cells] == list(range(1, len(cells) + 1))
    for executed, before in cells:
        assert forms(executed) == forms(before)
        assert not any(kind in ("error", "stream") for kind, _ in forms(executed))
        for found, expected in zip(texts(executed), texts(before), strict=True):
            assert_alike(found, expected)
    assert any("image/png" in formats for _, cell in cells for _, formats in forms(cell))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_names_no_folder_of_one_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not PATH.search(cell.source)
        for output in cell.get("outputs", ()):
            kept = [text for kind, text in output.get("data", {}).items() if not kind.startswith("image/")]
            assert not any(PATH.search(str(text)) for text in (*kept, output.get("text", "")))


def test_there_is_a_notebook_and_the_comparison_sees_a_difference() -> None:
    assert [path.name for path in NOTEBOOKS] == ["first_steps.ipynb"]
    assert_alike("sum  1.420 a", "sum 1.421   a")
    for other in ("sum 1.430 a", "sum 1.420 b", "sum 1.420 1 a"):
        with pytest.raises(AssertionError):
            assert_alike(other, "sum 1.420 a")
    assert PATH.search("in /tmp/somewhere")
    assert not PATH.search("</td>\n<td>a/b/c, 1/2")
