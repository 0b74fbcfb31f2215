from __future__ import annotations

import pytest

from oscbench.errors import UsageError
from oscbench.registry import Registry, nearest


def make() -> Registry[type]:
    registry: Registry[type] = Registry("things", "thing")
    registry.register("evm", label="EVM", params=dict, paper="a paper")(int)
    registry.register("openmax")(str)
    return registry


def test_entries_are_found_by_name_in_order_of_registration():
    registry = make()
    assert registry.names() == ["evm", "openmax"]
    assert registry.get("evm") is int
    assert (registry.info("evm").label, registry.info("openmax").label) == ("EVM", "openmax")
    assert registry.info("evm").params is dict


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="'evm' is already registered"):
        make().register("evm")(float)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(UsageError, match="unknown thing 'openmx', did you mean 'openmax'\\? \\(one of evm, openmax\\)"):
        make().get("openmx")


def test_nothing_near_gives_no_hint():
    assert nearest("zzz", ["evm"]) == ""
    assert nearest("EVM", ["evm"]) == ", did you mean 'evm'?"


def test_plugins_are_loaded_once_when_first_asked(monkeypatch: pytest.MonkeyPatch):
    loads: list[str] = []

    class Point:
        def load(self) -> None:
            loads.append("plugin")
            registry.register("plugged")(bytes)

    registry = make()
    monkeypatch.setattr("oscbench.registry.entry_points", lambda group: [Point()] if group == "oscbench.things" else [])
    assert registry.names() == ["evm", "openmax", "plugged"]
    assert registry.get("plugged") is bytes
    assert loads == ["plugin"]
