"""Search spaces: the published grids, everything wrong reported together, --set, edges."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oscbench.errors import UsageError
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.tuning.space import SearchSpace, complete_setting, edge_warnings, load_space, parse_space

PUBLISHED = {
    "openmax": {
        "tail_size": (10, 100, 250, 500, 750, 1000),
        "distance_multiplier": (1.5, 1.7, 2.0, 2.3),
        "alpha": (2, 3, 5, 10),
    },
    "evm": {
        "tail_size": (10, 25, 50, 75, 100, 150, 200, 300, 500, 1000),
        "distance_multiplier": (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0),
        "cover_threshold": (1.0,),
    },
    "proser": {"dummies": (1, 2, 5, 10, 25, 100)},
}


@dataclass(frozen=True, kw_only=True)
class Params:
    tail_size: int = 10
    distance_multiplier: float = 0.5
    mode: str = "plain"

    def __post_init__(self) -> None:
        if self.tail_size < 1:
            raise ValueError(f"tail_size must be at least 1, got {self.tail_size}")


def shipped() -> list[str]:
    folder = resources.files("oscbench") / "search_spaces"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def record_of(algorithm: str) -> type | None:
    return POSTPROCESSORS.info(algorithm).params if algorithm in POSTPROCESSORS.names() else None


@pytest.mark.parametrize("algorithm", shipped())
def test_every_shipped_space_is_valid_and_has_a_grid_and_ranges(algorithm: str) -> None:
    space = load_space(algorithm, record_of(algorithm))
    assert len(space.settings()) >= 1
    assert set(space.ranges) >= set(space.grid)


@pytest.mark.parametrize("algorithm", sorted(PUBLISHED))
def test_published_grids(algorithm: str) -> None:
    space = load_space(algorithm, record_of(algorithm))
    assert space.grid == PUBLISHED[algorithm]
    expected = [dict(zip(space.grid, p, strict=True)) for p in itertools.product(*PUBLISHED[algorithm].values())]
    assert space.settings() == expected


@pytest.mark.parametrize(("algorithm", "count"), [("openmax", 96), ("evm", 80), ("proser", 6)])
def test_number_of_published_settings(algorithm: str, count: int) -> None:
    assert len(load_space(algorithm, record_of(algorithm)).settings()) == count


@pytest.mark.parametrize("algorithm", sorted(PUBLISHED))
def test_ranges_are_wider_than_the_grid(algorithm: str) -> None:
    space = load_space(algorithm, record_of(algorithm))
    for name, values in space.grid.items():
        if len(values) > 1:
            low, high = space.ranges[name].probes()
            assert low <= min(values)
            assert high > max(values)


def test_a_method_without_hyperparameters_has_one_empty_setting() -> None:
    assert load_space("mss", record_of("mss")).settings() == [{}]


def test_all_problems_are_reported_together_with_file_and_key() -> None:
    text = """
algorithm: evn
grids: {}
grid:
  tail_sise: [1]
  tail_size: [5, 0, many]
  distance_multiplier: []
ranges:
  tail_size: {type: int, low: 10, high: 2}
  distance_multiplier: {type: float, low: 0, high: 1, log: true, step: 3}
