"""``oscbench evaluate`` with the settings that searches have found, here or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from feature_factory import write_feature_folder
from search_factory import Unwatched

from oscbench.cli import main
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.scores import ScoreSet
from oscbench.stages.features import FeatureRequest, requested_features
from oscbench.stages.runner import Session
from oscbench.stages.search import Tune
from oscbench.stages.stage import ensure
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import Best


def tuned(runs: Path, features: Path, overrides: tuple[str, ...], **options: Any) -> Tune:
    """A finished search on a feature folder."""
    (source,) = requested_features(FeatureRequest(runs=runs, features=features))
    space = load_space("openmax", POSTPROCESSORS.info("openmax").params, overrides=overrides)
    search = Tune.of(source, "openmax", space, Unwatched(), **options)
    ensure([search], Session())
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
def here(tmp_path: Path) -> tuple[Path, Path, Tune]:
    features = write_feature_folder(tmp_path / "here")
    return tmp_path / "runs", features, tuned(tmp_path / "runs", features, GRID)


def test_a_setting_from_elsewhere_beside_the_one_found_here(
    here: tuple[Path, Path, Tune], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert best.sum == pytest.approx(validation["negative"]["sum"]["value"], abs=1e-9)
    folders = sorted((runs / search.room.data / "own").glob("scores-*"))
    assert len(folders) == 2
    for folder in folders:
        for split in ("val", "test"):
            assert ScoreSet.load(folder / split).info is not None


def test_the_setting_found_here_is_the_default_and_scores_are_kept(
    here: tuple[Path, Path, Tune], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, features, search = here
    params = str(search.folder / "best.yaml")
    arguments = ["--features", str(features), "--alg", "openmax", "--runs", str(runs), "--params", params]
    (first,) = document(capsys, *arguments)
    (second,) = document(capsys, *arguments)
    assert first == second
    code, out, err = evaluate(capsys, *arguments)
    assert code == 0, err
    assert "\nCCR rule inclusive, weights by" in out  # the table's rule belongs to the table, not to the log
    assert not set(filter(None, out.splitlines())) & set(err.splitlines())
    assert len(list(search.room.root.glob("scores-*"))) == 1


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
    here: tuple[Path, Path, Tune], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
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
    here: tuple[Path, Path, Tune], tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
