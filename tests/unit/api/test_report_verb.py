"""``report``: a folder that is whole or not there, from the runs folder alone."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs_factory import make_runs

from oscbench.api.report import write_report
from oscbench.errors import OscbenchError, UsageError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells of one protocol on embedded data, and one of other data."""
    folder = tmp_path_factory.mktemp("reported") / "runs"
    make_runs(folder, protocols=("p1",), trainings=("softmax",), algorithms=("mss", "openmax"))
    return make_runs(folder, protocols=("p1",), trainings=("softmax",), algorithms=("mss",), data="own", demo=False)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_there_and_data_sets_are_apart(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = files(runs)
    with caplog.at_level(logging.INFO):
        made = write_report(runs, tmp_path / "out")
    assert "runs of 2 data sets are kept apart: demo-1a2b3c4d, own" in caplog.text
    assert made.data_sets == ("demo-1a2b3c4d", "own")
    assert made.left_out == ()
    found = files(tmp_path / "out")
    assert found == {path.relative_to(tmp_path / "out").as_posix() for path in (made.page, *made.tables, *made.figures)}
    for data in made.data_sets:
        assert {f"figures/{data}/oscr-log.png", f"figures/{data}/oscr-linear.pdf"} <= found
    assert {path.suffix for path in made.tables} == {".csv", ".md", ".tex"}
    assert {path.suffix for path in made.figures} == {".png", ".pdf"}
    page = made.page.read_text(encoding="utf-8")
    assert page.count('<main id="data-') == 2
    assert f"oscbench report --runs {runs} --out {tmp_path / 'out'}" in page
    assert files(runs) == before
    assert not [path for path in tmp_path.iterdir() if path.name != "out"]  # nothing is left beside it


def test_a_report_is_replaced_and_nothing_else_is(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oscbench.report.document.SECTIONS", ())  # what is written is not asked here
    out = tmp_path / "out"
    out.mkdir()
    write_report(runs, out)
    (out / "tables").mkdir(exist_ok=True)
    (out / "tables" / "old.csv").write_text("of an older report")
    write_report(runs, out)
    assert not (out / "tables" / "old.csv").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "index.html").write_text("<!doctype html><title>years of work</title>")
    for other in (tmp_path / "thesis", runs, out / "index.html"):
        with pytest.raises(UsageError, match=f"{other} exists and is no report; give another --out"):
            write_report(runs, other)
    assert files(tmp_path / "thesis") == {"index.html"}


def test_what_fails_leaves_the_older_report(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oscbench.report.document.SECTIONS", ())
    write_report(runs, tmp_path / "out")
    before = (tmp_path / "out" / "index.html").read_bytes()
    monkeypatch.setattr("oscbench.api.report._write_figures", fail)
    with pytest.raises(OscbenchError, match="cannot write .*out: No space left on device"):
        write_report(runs, tmp_path / "out", rule="published")
    assert (tmp_path / "out" / "index.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_damaged_cell_is_named_and_the_rest_is_reported(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oscbench.api.report._write_figures", lambda parts, work: [])
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy, symlinks=True)
    damaged = next(
        path for path in copy.glob("demo*/p1/scores-*") if json.loads((path / "meta.json").read_text())["inputs"]
    )
    np.save(damaged / "test" / "score.npy", np.zeros(3))
    made = write_report(copy, tmp_path / "out")
    ((folder, reason),) = made.left_out
    assert folder == damaged
    assert "score has shape (3,)" in reason
    assert f"{damaged} is left out: {reason}" in caplog.text
    page = made.page.read_text(encoding="utf-8")
    assert damaged.name in page
    assert "OSCR curves" in page


def test_an_empty_runs_folder_and_wrong_words_are_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for asked, said in (
        ({"runs": tmp_path / "empty"}, "there is nothing finished below"),
        ({"runs": tmp_path / "none"}, "does not exist"),
        ({"runs": runs, "compare": "papers"}, "compare is 'paper' or nothing, got 'papers'"),
        ({"runs": runs, "data": tmp_path / "images"}, "image folder .*images does not exist"),
    ):
        with pytest.raises(UsageError, match=said):
            write_report(out=tmp_path / "out", **asked)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_neither_torch_nor_ray_is_loaded(runs: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from oscbench.cli import main\n"
        "try: main(['report', '--runs', sys.argv[1], '--out', sys.argv[2]])\n"
        "except SystemExit as end: print(end.code, *[m for m in ('torch', 'ray', 'numba') if m in sys.modules])"
    )
    shutil.copytree(runs / "own", tmp_path / "runs" / "own", symlinks=True)
    command = [sys.executable, "-c", program, str(tmp_path / "runs"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(tmp_path / "out" / "index.html"), "0"]
    assert "Traceback" not in done.stderr
