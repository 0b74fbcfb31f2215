"""``tune`` as a function: the reports of the command, and trials as a data frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oscbench import tune
from oscbench.api.tune import TuneResult
from oscbench.errors import UsageError

Printed = Callable[..., Any]

FEW = {"tail_size": [5, 20], "distance_multiplier": [1.5], "alpha": [2, 3]}


def test_the_command_says_the_same(features: Path, tmp_path: Path, printed: Printed) -> None:
    found = tune("openmax", features=features, settings=FEW, runs=tmp_path / "runs", local=True)
    assert isinstance(found, TuneResult)
    sets = [f"{name}={','.join(map(str, values))}" for name, values in FEW.items()]
    where = ("--features", features, "--runs", tmp_path / "elsewhere", "--local")
    document = printed("tune", "--alg", "openmax", *where, *(part for text in sets for part in ("--set", text)))
    (report,) = found.reports
    (search,), (other,) = report["searches"], document["searches"]
    assert search["params"] == other["params"]
    assert search["sum"] == other["sum"] == found.best["sum"].item() == found.trials["sum"].max()
    assert len(found.trials) == other["trials"] == 4
    assert sorted(found.trials["alpha"]) == [2, 2, 3, 3]
    again = tune("openmax", features=features, settings=sets, runs=tmp_path / "elsewhere", local=True)
    assert again.folders == [Path(other["folder"])]  # texts and values mean the same search
    assert not again.left_out


def test_several_algorithms_give_a_table_of_all(features: Path, tmp_path: Path) -> None:
    found = tune(["mss", "mls"], features=features, runs=tmp_path / "runs", local=True)
    assert found.several
    assert found.best["algorithm"].tolist() == ["mss", "mls"]
    assert [folder.is_dir() for folder in found.folders] == [True, True]


def test_a_file_may_be_named_by_its_text(features: Path, tmp_path: Path) -> None:
    space = tmp_path / "few.yaml"
    space.write_text("algorithm: openmax\ngrid:\n  tail_size: [5]\n  distance_multiplier: [1.5]\n  alpha: [2, 3]\n")
    how: Any = {"features": str(features), "runs": str(tmp_path / "runs"), "local": True}
    assert len(tune("openmax", space=str(space), **how).trials) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alg": "opnmax"}, "did you mean 'openmax'"),
        ({"alg": ["mss", "openmax"], "settings": FEW}, "goes with one algorithm"),
        ({"settings": {"tail": [5]}}, "tail"),
        ({"runs": "s3://bucket/runs"}, "is an address, not a folder"),
    ],
)
def test_wrong_use(wrong: dict[str, Any], message: str, features: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"alg": "openmax", "features": features, "runs": tmp_path / "runs", "local": True}
    with pytest.raises(UsageError, match=message):
        tune(**given | wrong)
    assert not (tmp_path / "runs").exists()
