"""The trial table: a journal that survives any crash, the parquet file made from it, and ``best.yaml``."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import yaml

from oscbench.artifacts import atomic_file, write_text
from oscbench.errors import OscbenchError, UsageError
from oscbench.records import fingerprint, from_mapping

HYPERPARAMETERS: dict[str, Any] = {
    "tail_size": "Int64",
    "distance_multiplier": "float64",
    "alpha": "Int64",
    "cover_threshold": "float64",
    "dummies": "Int64",
}
"""Columns every table has, blank where a method does not use them; other parameters follow behind the rest."""

KEY = {"data": "str", "protocol": "str", "training": "str", "algorithm": "str", "seed": "int64"}
"""With the hyperparameters, what makes a row unique."""

NETWORK = {"network": "str", "recipe": "str", "train": "str"}
"""Which network the features come from, as far as that is known: its name, recipe and training's fingerprint."""

RATES = {"ccr_1e-3": "float64", "ccr_1e-2": "float64", "ccr_1e-1": "float64", "ccr_1": "float64", "sum": "float64"}

COLUMNS = {
    "run_id": "str",
    "trial_id": "str",
    "status": "str",
    **KEY,
    **NETWORK,
    **HYPERPARAMETERS,
    **RATES,
    "n_known": "int64",
    "n_negative": "int64",
    "ccr_rule": "str",
    "score_kind": "str",
    "search": "str",
    "seconds": "float64",
    "finished_at": "str",
    "features": "str",
    "error": "str",
}
"""The columns of every trial table with their types, in order."""

FINISHED = ("done", "pruned")
"""Status of a trial that need not run again: to its end, or stopped early because others were better by then."""

_TEXT = [name for name, dtype in COLUMNS.items() if dtype == "str"]

Row = Mapping[str, Any]


def trial_id(setting: Mapping[str, Any]) -> str:
    """A name that depends on the setting alone, so that a resumed search gives a trial the same one."""
    return fingerprint("trial", setting, {})[:8]


# --- one line each -----------------------------------------------------------------------------------------------


def format_row(row: Row, columns: Sequence[str]) -> str:
    """One line of the journal; floats are written so that reading gives the very same number back."""
    unknown = [name for name in row if name not in columns]
    if unknown:
        raise ValueError(f"the trial table has no column {unknown[0]!r}")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(row.get(name)) for name in columns])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if hasattr(value, "item"):
        value = value.item()
    # A line break inside a cell would make a record of two lines, and a torn one could not be told from a whole one.
    return repr(value) if isinstance(value, float) else " ".join(str(value).splitlines())


