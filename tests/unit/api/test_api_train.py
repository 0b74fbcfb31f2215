"""``train`` and ``extract`` as functions: from small images, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_images import write_split

from oscbench import extract, load_features, open_session, train
from oscbench.api.extract import ExtractResult
from oscbench.api.train import TrainResult
from oscbench.errors import UsageError
from oscbench.protocols.base import make_protocol, write_protocol

Printed = Callable[..., Any]

TRAIN: dict[str, Any] = {"network": "tiny", "epochs": 1, "batch_size": 8, "randaugment": (1, 5)}


@pytest.fixture
def where(tmp_path: Path) -> dict[str, Any]:
    """Data, protocol and runs folder of every call."""
    write_split(tmp_path / "images", "train", [0, 1, 2, -1] * 8)
    write_split(tmp_path / "images", "val", [0, 1, 2, -1, -2] * 3)
    roles = {"known": {"c0": "a", "c1": "b", "c2": "c"}, "negative": {"c-1": "d"}, "unknown": {"c-2": "e"}}
    write_protocol(tmp_path / "small.yaml", make_protocol("small", roles, "test"))
    folders = {"data": tmp_path / "images", "runs": tmp_path / "runs"}
    return {"protocol": tmp_path / "small.yaml", **folders, "loader": "pil"}


def options(given: dict[str, Any]) -> list[object]:
    """The same as a command line writes it."""
    texts = {name: ",".join(map(str, v)) if isinstance(v, tuple | list) else v for name, v in given.items()}
    return [part for name, value in texts.items() for part in (f"--{name.replace('_', '-')}", value)]


def test_networks_and_features_are_those_of_the_commands(where: dict[str, Any], printed: Printed) -> None:
    losses = ["softmax", "eos"]
    with open_session(local=True) as session:
        trained = train(**where, loss=losses, **TRAIN, session=session)
        extracted = extract(**where, loss=losses, session=session)
    assert isinstance(trained, TrainResult)
    assert printed("train", *options({**where, "loss": losses, **TRAIN}), "--local") == trained.reports
    assert trained.table["loss"].tolist() == losses
    assert trained.table["epochs"].tolist() == [1, 1]
    assert trained.epochs[["loss", "seed", "epoch"]].values.tolist() == [[name, 0, 1] for name in losses]
    assert trained.table["val_accuracy"].tolist() == trained.epochs["val_accuracy"].round(4).tolist()
    assert [pd.read_csv(folder / "epochs.csv")["gamma"].tolist() for folder in trained.folders] == [
        part["gamma"].tolist() for _, part in trained.epochs.groupby("loss", sort=False)
    ]

    assert isinstance(extracted, ExtractResult)
    assert printed("extract", *options({**where, "loss": losses}), "--local") == extracted.reports
    assert extracted.table[["loss", "train", "n_train", "n_val", "n_test"]].values.tolist() == [
        ["softmax", trained.reports[0]["train"], 25, 7, 15],
        ["eos", trained.reports[1]["train"], 25, 7, 15],
    ]
    loaded = extracted.load()
    assert list(loaded) == losses
    for folder, sets in zip(extracted.folders, loaded.values(), strict=True):
        for split, rows in load_features(folder).items():
            assert rows.content_fingerprint() == sets[split].content_fingerprint()

    made = [folder / "meta.json" for folder in trained.folders]
    before = [path.stat().st_mtime_ns for path in made]
    assert train(**where, loss=losses, **TRAIN, local=True).folders == trained.folders
    assert [path.stat().st_mtime_ns for path in made] == before
    train(**where, loss="eos", **TRAIN, local=True, resume=False)
    assert [path.stat().st_mtime_ns == old for path, old in zip(made, before, strict=True)] == [True, False]


@pytest.mark.parametrize("verb", [train, extract])
def test_a_dry_run_plans_and_makes_nothing(verb: Callable[..., Any], where: dict[str, Any], printed: Printed) -> None:
    found = verb(**where, loss="all", local=True, dry_run=True)
    steps = printed(verb.__name__, *options(where), "--loss", "all", "--local", "--dry-run")
    assert [(step.stage.name, step.stage.fingerprint) for step in found.plan] == [
        (step["stage"], step["fingerprint"]) for step in steps
    ]
    assert (found.reports, found.folders) == ([], [])
    assert found.table.empty
    assert not Path(where["runs"]).exists()


@pytest.mark.parametrize(
    ("verb", "wrong", "message"),
    [
        (train, {"loss": "eoss"}, "did you mean 'eos'"),
        (train, {"loss_params": {"negative_weigth": 2}, "loss": "eos"}, "did you mean 'negative_weight'"),
        (train, {"loss_params": ["negative_weight"], "loss": "eos"}, "'negative_weight' is not NAME=NUMBER"),
        (train, {"runs": "s3://bucket/runs"}, "is an address, not a folder"),
        (train, {"address": "127.0.0.1:1"}, "give one of them"),
        (extract, {"checkpoint": "x.pth", "loss": ["softmax", "eos"]}, "--checkpoint is one network"),
        (extract, {"network": "tiny"}, "--network belongs to --checkpoint"),
    ],
)
def test_wrong_use(verb: Callable[..., Any], wrong: dict[str, Any], message: str, where: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        verb(**where | wrong, local=True, dry_run=True)


def test_parameters_of_a_loss_are_numbers_or_texts(where: dict[str, Any]) -> None:
    how: dict[str, Any] = {"loss": "eos", "local": True, "dry_run": True}
    plans = [
        train(**where, **how, loss_params=given).plan[-1]
        for given in ({"negative_weight": 0.5}, ["negative_weight=0.5"], ())
    ]
    marks = [step.stage.fingerprint for step in plans]
    assert marks[0] == marks[1] != marks[2]
