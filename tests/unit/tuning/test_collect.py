"""All searches below a runs folder as one table of their trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oscbench.errors import UsageError
from oscbench.tuning.collect import best_trials, collect_trials
from oscbench.tuning.trials import COLUMNS, TrialJournal, read_trials, trial_id


def write_search(
    folder: Path, sums: list[float], *, algorithm: str = "openmax", extra: dict[str, Any] | None = None
) -> None:
    """The journal of a search of which so many trials are finished."""
    with TrialJournal(folder / "trials.csv", list(extra or {})) as journal:
        for number, reached in enumerate(sums):
            setting = {"tail_size": number + 1} | (extra or {})
            journal.append(
                {
                    "run_id": folder.name.removeprefix("tune-"),
                    "trial_id": trial_id(setting),
                    "status": "done",
                    "data": folder.parts[-3],
                    "protocol": folder.parts[-2],
                    "training": "softmax",
                    "algorithm": algorithm,
                    "seed": 0,
                    **setting,
                    "sum": reached,
                    "n_known": 10,
                    "n_negative": 5,
                }
            )


def test_searches_merge_into_one_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no search below"):
        collect_trials(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        collect_trials(tmp_path / "none")
    write_search(tmp_path / "demo-1" / "p1" / "tune-00000001", [1.0, 3.0, 2.0])
    write_search(tmp_path / "demo-1" / "p2" / "tune-00000002", [0.5], algorithm="mls")
    write_search(tmp_path / "own" / "p1" / "tune-00000003", [4.0, 5.0], extra={"mode": "hot", "steps": 3})
    write_search(tmp_path / "own" / "p1" / "scores-00000004", [9.0])
    (tmp_path / "own" / "p1" / "softmax" / "s0").mkdir(parents=True)
    (tmp_path / "own" / "p1" / "softmax" / "s0" / "tune").symlink_to("../../tune-00000003")  # no search of its own
    table = collect_trials(tmp_path)
    assert table["run_id"].tolist() == ["00000001"] * 3 + ["00000002"] + ["00000003"] * 2
    assert {name: str(dtype) for name, dtype in table.dtypes.items() if name in COLUMNS} == COLUMNS
    assert table["mode"].isna().tolist() == [True] * 4 + [False] * 2
    best = best_trials(table)
    assert dict(zip(best["run_id"], best["sum"], strict=True)) == {"00000001": 3.0, "00000002": 0.5, "00000003": 5.0}
    table.to_csv(tmp_path / "all.csv", index=False)
    assert len(read_trials(tmp_path / "all.csv")) == 6


def test_searches_of_an_earlier_version_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "p1" / "softmax" / "s0" / "evm" / "tune-1a2b3c4d"
    folder.mkdir(parents=True)
    (folder / "trials.csv").touch()
    with pytest.raises(UsageError, match=r"tune-1a2b3c4d/trials.csv was written by an earlier version; search"):
        collect_trials(tmp_path)


def test_what_was_set_aside_is_not_exported(tmp_path: Path) -> None:
    write_search(tmp_path / "own" / "p1" / "tune-00000001", [1.0, 3.0])
    write_search(tmp_path / "own" / "p1" / "aside" / "tune-00000001-20260101-000000-abcd", [9.0])
    assert collect_trials(tmp_path)["sum"].tolist() == [1.0, 3.0]
