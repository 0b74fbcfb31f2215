"""``oscbench evaluate`` with the settings that searches have found, here or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from feature_factory import write_feature_folder

from oscbench.cli import main
from oscbench.features import load_feature_folder
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.rundir import RunDir
from oscbench.scores import ScoreSet
from oscbench.tuning.objective import Objective
from oscbench.tuning.search import Search, SearchRun
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import Best


def tuned(runs: Path, features: Path, overrides: tuple[str, ...]) -> Search:
    """A finished search on a feature folder."""
    splits = load_feature_folder(features)
    search = Search(
        directory=RunDir(runs, f"own-{splits.train.fingerprint[:8]}", "own"),
        training="softmax",
        seed=0,
        algorithm="openmax",
        train=splits.train,
        validation=splits.val,
        space=load_space("openmax", POSTPROCESSORS.info("openmax").params, overrides=overrides),
    )
    with SearchRun(search) as run:
        settings = run.remaining()
        for setting, outcome in zip(settings, Objective("openmax", splits.train, splits.val)(settings), strict=True):
            run.record(setting, outcome)
        run.finish()
    return search


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", *arguments])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    code, out, err = evaluate(capsys, *arguments, "--json")
    assert code == 0, err
    return list(json.loads(out)["runs"])


GRID = ("tail_size=5,20", "distance_multiplier=1.5,2.0", "alpha=2,3")


@pytest.fixture
def here(tmp_path: Path) -> tuple[Path, Path, Search]:
    features = write_feature_folder(tmp_path / "here")
    return tmp_path / "runs", features, tuned(tmp_path / "runs", features, GRID)


def test_a_setting_from_elsewhere_beside_the_one_found_here(
    here: tuple[Path, Path, Search], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, features, search = here
    other = tuned(tmp_path / "runs", write_feature_folder(tmp_path / "there", seed=50), ("tail_size=200", "alpha=1"))
    params = str(other.folder / "best.yaml")
    common = ["--features", str(features), "--alg", "openmax", "--runs", str(runs)]
    transferred, own = document(capsys, *common, "--params", params)
    assert transferred["algorithm"].startswith("openmax with the setting of own-")
    assert transferred["params"]["tail_size"] == 200
    assert own["algorithm"] == "openmax tuned here"
    best = Best.read(search.folder / "best.yaml")
    assert own["params"] == best.params
    (validation,) = [split for split in own["splits"] if split["split"] == "val"]
    assert best.sum == pytest.approx(validation["negative"]["sum"], abs=1e-9)
    folders = sorted((runs / search.directory.data / "own/softmax/s0/openmax").glob("scores-*"))
    assert len(folders) == 2
    for folder in folders:
        for split in ("val", "test"):
            assert ScoreSet.load(folder / split).meta is not None


def test_the_setting_found_here_is_the_default_and_scores_are_kept(
    here: tuple[Path, Path, Search], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, features, search = here
    params = str(search.folder / "best.yaml")
    arguments = ["--features", str(features), "--alg", "openmax", "--runs", str(runs), "--params", params]
    (first,) = document(capsys, *arguments)
    (second,) = document(capsys, *arguments)
    assert first == second
    code, _, err = evaluate(capsys, *arguments)
    assert code == 0
    assert "CCR rule inclusive" not in err
    assert len(list((search.folder.parent).glob("scores-*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alg", "mss", "--params", "BEST"], "holds a setting of openmax; use --alg openmax"),
        (["--alg", "openmax", "--params", "none.yaml"], "none.yaml does not exist"),
        (["--params", "BEST"], "go with --alg NAME"),
        (["--alg", "openmax", "--params", "BEST", "--set", "alpha=3"], "not with --scores, --set or --out"),
        (["--alg", "openmax", "--params", "BEST", "--scores", "demo"], "not with --scores, --set or --out"),
    ],
)
def test_wrong_use(
    here: tuple[Path, Path, Search], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    runs, features, search = here
    given = [str(search.folder / "best.yaml") if part == "BEST" else part for part in arguments]
    if "--scores" not in given:
        given += ["--features", str(features)]
    code, out, err = evaluate(capsys, *given, "--runs", str(runs))
    assert code == 2
    assert message in err
    assert out == ""


def test_export_merges_searches(
    here: tuple[Path, Path, Search], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    runs, features, _ = here
    tuned(runs, features, ("tail_size=7", "alpha=2"))
    for name, options, rows in (("all.csv", [], 8 + 4), ("best.parquet", ["--best"], 2)):
        with pytest.raises(SystemExit) as caught:
            main(["export", "--trials", "--runs", str(runs), "--out", str(tmp_path / name), *options])
        assert not caught.value.code
        read = pd.read_csv if name.endswith("csv") else pd.read_parquet
        assert len(read(tmp_path / name)) == rows
    for arguments in (
        ["--trials", "--out", "x.txt"],
        ["--trials", "--per-sample", "--out", "x.csv"],
        ["--out", "x.csv"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["export", "--runs", str(runs), *arguments])
        assert caught.value.code == 2
        assert not Path("x.csv").exists()
    capsys.readouterr()
