"""What ``import oscbench`` offers: which names, loaded when, and with the same defaults as the command line."""

from __future__ import annotations

import ast
import doctest
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import oscbench
import oscbench.api
from oscbench.cli import VERBS

FUNCTIONS = [name for name in oscbench.__all__ if name != "__version__"]
NAMED = {"report": "write_report"}
"""Functions that cannot be called as their verb is, which is the name of a module."""
BOTH = [verb for verb in VERBS if NAMED.get(verb, verb) in FUNCTIONS]
"""Verbs of the command line that are functions too."""

MODULES = ["oscbench.runs", *(f"oscbench.api.{module.name}" for module in pkgutil.iter_modules(oscbench.api.__path__))]

OTHERWISE_CALLED = {"set_values": "settings", "loss_param": "loss_params"}
"""Options whose name is short because they are repeated."""

PRINTED = {"json", "as_json"}
"""Options about what is printed; a function returns all of it."""

WRITTEN = {"evaluate": {"plots", "fpr"}}
"""Options that are a method of the result: ``evaluate(…).plots(folder, fpr=…)``."""

HOW = {"session", "view", "spectator"}
"""What only a program can hand in."""


def test_the_functions_of_the_issue_are_there() -> None:
    wanted = {
        "tune",
        "train",
        "extract",
        "evaluate",
        "benchmark",
        "threshold",
        "methods",
        "load_features",
        "load_scores",
    }
    assert wanted <= set(FUNCTIONS)
    assert sorted(oscbench.__all__) == oscbench.__all__
    for name in FUNCTIONS:
        assert callable(getattr(oscbench, name))
        assert inspect.getdoc(getattr(oscbench, name))
    assert set(oscbench.__all__) <= set(dir(oscbench))
    with pytest.raises(AttributeError, match="module 'oscbench' has no attribute 'tuen'"):
        _ = oscbench.tuen


def test_one_table_says_where_each_name_comes_from() -> None:
    """What is loaded, what type checkers see and what ``import *`` gives are the same."""
    (block,) = [
        node
        for node in ast.parse(Path(oscbench.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == oscbench._PUBLIC
    assert sorted(seen) == FUNCTIONS


def test_no_name_is_that_of_a_submodule() -> None:
    """Importing ``oscbench.report.tables`` would replace a function called ``report`` by the package."""
    modules = {module.name for module in pkgutil.iter_modules(oscbench.__path__)}
    assert {"api", "report", "training", "scores"} <= modules
    assert modules.isdisjoint(oscbench.__all__)


def test_names_are_listed_before_and_loaded_when_they_are_used() -> None:
    program = (
        "import sys, oscbench\n"
        "assert 'tune' in dir(oscbench) and 'oscbench.api.tune' not in sys.modules\n"
        "oscbench.threshold, oscbench.methods\n"
        "print(*[name for name in ('torch', 'ray', 'numba', 'pandas', 'matplotlib') if name in sys.modules])\n"
        "print(len(oscbench.load_scores('demo')), oscbench.load_scores is oscbench.load_scores)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "2 True"]


def options_of(verb: str) -> dict[str, inspect.Parameter]:
    """The options of a command, by the name that the function has for them."""
    command = getattr(import_module(f"oscbench.cli.{verb}"), verb)
    listed = inspect.signature(command).parameters
    left = PRINTED | WRITTEN.get(verb, set())
    return {OTHERWISE_CALLED.get(name, name): option for name, option in listed.items() if name not in left}


def plain(default: Any) -> Any:
    """A default as it can be compared: a path is its text, a sequence a list with commas, an empty one nothing."""
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or None
    return str(default) if isinstance(default, Path) else default


@pytest.mark.parametrize("verb", BOTH)
def test_functions_and_commands_have_the_same_options_and_defaults(verb: str) -> None:
    function = getattr(oscbench, NAMED.get(verb, verb))
    parameters, options = inspect.signature(function).parameters, options_of(verb)
    assert set(parameters) - HOW == set(options)
    for name, option in options.items():
        assert plain(parameters[name].default) == plain(option.default), name
    positional = [name for name, given in parameters.items() if given.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert 1 <= len(positional) <= 2
    said = inspect.getdoc(function) or ""
    assert len(options) == 1 or all(f"\n    {name}: " in said for name in parameters)


def test_the_comparison_has_something_to_compare() -> None:
    assert {"train", "extract", "tune", "benchmark", "evaluate", "report", "threshold", "methods"} <= set(BOTH)


@pytest.mark.parametrize(
    "module",
    [f"oscbench.api.{module.name}" for module in pkgutil.iter_modules(oscbench.api.__path__)] + ["oscbench.runs"],
)
def test_the_examples_are_true(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(import_module(module)).failed == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    function: Callable[..., Any] = getattr(oscbench, name)
    assert doctest.DocTestFinder().find(function, name)[0].examples