def drop_torn_line(path: Path) -> bool:
    """Cuts off what a killed writer left behind the last line break; says whether there was anything."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return False
    with path.open("rb+") as file:
        file.truncate(whole)
        os.fsync(file.fileno())
    return True


# --- the journal -------------------------------------------------------------------------------------------------


class TrialJournal:
    """Appends a line per finished trial to ``trials.csv``; a trial is finished when its line is there.

    Opening an existing journal drops a torn last line, and failed trials too: they are due again. One writer at a time
    (the caller holds the run folder's lock).
    """

    def __init__(self, path: Path, extra_columns: Iterable[str] = ()) -> None:
        self.path = path
        self.columns = (*COLUMNS, *extra_columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._rows = self._reopen()
        else:
            write_text(path, ",".join(self.columns) + "\n")
            self._rows = []
        self._file = path.open("ab")

    def _reopen(self) -> list[dict[str, Any]]:
        drop_torn_line(self.path)
        table = read_trials(self.path)
        if tuple(table.columns) != self.columns:
            raise UsageError(
                f"{self.path} has the columns of another search ({', '.join(table.columns[len(COLUMNS) :]) or 'none'} "
                "beyond the common ones); choose another --runs folder"
            )
        records = [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
        rows = [row for row in records if row["status"] in FINISHED]
        if len(rows) < len(table):
            lines = "".join(format_row(row, self.columns) for row in rows)
            write_text(self.path, ",".join(self.columns) + "\n" + lines)
        return rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is in the journal, in order of finishing."""
        return list(self._rows)

    def finished(self) -> set[str]:
        """Trial ids that need not run again."""
        return {str(row["trial_id"]) for row in self._rows if row["status"] in FINISHED}

    def append(self, row: Row) -> None:
        """Writes one line, flushed and synced, before anybody is told that the trial is finished."""
        if row["trial_id"] in {known["trial_id"] for known in self._rows}:
            raise ValueError(f"trial {row['trial_id']} is in {self.path} already")
        try:
            self._file.write(format_row(row, self.columns).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OscbenchError(f"cannot write {self.path}: {error.strerror}; free space there and resume") from error
        self._rows.append({name: row.get(name) for name in self.columns})

    def table(self) -> pd.DataFrame:
        """The journal as a typed table."""
        return as_table(self._rows, self.columns)

    def close(self) -> None:
        """Closes the file; every line is on disk already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- reading and checking ----------------------------------------------------------------------------------------


def as_table(rows: Iterable[Row], columns: Sequence[str] = tuple(COLUMNS)) -> pd.DataFrame:
    """Rows as a table with the types of ``COLUMNS``; further columns keep the type pandas finds."""
    table = pd.DataFrame([dict(row) for row in rows], columns=list(columns))
    return _typed(table)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(dict.fromkeys(_TEXT, object)).fillna(dict.fromkeys(_TEXT, "")).astype(COLUMNS)


def read_trials(path: Path) -> pd.DataFrame:
    """Reads and checks ``trials.csv`` or ``trials.parquet``; damage names the file and the line.

    A torn last line, as a killed or still running search leaves it, is left out.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; `oscbench tune` writes it")
    table = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    bad = table.index[~table["status"].isin([*FINISHED, "failed"])]
    if len(bad):
        raise OscbenchError(f"{path} is damaged: row {bad[0] + 1} has status {table['status'][bad[0]]!r}")
    twice = table.index[table.duplicated([*KEY, *hyperparameter_columns(table)])]
    if len(twice):
        raise OscbenchError(f"{path} is damaged: row {twice[0] + 1} repeats the setting of an earlier row")
    return table


def hyperparameter_columns(table: pd.DataFrame) -> list[str]:
    """The common hyperparameters and those a method has appended."""
    return [*HYPERPARAMETERS, *(str(name) for name in table.columns if name not in COLUMNS)]


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    expected = list(COLUMNS)
    if list(columns[: len(expected)]) != expected:
        missing = [name for name in expected if name not in columns]
        reason = f"lacks {', '.join(missing)}" if missing else "has its columns in another order"
        raise UsageError(f"{path} {reason}: written by another version; choose another --runs folder")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
        _check_columns(path, [str(name) for name in table.columns])
        return _typed(table)
    except UsageError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise OscbenchError(f"{path} is damaged ({error}); run the same `oscbench tune` again") from error


_UNREADABLE = (csv.Error, ValueError, TypeError)
"""What damaged lines raise; pandas says some of it by a TypeError."""


def _read_csv(path: Path) -> pd.DataFrame:
    content = path.read_bytes()
    try:
        lines = content[: content.rfind(b"\n") + 1].decode().splitlines()
    except UnicodeDecodeError as error:
        raise OscbenchError(f"{path} is damaged ({error}); move it away and run the search again") from error
    if not lines:
        raise OscbenchError(f"{path} is damaged (no header); move it away and run the search again")
    header, *rows = lines
    _check_columns(path, header.split(","))
    try:
        return _parsed(header, rows)
    except _UNREADABLE as error:
        place = _damaged_line(header, rows) or str(error)
        raise OscbenchError(f"{path} is damaged: {place}; move it away and run the search again") from error


def _damaged_line(header: str, rows: Sequence[str]) -> str | None:
    """The first line that cannot be read on its own, and why; no record has more than one line."""
    for number, row in enumerate(rows, start=2):
        try:
            _parsed(header, [row])
        except _UNREADABLE as error:
            return f"line {number}: {error}"
    return None


def _parsed(header: str, rows: Sequence[str]) -> pd.DataFrame:
    """Lines as a table: the schema's columns of their types, each cell of any other as the number it is, or text."""
    names = header.split(",")
    for cells in csv.reader(rows, strict=True):
        if len(cells) != len(names):  # pandas would fill up a short record, and make an index of a long one
            raise ValueError(f"{len(cells)} cells, the header has {len(names)}")
    return pd.read_csv(
        io.StringIO("\n".join([header, *rows])),
        dtype=COLUMNS,
        converters={name: _number for name in names if name not in COLUMNS},
        keep_default_na=False,  # a text cell may be empty, or say "nan"
        na_values={name: [""] for name in COLUMNS if name not in _TEXT},
    )


def _number(cell: str) -> int | float | str | None:
    if cell in ("", "True", "False"):
        return cell == "True" if cell else None
    for number in (int, float):
        try:
            return number(cell)
        except ValueError:
            continue
    return cell


# --- products ----------------------------------------------------------------------------------------------------


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    """Writes the table whole or not at all."""
    with atomic_file(path) as temporary:
        table.to_parquet(temporary, index=False)


def ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Trials that ran to their end, best first.

    By sum, then by CCR at 1e-3, 1e-2, 1e-1 and 1 in this order, then by setting, the smaller values first. Never by
    time: the same trials give the same ``best.yaml`` however they happened to finish. (Which of them are stopped early,
    where trials train, does depend on who came first.)
    """
    done = table[table["status"] == "done"]
    rates = ["sum", "ccr_1e-3", "ccr_1e-2", "ccr_1e-1", "ccr_1"]
    setting = hyperparameter_columns(table)
    ascending = [False] * len(rates) + [True] * len(setting)
    return done.sort_values([*rates, *setting], ascending=ascending, kind="stable", na_position="last")


@dataclass(frozen=True, kw_only=True)
class Best:
    """What ``best.yaml`` holds: whose best it is, the parameters and what they reach.

    Attributes:
        network: Name of the network, and so on: see ``NETWORK``; empty where the features do not say.
        search: Kind of the search.
        complete: Whether every trial of the search was finished when this was written.
    """

    data: str
    protocol: str
    training: str
    algorithm: str
    seed: int
    network: str = ""
    recipe: str = ""
    train: str = ""
    params: dict[str, Any]
    ccr: dict[str, float | None]
    sum: float
    score_kind: str
    ccr_rule: str
    features: str
    search: str = ""
    complete: bool = True

    def write(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        write_text(path, yaml.safe_dump(vars(self), sort_keys=False))

    @classmethod
    def read(cls, path: Path) -> Best:
        """Reads and checks the file."""
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{path} does not exist; `oscbench tune` writes it when it finishes") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(raw, dict):
            raise UsageError(f"{path} holds no best setting; `oscbench tune` writes such a file")
        return from_mapping(cls, raw, str(path))


def best_of(table: pd.DataFrame, params: Sequence[str], *, complete: bool = True) -> Best:
    """The best finished trial of one search.

    Args:
        table: Trials of one search.
        params: Names of the algorithm's hyperparameters.
        complete: Whether these are all its trials.
    """
    first = ranked(table)
    if first.empty:
        raise OscbenchError("no trial finished; see the column 'error' of trials.csv")
    row = {name: plain_value(value) for name, value in first.iloc[0].items()}
    return Best(
        **{name: row[name] for name in (*KEY, *NETWORK)},
        params={name: row[name] for name in params},
        ccr={name: row[name] for name in RATES if name != "sum"},
        sum=row["sum"],
        score_kind=row["score_kind"],
        ccr_rule=row["ccr_rule"],
        features=row["features"],
        search=row["search"],
        complete=complete,
    )


def plain_value(value: Any) -> Any:
    """A plain Python value; blanks become ``None``."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if hasattr(value, "item") else value
