"""The trial table: exact round trips, damage, torn lines at every byte, best.yaml."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oscbench.errors import OscbenchError, UsageError
from oscbench.tuning.trials import (
    COLUMNS,
    Best,
    TrialJournal,
    as_table,
    best_of,
    drop_torn_line,
    ranked,
    read_trials,
    trial_id,
    write_parquet,
)


def row(number: int, **changes: Any) -> dict[str, Any]:
    setting = {"tail_size": number, "distance_multiplier": 0.1 * number}
    base = {
        "run_id": "0123abcd",
        "trial_id": trial_id(setting),
        "status": "done",
        "data": "demo-1",
        "protocol": "p1",
        "training": "eos",
        "algorithm": "evm",
        "seed": 0,
        "network": "tiny",
        "recipe": "demo",
        "train": "",
        **setting,
        "cover_threshold": 1.0,
        "ccr_1e-3": math.nan,
        "ccr_1e-2": number / 7,
        "ccr_1e-1": number / 5,
        "ccr_1": number / 3,
        "sum": number / 7 + number / 5 + number / 3,
        "n_known": 100,
        "n_negative": 50,
        "ccr_rule": "inclusive",
        "score_kind": "log",
        "search": "grid",
        "seconds": 0.25,
        "finished_at": "2026-11-17T00:00:00+00:00",
        "features": "00ff00ff00ff00ff",
        "error": None,
    }
    return base | changes


def fill(path: Path, count: int = 4) -> list[dict[str, Any]]:
    rows = [row(number) for number in range(1, count + 1)]
    with TrialJournal(path) as journal:
        for one in rows:
            journal.append(one)
    return rows


def test_journal_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    rows = fill(path)
    table = read_trials(path)
    assert list(table.columns) == list(COLUMNS)
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == COLUMNS
    for name in ("ccr_1e-2", "sum", "distance_multiplier"):
        assert table[name].tolist() == [one[name] for one in rows]
    assert table["ccr_1e-3"].isna().all()
    assert table["alpha"].isna().all()
    assert table["tail_size"].tolist() == [1, 2, 3, 4]


def test_pandas_reads_the_files_without_help(tmp_path: Path) -> None:
    rows = fill(tmp_path / "trials.csv")
    write_parquet(tmp_path / "trials.parquet", read_trials(tmp_path / "trials.csv"))
    plain = pd.read_csv(tmp_path / "trials.csv")
    assert plain["tail_size"].tolist() == [1, 2, 3, 4]
    assert plain["sum"].tolist() == pytest.approx([one["sum"] for one in rows], abs=1e-15)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "trials.parquet"), read_trials(tmp_path / "trials.csv"))
    pd.testing.assert_frame_equal(read_trials(tmp_path / "trials.parquet"), read_trials(tmp_path / "trials.csv"))


def test_a_line_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    journal = TrialJournal(tmp_path / "trials.csv")
    journal.append(row(1))
    assert len(read_trials(tmp_path / "trials.csv")) == 1  # the writer is still open
    journal.append(row(2))
    assert len(read_trials(tmp_path / "trials.csv")) == 2
    journal.close()


def test_torn_at_every_byte_keeps_the_whole_lines_and_goes_on(tmp_path: Path) -> None:
    whole = tmp_path / "whole.csv"
    rows = fill(whole, 2)
    content = whole.read_bytes()
    header = content.index(b"\n") + 1
    first = content.index(b"\n", header) + 1
    for cut in (header, header + 1, *range(first - 1, len(content) + 1)):
        path = tmp_path / "trials.csv"
        path.write_bytes(content[:cut])
        lines = content[:cut].count(b"\n") - 1
        assert len(read_trials(path)) == lines
        with TrialJournal(path) as journal:
            assert journal.finished() == {one["trial_id"] for one in rows[:lines]}
            for one in rows[lines:]:
                journal.append(one)
        assert path.read_bytes() == content
    path.write_bytes(content[: header - 1])  # the header is written whole, so this is no crash of ours
    with pytest.raises(OscbenchError, match="no header"):
        read_trials(path)


def test_drop_torn_line_says_whether(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo")
    assert drop_torn_line(path)
    assert path.read_bytes() == b"one\n"
    assert not drop_torn_line(path)


def test_failed_trials_are_due_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    with TrialJournal(path) as journal:
        journal.append(row(1))
        journal.append(row(2, status="failed", error="boom,\nwith a line break", sum=None))
    assert read_trials(path)["error"].tolist() == ["", "boom, with a line break"]
    with TrialJournal(path) as journal:
        assert journal.finished() == {row(1)["trial_id"]}
        journal.append(row(2))
    assert read_trials(path)["status"].tolist() == ["done", "done"]


def test_the_same_trial_twice_is_refused(tmp_path: Path) -> None:
    with TrialJournal(tmp_path / "trials.csv") as journal:
        journal.append(row(1))
        with pytest.raises(ValueError, match="already"):
            journal.append(row(1))


def test_extra_columns_of_a_new_method(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    with TrialJournal(path, ["temperature", "mode", "flag"]) as journal:
        journal.append(row(1, temperature=0.1 + 0.2, mode="hot", flag=False))
        with pytest.raises(ValueError, match="no column 'speed'"):
            journal.append(row(2, speed=3))
    table = read_trials(path)
    assert table["temperature"].tolist() == [0.1 + 0.2]
    assert table["mode"].tolist() == ["hot"]
    assert table["flag"].tolist() == [False]
    with TrialJournal(path, ["temperature", "mode", "flag"]) as journal:  # what was read is what was written
        pd.testing.assert_frame_equal(journal.table(), table)
    with pytest.raises(UsageError, match="columns of another search"):
        TrialJournal(path)


def test_values_of_extra_columns_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    values = {"whole": [1, 2], "real": [1.5, 2.0], "flag": [True, False], "mode": ["hot", "true"], "mixed": ["a", 7]}
    with TrialJournal(path, list(values)) as journal:
        for i in range(2):
            journal.append(row(i + 1, **{name: pair[i] for name, pair in values.items()}))
    table = read_trials(path)
    for name, pair in values.items():
        assert [(type(value), value) for value in table[name].tolist()] == [(type(value), value) for value in pair]


@pytest.mark.parametrize("text", ["nan", "NA", "None", "null", "1e5", "True", '"quoted", twice', "a;b\tc", "#", " x "])
def test_text_cells_stay_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trials.csv"
    with TrialJournal(path) as journal:
        journal.append(row(1, status="failed", error=text, data=text, network=text))
        journal.append(row(2))
    table = read_trials(path)
    assert table["error"].tolist() == [text, ""]
    assert (table["data"][0], table["network"][0]) == (text, text)


def damage(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("run_id,trial_id", "run_id,trial", "lacks trial_id"),
        ("run_id,trial_id", "trial_id,run_id", "columns in another order"),
        (",done,", ",doing,", "row 1 has status 'doing'"),
        (",done,demo-1", ",done,demo-1,x", "line 2: 31 cells, the header has 30"),
        (",done,demo-1,p1", ",done,demo-1", "line 2: 29 cells, the header has 30"),
        (",evm,0,tiny,demo,,1,", ",evm,zero,tiny,demo,,1,", "line 2: .*zero"),
        (",evm,0,tiny,demo,,3,", ",evm,,tiny,demo,,3,", "line 4: "),
        (",evm,0,tiny,demo,,4,", ",evm,0,tiny,demo,,4.5,", "line 5: "),
        (",evm,0,tiny,demo,,2,0.2,", ",evm,0,tiny,demo,,1,0.1,", "row 2 repeats the setting"),
        (",inclusive,", ',"inclusive,', "line 2: unexpected end of data"),
    ],
)
def test_damage_names_the_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "trials.csv"
    fill(path)
    assert old in path.read_text()
    damage(path, old, new)
    with pytest.raises(OscbenchError, match=message) as caught:
        read_trials(path)
    assert str(path) in str(caught.value)


def test_damaged_parquet_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "trials.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(OscbenchError, match="is damaged"):
        read_trials(tmp_path / "trials.parquet")
    with pytest.raises(UsageError, match="does not exist"):
        read_trials(tmp_path / "none.csv")


def test_an_older_schema_is_refused_by_the_writer_too(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("run_id,status\nx,done\n")
    with pytest.raises(UsageError, match="written by another version; choose another --runs folder"):
        TrialJournal(path)


def test_an_older_parquet_file_is_of_another_version_not_damaged(tmp_path: Path) -> None:
    fill(tmp_path / "trials.csv")
    table = read_trials(tmp_path / "trials.csv")
    write_parquet(tmp_path / "trials.parquet", table.drop(columns=["network", "recipe", "train"]))
    with pytest.raises(UsageError, match="lacks network, recipe, train: written by another version"):
        read_trials(tmp_path / "trials.parquet")
    write_parquet(tmp_path / "trials.parquet", table.assign(seed="zero"))
    with pytest.raises(OscbenchError, match=r"trials\.parquet is damaged .*zero"):
        read_trials(tmp_path / "trials.parquet")


def test_a_full_disk_is_one_clear_line() -> None:
    if not os.path.exists("/dev/full"):
        pytest.fail("this system has no /dev/full")
    journal = TrialJournal.__new__(TrialJournal)
    journal.path, journal.columns, journal._rows = Path("trials.csv"), tuple(COLUMNS), []
    full_disk = pytest.raises(OscbenchError, match="cannot write trials.csv: No space left")
    with Path("/dev/full").open("ab", buffering=0) as journal._file, full_disk:
        journal.append(row(1))
    assert journal.rows == []


def test_ranking_is_by_sum_then_rates_then_setting_never_by_order() -> None:
    rows = [row(1, sum=1.0), row(2, sum=2.0), row(3, sum=2.0, **{"ccr_1e-3": 0.5}), row(4, sum=9.0, status="failed")]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        assert ranked(as_table(rows[i] for i in order))["tail_size"].tolist() == [3, 2, 1]
    ties = [
        row(5, sum=1.0, **{"ccr_1e-2": 0, "ccr_1e-1": 0, "ccr_1": 0}),
        row(2, sum=1.0, **{"ccr_1e-2": 0, "ccr_1e-1": 0, "ccr_1": 0}),
    ]
    assert ranked(as_table(ties))["tail_size"].tolist() == [2, 5]


def test_equal_sums_are_decided_by_the_smallest_rate_at_which_they_differ() -> None:
    """Each winner is worse at every later rate, and its setting comes last."""
    names = ["ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"]
    for decisive in range(len(names)):
        equal = dict.fromkeys(names[:decisive], 0.5)
        better = equal | {names[decisive]: 0.4} | dict.fromkeys(names[decisive + 1 :], 0.1)
        worse = equal | {names[decisive]: 0.3} | dict.fromkeys(names[decisive + 1 :], 0.9)
        missing = worse | {names[decisive]: math.nan}  # a rate that cannot be reached is the worst of all
        rows = [row(1, sum=1.0, **missing), row(2, sum=1.0, **worse), row(3, sum=1.0, **better)]
        for order in ([0, 1, 2], [2, 1, 0]):
            table = as_table(rows[i] for i in order)
            assert ranked(table)["tail_size"].tolist() == [3, 2, 1], names[decisive]
            assert best_of(table, ["tail_size"]).params == {"tail_size": 3}


def test_equal_rates_are_decided_by_the_setting_in_the_order_of_its_columns() -> None:
    rates = {"sum": 1.0, "ccr_1e-2": 0.1, "ccr_1e-1": 0.2, "ccr_1": 0.7}
    settings = [(5, 0.2, "a"), (5, 0.1, "b"), (2, 0.9, "z"), (5, 0.1, "a")]
    columns = (*COLUMNS, "mode")
    rows = [row(1, **rates, tail_size=t, distance_multiplier=m, mode=mode) for t, m, mode in settings]
    for turn in range(len(rows)):
        found = ranked(as_table(rows[turn:] + rows[:turn], columns))
        assert list(zip(found["tail_size"], found["distance_multiplier"], found["mode"], strict=True)) == sorted(
            settings
        )


def test_a_line_is_synced_after_it_is_written_and_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trials.csv"
    journal = TrialJournal(path)
    synced: list[tuple[str, bytes]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    for number in (1, 2):
        journal.append(row(number))
        assert synced[-1:] == [(str(path), path.read_bytes())]  # all of it was there when it was synced
        assert len(synced) == number
    journal.close()


def test_best_yaml_round_trip(tmp_path: Path) -> None:
    best = best_of(as_table([row(1), row(3), row(2)]), ["tail_size", "distance_multiplier", "cover_threshold"])
    assert best.params == {"tail_size": 3, "distance_multiplier": 0.1 * 3, "cover_threshold": 1.0}
    assert best.ccr["ccr_1e-3"] is None
    assert (best.network, best.recipe, best.train, best.search) == ("tiny", "demo", "", "grid")
    assert best.complete
    unfinished = best_of(as_table([row(1)]), ["tail_size"], complete=False)
    for one in (best, unfinished):
        one.write(tmp_path / "best.yaml")
        assert Best.read(tmp_path / "best.yaml") == one
    assert not unfinished.complete


@pytest.mark.parametrize("text", ["[1]", "a: [", "data: demo\n"])
def test_bad_best_yaml(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"best\.yaml"):
        Best.read(tmp_path / "best.yaml")


def test_no_finished_trial() -> None:
    with pytest.raises(OscbenchError, match="no trial finished"):
        best_of(as_table([row(1, status="failed")]), ["tail_size"])


texts = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20).map(str.strip)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    tail=st.integers(1, 10**9),
    error=texts,
    data=texts,
)
def test_any_value_survives_csv_and_parquet(tmp_path: Path, value: float, tail: int, error: str, data: str) -> None:
    path = tmp_path / "trials.csv"
    path.unlink(missing_ok=True)
    with TrialJournal(path) as journal:
        journal.append(row(1, sum=value, tail_size=tail, error=error, data=data))
    table = read_trials(path)
    error, data = " ".join(error.splitlines()), " ".join(data.splitlines())
    assert (table["sum"][0], table["tail_size"][0], table["error"][0], table["data"][0]) == (value, tail, error, data)
    write_parquet(tmp_path / "trials.parquet", table)
    pd.testing.assert_frame_equal(read_trials(tmp_path / "trials.parquet"), table)