"""
    with pytest.raises(UsageError) as caught:
        parse_space(text, "my.yaml", "evm", Params)
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert "\n" not in message
    for part in (
        "'grids', did you mean 'grid'?",
        "algorithm: is 'evn', wanted 'evm'",
        "grid.tail_sise: unknown hyperparameter, did you mean 'tail_size'?",
        "grid.tail_size: tail_size must be at least 1, got 0",
        "grid.tail_size: tail_size: expected int, got 'many'",
        "grid.distance_multiplier: is empty",
        "ranges.tail_size: low must be below high, got 10 and 2",
        "ranges.distance_multiplier: unknown key 'step'",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[1, 2]", "expected a mapping"),
        ("grid: {tail_size: [1", "is not YAML"),
        ("algorithm: a\ngrid: [1]", "grid: expected a mapping"),
        ("algorithm: a\ngrid: {tail_size: 3}", "grid.tail_size: expected a list of values, got 3"),
        ("algorithm: a\ngrid: {tail_size: [3, 3]}", "occurs twice"),
        ("algorithm: a\ngrid: {tail_size: [true]}", "expected int, got True"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: 3}", "ranges.tail_size: expected a mapping"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: {type: choice}}", "a choice needs values"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: {type: int, low: 1.5, high: 3}}", "whole numbers"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: {type: int, low: 0, high: 3, log: true}}", "low above 0"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: {type: int, low: -4, high: 3}}", "at least 1, got -4"),
        ("algorithm: a\ngrid: {}\nranges: {tail_size: {type: integer, low: 1, high: 3}}", "one of int, float, choice"),
        ("algorithm: a", "missing key 'grid'"),
    ],
)
def test_bad_files(text: str, part: str) -> None:
    with pytest.raises(UsageError, match="my.yaml") as caught:
        parse_space(text, "my.yaml", "a", Params)
    assert part in str(caught.value)


def test_own_file_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("algorithm: mine\ngrid: {tail_size: [3, 4]}\n")
    assert load_space("mine", Params, path=path).settings() == [{"tail_size": 3}, {"tail_size": 4}]
    with pytest.raises(UsageError, match="no search space for 'mine'; give one with --space FILE"):
        load_space("mine", Params)
    with pytest.raises(UsageError, match="cannot read search space"):
        load_space("mine", Params, path=tmp_path / "none.yaml")


def test_set_replaces_an_axis_in_grid_and_ranges() -> None:
    space = load_space("evm", Params_of_evm(), overrides=["tail_size=50,100", "distance_multiplier=1"])
    assert space.grid["tail_size"] == (50, 100)
    assert space.grid["distance_multiplier"] == (1.0,)
    assert space.ranges["tail_size"].values == (50, 100)
    assert len(space.settings()) == 2


def test_set_takes_truth_values() -> None:
    params = POSTPROCESSORS.info("mds").params
    space = load_space("mds", params, overrides=["normalize=true"])
    assert {setting["normalize"] for setting in space.settings()} == {True}
    with pytest.raises(UsageError, match="expected int, got True"):
        load_space("evm", Params_of_evm(), overrides=["tail_size=true"])


def Params_of_evm() -> type:  # noqa: N802
    @dataclass(frozen=True, kw_only=True)
    class EvmLike:
        tail_size: int = 10
        distance_multiplier: float = 0.5
        cover_threshold: float = 1.0

    return EvmLike


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("tailsize=3", "unknown hyperparameter, did you mean 'tail_size'?"),
        ("tail_size", "is not of the form name=value,value"),
        ("tail_size=", "is not of the form name=value,value"),
        ("tail_size=0", "tail_size must be at least 1, got 0"),
        ("tail_size=1.5", "expected int, got 1.5"),
        ("tail_size=[", "expected int, got '['"),
    ],
)
def test_bad_set(override: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("algorithm: mine\ngrid: {tail_size: [3, 4]}\n")
    with pytest.raises(UsageError, match="--set") as caught:
        load_space("mine", Params, path=path, overrides=[override])
    assert part in str(caught.value)


def test_equal_settings_become_equal() -> None:
    assert complete_setting({"distance_multiplier": 1}, Params, "x") == complete_setting(
        {"tail_size": 10, "distance_multiplier": 1.0}, Params, "x"
    )


def test_a_field_without_default_must_be_in_the_space() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        tail_size: int

    with pytest.raises(UsageError, match="'tail_size' is missing and has no default"):
        parse_space("algorithm: a\ngrid: {}", "f", "a", Needy)
    assert parse_space("algorithm: a\ngrid: {tail_size: [2]}", "f", "a", Needy).settings() == [{"tail_size": 2}]


def test_edges_are_told_with_a_way_out() -> None:
    space = load_space("evm", None)
    inner = {"tail_size": 100, "distance_multiplier": 0.5, "cover_threshold": 1.0}
    assert edge_warnings(space, "grid", inner) == []
    (line,) = edge_warnings(space, "grid", inner | {"tail_size": 1000})
    assert "tail_size 1000 is the largest" in line
    assert "--set tail_size=1000,2000" in line
    (line,) = edge_warnings(space, "grid", inner | {"distance_multiplier": 0.1})
    assert "distance_multiplier 0.1 is the smallest" in line
    assert "--set distance_multiplier=0.1,0.05" in line
    (line,) = edge_warnings(space, "optuna", inner | {"tail_size": 2000})
    assert "2000,4000" in line


@given(
    axes=st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.lists(st.integers(-5, 5), min_size=1, max_size=4, unique=True), max_size=3
    )
)
def test_a_written_grid_reads_back_and_covers_the_product(axes: dict[str, list[int]]) -> None:
    space = parse_space(yaml.safe_dump({"algorithm": "x", "grid": axes}), "f", "x", None)
    assert {name: list(values) for name, values in space.grid.items()} == axes
    settings = space.settings()
    assert len(settings) == len({tuple(sorted(setting.items())) for setting in settings})
    size = 1
    for values in axes.values():
        size *= len(values)
    assert len(settings) == size
    assert isinstance(space, SearchSpace)


def test_no_edge_where_nothing_lies_beyond() -> None:
    space = SearchSpace(algorithm="openmax", grid={"alpha": (1, 2)}, ranges={})
    assert edge_warnings(space, "grid", {"alpha": 1}) == []
    assert len(edge_warnings(space, "grid", {"alpha": 2})) == 1


def test_nothing_lies_beyond_what_a_method_takes() -> None:
    params = POSTPROCESSORS.info("react").params
    space = load_space("react", params)
    inner = sorted(space.grid["percentile"])[1]
    assert edge_warnings(space, "grid", {"percentile": inner, "lower": 0.0}, params) == []  # a percentile below 0
    (line,) = edge_warnings(space, "grid", {"percentile": inner, "lower": max(space.grid["lower"])}, params)
    assert "is the largest" in line
    whole = load_space("knn", POSTPROCESSORS.info("knn").params)
    (line,) = edge_warnings(whole, "grid", {"k": 1000}, POSTPROCESSORS.info("knn").params)
    assert "--set k=1000,2000" in line
