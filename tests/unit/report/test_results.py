"""What is read from a runs folder: all that is finished, what is damaged by name, nothing that was set aside."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs_factory import make_runs

from oscbench.artifacts import ASIDE, META
from oscbench.errors import UsageError
from oscbench.report.results import Results, read_results
from oscbench.scores import ScoreSet
from oscbench.tuning.trials import read_trials

ALGORITHMS = ("mss", "openmax")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data set with two trainings and seeds, and another with one cell."""
    runs = tmp_path_factory.mktemp("results") / "runs"
    make_runs(runs, protocols=("p2",), trainings=("eos", "softmax"), algorithms=ALGORITHMS, seeds=(1, 0), epochs=1)
    return make_runs(
        runs, protocols=("p2",), trainings=("softmax",), algorithms=("mss",), demo=False, data="mine", epochs=1
    )


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(made, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


def names(results: Results) -> list[tuple[object, ...]]:
    return [(*dataclasses.astuple(cell.origin)[:4], cell.algorithm) for cell in results.cells]


def test_everything_is_found_and_the_papers_order_holds(made: Path) -> None:
    results = read_results(made)
    expected = itertools.product(["demo-1a2b3c4d"], ["p2"], ["softmax", "eos"], [0, 1], ALGORITHMS)
    assert names(results) == [*expected, ("mine", "p2", "softmax", 0, "mss")]
    assert [search.algorithm for search in results.searches] == ["openmax"] * 4
    assert [network.origin.training for network in results.networks] == ["softmax"] * 2 + ["eos"] * 2 + ["softmax"]
    assert len(results.work) == sum(len(list(made.glob(f"*/*/{stage}-*"))) for stage in
                                    ("samples", "train", "features", "tune", "scores"))  # fmt: skip
    assert results.left_out == ()
    assert (results.data_sets, results.demo) == (("demo-1a2b3c4d", "mine"), True)


def test_networks_of_equal_data_under_two_names_keep_theirs(made: Path) -> None:
    networks = read_results(made).networks
    first, other = networks[0], networks[-1]
    assert first.folder.name == other.folder.name  # equal classes, tables and settings
    for network in networks:
        data, protocol, _ = network.folder.relative_to(made).parts
        assert (network.origin.data, network.origin.protocol) == (data, protocol)
        assert network.origin.demo == (data != "mine")
        assert list(network.epochs["epoch"]) == [1]


def test_a_cell_holds_what_its_folder_says(made: Path) -> None:
    for cell in read_results(made).cells:
        meta = json.loads((cell.folder / META).read_text())
        assert meta["config"]["algorithm"] == cell.algorithm
        assert meta["result"]["params"] == cell.params
        assert meta["seconds"] == cell.seconds
        for split, scores in cell.splits.items():
            assert np.array_equal(scores.score, ScoreSet.load(cell.folder / split).score)
        assert set(cell.splits) == {"val", "test"}
        if cell.algorithm == "openmax":
            assert cell.search is not None
            best = read_trials(cell.search / "trials.csv").sort_values("sum").iloc[-1]
            assert cell.ccr_rule == "inclusive"
            assert cell.params["tail_size"] in (5, 20)
            assert best["sum"] == pytest.approx(meta_sum(cell.search))


def meta_sum(search: Path) -> float:
    return float(json.loads((search / META).read_text())["result"]["sum"])


def test_data_sets_are_kept_apart(made: Path) -> None:
    results = read_results(made)
    mine, demo = results.of("mine"), results.of("demo-1a2b3c4d")
    assert (len(mine.cells), mine.demo, mine.data_sets) == (1, False, ("mine",))
    assert (len(demo.cells), demo.demo, demo.data_sets) == (8, True, ("demo-1a2b3c4d",))
    assert len(mine.work) + len(demo.work) == len(results.work)
    with pytest.raises(UsageError, match=r"no data 'other' below .*; there is demo-1a2b3c4d, mine"):
        results.of("other")


def damage_array(folder: Path) -> str:
    score = folder / "test/score.npy"
    score.write_bytes(score.read_bytes()[:100])
    return "score.npy is damaged"


def damage_values(folder: Path) -> str:
    score = folder / "test/score.npy"
    np.save(score, np.load(score) + 1)
    return "are not those that were written"


def damage_meta(folder: Path) -> str:
    (folder / META).write_text('{"schema": 1,')
    return "meta.json is damaged"


def damage_set(folder: Path) -> str:
    (folder / "val/set.json").unlink()
    return "has no set.json"


@pytest.mark.parametrize("damage", [damage_array, damage_values, damage_meta, damage_set])
def test_a_damaged_cell_is_named_and_the_rest_is_read(runs: Path, damage: object) -> None:
    before = read_results(runs)
    lost = before.cells[3]
    assert callable(damage)
    reason = damage(lost.folder)
    after = read_results(runs)
    ((folder, said),) = after.left_out
    assert folder == lost.folder
    assert reason in said
    assert "\n" not in said
    assert names(after) == [name for name, cell in zip(names(before), before.cells, strict=True) if cell is not lost]
    assert after.of(lost.origin.data).left_out == after.left_out
    assert after.of("mine").left_out == ()


def test_a_damaged_search_is_named_and_its_cell_stays(runs: Path) -> None:
    search = read_results(runs).searches[0]
    (search.folder / "trials.csv").write_text("no,such\n1,2\n")
    after = read_results(runs)
    assert [folder for folder, _ in after.left_out] == [search.folder]
    assert (len(after.cells), len(after.searches)) == (9, 3)


def test_what_is_unfinished_or_set_aside_does_not_count(runs: Path) -> None:
    before = read_results(runs)
    first, second = before.cells[0].folder, before.cells[1].folder
    (first / META).unlink()
    aside = second.parent / ASIDE / f"{second.name}-20260101-000000-abcd"
    aside.parent.mkdir()
    second.rename(aside)
    (runs / "demo-1a2b3c4d" / "p2" / "notes-of-mine").mkdir()
    after = read_results(runs)
    assert names(after) == names(before)[2:]
    assert after.left_out == ()


def test_one_cell_of_each_network_and_algorithm_is_preferred(made: Path) -> None:
    results = read_results(made)
    cell = results.cells[1]
    assert cell.algorithm == "openmax"
    older = dataclasses.replace(cell, created="2000-01-01T00:00:00+00:00", folder=Path("older"))
    other_rule = dataclasses.replace(cell, ccr_rule="published", folder=Path("published"))
    origin = dataclasses.replace(cell.origin, recipe=f"{cell.origin.recipe}; best epoch")
    best_epoch = dataclasses.replace(cell, origin=origin, folder=Path("best epoch"))
    many = dataclasses.replace(results, cells=(older, other_rule, best_epoch, *results.cells))
    assert many.preferred().cells == results.cells
    published = many.preferred("published")
    assert [found.folder for found in published.cells if found.algorithm == "openmax"][0] == Path("published")
    assert len(published.cells) == len(results.cells)


@pytest.mark.parametrize("make", [False, True])
def test_nothing_to_read_is_said_in_one_line(tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match="nothing finished below" if make else "does not exist") as caught:
        read_results(tmp_path / "runs")
    assert "\n" not in str(caught.value)


def test_reading_loads_neither_torch_nor_ray_nor_numba(made: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from oscbench.report.results import read_results; "
        f"read_results(Path({str(made)!r})).preferred(); print(sorted({{'torch', 'ray', 'numba'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_stays_open_however_many_cells_there_are(drawn_runs: Path) -> None:
    """A dozen files for each of hundreds of cells would be more than a system lets a process have open."""
    before = len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count(str(drawn_runs))
    results = read_results(drawn_runs)
    for cell in results.cells:
        assert len(cell.splits["val"].labels) > 0
    after = len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count(str(drawn_runs))
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 12


def test_a_renamed_data_folder_keeps_its_cells(drawn_runs: Path, tmp_path: Path) -> None:
    (name,) = read_results(drawn_runs).data_sets
    shutil.copytree(drawn_runs / name, tmp_path / "runs" / "renamed", symlinks=True)
    results = read_results(tmp_path / "runs")
    assert results.data_sets == ("renamed",)
    assert len(results.of("renamed").cells) == len(results.cells) == len(read_results(drawn_runs).cells)
