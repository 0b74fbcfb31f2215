"""``methods`` as a function: documents of the command, and tables that agree with the registries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from oscbench import methods
from oscbench.errors import UsageError
from oscbench.losses import LOSSES
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import expand_algorithms


@pytest.mark.parametrize("name", [(), ("evm",), ("objectosphere",), ("posthoc",)])
def test_the_command_says_the_same(
    name: tuple[str, ...], printed: Callable[..., Any], as_printed: Callable[..., Any]
) -> None:
    assert printed("methods", *name) == as_printed(methods(*name).document)


def test_the_table_has_a_row_for_every_name() -> None:
    found = methods()
    assert found.table["name"].tolist() == [*sorted(POSTPROCESSORS.names()), *sorted(LOSSES.names())]
    table = found.table.set_index("name")
    assert table.loc["evm", "settings"] == 80
    assert pd.isna(table.loc["eos", "settings"])
    assert table.loc["eos", "kind"] == "loss"
    assert set(found.groups["posthoc"]) == set(expand_algorithms(["posthoc"]))


def test_one_name_or_a_group_is_a_part_of_it() -> None:
    assert [entry["name"] for entry in methods("eos").losses] == ["eos"]
    assert not methods("eos").algorithms
    assert not methods("evm").losses
    group = methods("posthoc")
    assert [entry["name"] for entry in group.algorithms] == [*group.groups["posthoc"]]
    with pytest.raises(UsageError, match="unknown method 'opnmax', did you mean 'openmax'"):
        methods("opnmax")


def test_hyperparameters_are_those_of_the_records() -> None:
    found = methods().hyperparameters
    for name in ("evm", "openmax", "knn"):
        fields = POSTPROCESSORS.info(name).params.__dataclass_fields__
        assert found[found["name"] == name]["hyperparameter"].tolist() == [*fields]
    assert methods("mss").hyperparameters.empty
    assert found.notna().all().all()
