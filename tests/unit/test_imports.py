"""Who may import what, and that names of methods are not compared outside the file that owns them."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oscbench

PACKAGE = Path(oscbench.__file__).parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}

ONLY_IN = {"ray": "distributed/", "ffcv": "data/ffcv.py", "matplotlib": "report/plots/"}
"""The one place, folder or file, from which a package may be imported."""

PURE = {"metrics/": {"numpy"}, "numerics/": {"numpy", "scipy", "torch", "numba", "llvmlite", "threadpoolctl"}}
"""What such a folder may import besides the standard library, itself and ``oscbench.labels``; llvmlite is numba's."""

LIGHT = ("oscbench.metrics", "oscbench.labels", "oscbench.tuning.collect, oscbench.tuning.trials")
"""What a notebook or a plug-in may load without waiting."""

HEAVY = ("torch", "ray", "numba", "pandas", "matplotlib")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Full names of all modules imported anywhere in the file, also inside functions and by ``import_module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node.module or ""
            if node.module == "oscbench":  # `from oscbench import metrics` imports a module too
                yield from (f"oscbench.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield str(argument.value)


def imports_when_loaded(body: list[ast.stmt]) -> Iterator[str]:
    """Full names of the modules that are imported when the file itself is: not in functions, not for types alone."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported_modules(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_when_loaded(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            for block in blocks:
                yield from imports_when_loaded(block)


def find_package_cycle(trees: dict[str, ast.Module]) -> list[str]:
    """Top-level packages and modules that import each other in a circle, or nothing."""
    needs: dict[str, set[str]] = {}
    for file, tree in trees.items():
        own = file.split("/")[0].removesuffix(".py")
        modules = [module.split(".") for module in imports_when_loaded(tree.body)]
        others = {parts[1] for parts in modules if parts[0] == "oscbench" and len(parts) > 1}
        needs.setdefault(own, set()).update(others - {own})
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def misplaced_imports(name: str, tree: ast.AST) -> list[str]:
    """Imports of ``tree`` that may only stand elsewhere than in file ``name``."""
    roots = (module.split(".")[0] for module in imported_modules(tree))
    return [root for root in roots if root in ONLY_IN and not name.startswith(ONLY_IN[root])]


def impure_imports(name: str, tree: ast.AST) -> list[str]:
    """Imports of ``tree`` that a file of a pure folder must not have."""
    folder = next((folder for folder in PURE if name.startswith(folder)), None)
    if folder is None:
        return []
    own = ("oscbench.labels", f"oscbench.{folder.rstrip('/')}")
    allowed = PURE[folder] | sys.stdlib_module_names
    return [
        module
        for module in imported_modules(tree)
        if not module.startswith(own) and (module.split(".")[0] not in allowed)
    ]


def registered_names() -> dict[str, set[str]]:
    """For each name given to ``REGISTRY.register(name, …)``, the files that do so."""
    owners: dict[str, set[str]] = {}
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=registry), attr="register"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    if registry.isupper():
                        owners.setdefault(name, set()).add(file)
    return owners


def compared_strings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Strings that something is compared with, by an operator or in a ``match``, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        else:
            continue
        for side in sides:
            for part in ast.walk(side) if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value, part.lineno


@pytest.mark.parametrize("name", FILES)
def test_ray_ffcv_and_matplotlib_stay_at_the_edge(name: str) -> None:
    assert misplaced_imports(name, TREES[name]) == []


def test_what_is_rays_is_entered_from_the_verbs_alone() -> None:
    """Stages run anywhere: whoever executes them is handed in, also by imports inside functions."""
    entered = {
        name.split("/")[0]
        for name, tree in TREES.items()
        for module in imported_modules(tree)
        if module.startswith("oscbench.distributed")
    }
    assert entered == {"distributed", "api", "cli"}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(tuple(PURE))])
def test_the_core_is_pure(name: str) -> None:
    assert impure_imports(name, TREES[name]) == []


def test_methods_and_losses_are_named_only_where_they_are_registered() -> None:
    owners = registered_names()
    assert {"mss", "mls", "openmax", "softmax", "garbage", "eos"} <= set(owners)
    offences = [
        f"{file}:{line} compares with {text!r}"
        for file, tree in TREES.items()
        for text, line in compared_strings(tree)
        if text in owners and file not in owners[text]
    ]
    assert offences == []


def test_importing_the_package_and_the_cli_loads_nothing_heavy() -> None:
    program = (
        "import sys, oscbench, oscbench.cli; assert set(oscbench.__all__) <= set(dir(oscbench))\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("modules", LIGHT)
def test_tables_and_metrics_load_neither_networks_nor_ray(modules: str) -> None:
    unwanted = ("torch", "ray", "filelock", "optuna")
    program = f"import sys, {modules}; print(*[name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    assert find_package_cycle(TREES) == []


def test_the_search_for_circles_looks_at_what_is_loaded_alone() -> None:
    data = ast.parse(
        "import numpy\ntry:\n    from oscbench.protocols.base import Protocol\nexcept ImportError:\n    raise"
    )
    own, unloaded = "from oscbench.protocols import base\n", "def f():\n    from oscbench.data import images\n"
    for types in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        protocols = ast.parse(f"{own}{unloaded}if {types}:\n    import oscbench.data.images")
        assert find_package_cycle({"data/a.py": data, "protocols/b.py": protocols}) == []
    for bad in (
        "import oscbench.data.images",
        "from oscbench import data",
        "class A:\n    from oscbench.data import b",
    ):
        cycle = find_package_cycle({"data/a.py": data, "protocols/b.py": ast.parse(bad)})
        assert set(cycle) == {"data", "protocols"}


def test_the_rules_can_be_broken() -> None:
    """Each search finds what it is there to find."""
    source = """
def f(name):
    import ray.train
    from oscbench import records
    import_module("ffcv.loader")
    if name == "evm" or name in ("eos", "other"):
        pass
    match name:
        case "mss":
            pass
"""
    tree = ast.parse(source)
    assert misplaced_imports("tuning/space.py", tree) == ["ray", "ffcv"]
    assert misplaced_imports("distributed/tune.py", tree) == ["ffcv"]
    assert impure_imports("metrics/oscr.py", tree) == ["ray.train", "oscbench", "oscbench.records", "ffcv.loader"]
    assert impure_imports("report/tables.py", tree) == []
    assert {text for text, _ in compared_strings(tree)} == {"evm", "eos", "other", "mss"}
