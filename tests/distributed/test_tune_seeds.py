"""``oscbench tune --seeds 0,1`` from images to the table: every stage that depends on a seed is run for each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from small_images import SIDE, small_labels, write_split

from oscbench.cli import main
from oscbench.distributed.runner import open_ray
from oscbench.protocols.base import make_protocol, write_protocol
from oscbench.stages.runner import Session
from oscbench.stages.samples import Samples
from oscbench.stages.stage import ensure
from oscbench.stages.training import TrainingOptions, default_config, training_of
from oscbench.stages.workspace import open_workspace
from oscbench.tuning.trials import RATES

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

SETTING = ["tail_size", "distance_multiplier"]


def train(runs: Path, images: Path, protocol: Path, seed: int) -> None:
    """A small training instead of ResNet-50 for 120 epochs; as the one in use it is what ``tune`` takes."""
    workspace = open_workspace(runs=runs, data=str(images), protocol=str(protocol))
    config = default_config(workspace, loss="softmax", seed=seed)
    recipe = dataclasses.replace(config.recipe, epochs=15, batch_size=16)
    config = dataclasses.replace(config, network="tiny", stored_side=SIDE, crop=28, recipe=recipe)
    with Session(open_ray) as session:
        ensure([training_of(workspace, Samples.of(workspace), config, TrainingOptions(loader="pil"))], session)


def test_mean_and_std_are_those_of_the_tables_of_each_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_split(tmp_path / "images", "train", small_labels(4, 25, 40))
    write_split(tmp_path / "images", "val", [0, 1, 2, 3, -1, -2] * 2)
    roles = {
        "known": {f"c{label}": f"known {label}" for label in range(4)},
        "negative": {"c-1": "negative"},
        "unknown": {"c-2": "unknown"},
    }
    write_protocol(tmp_path / "small.yaml", make_protocol("small", roles, "test"))
    for seed in (0, 1):
        train(tmp_path / "runs", tmp_path / "images", tmp_path / "small.yaml", seed)
    where = ["--protocol", str(tmp_path / "small.yaml"), "--data", str(tmp_path / "images"), "--loader", "pil"]
    space = ["--set", "tail_size=5,20", "--set", "distance_multiplier=0.2,0.7"]
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--alg", "evm", *where, "--runs", str(tmp_path / "runs"), "--seeds", "0,1", *space, "--json"])
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    document = json.loads(out)

    below = tmp_path / "runs" / "images" / "small" / "softmax"
    tables = [pd.read_csv(path) for path in sorted(below.glob("s*/evm/tune/trials.csv"))]
    assert [sorted(set(table["seed"])) for table in tables] == [[0], [1]]
    assert [len(table) for table in tables] == [4, 4]
    assert tables[0]["features"][0] != tables[1]["features"][0]  # two trainings, not one used twice

    (spread,) = document["over_seeds"]
    assert spread["seeds"] == [0, 1]
    means = pd.concat(tables).groupby(SETTING)["sum"].mean()
    chosen = tuple(spread["params"][name] for name in SETTING)
    assert means[chosen] == pytest.approx(means.max(), abs=1e-12)
    first, second = (table.set_index(SETTING).loc[chosen] for table in tables)
    assert any(first[name] != second[name] for name in RATES)
    for name in RATES:
        mean, deviation = spread[name]["mean"], spread[name]["std"]
        if pd.isna(first[name]) or pd.isna(second[name]):
            assert mean is deviation is None
            continue
        assert mean == pytest.approx((first[name] + second[name]) / 2, abs=1e-12)
        assert deviation == pytest.approx(abs(first[name] - second[name]) / 2**0.5, abs=1e-12)
