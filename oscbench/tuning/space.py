"""Search spaces: what ``search_spaces/<algorithm>.yaml`` says, checked against the algorithm's parameter record."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from oscbench.errors import UsageError
from oscbench.records import from_mapping
from oscbench.registry import nearest

Value = int | float | str | bool
Setting = dict[str, Value]
"""One point of a search space: a value for every hyperparameter of the algorithm."""

_SECTIONS = ("algorithm", "grid", "ranges")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a budgeted search may draw one hyperparameter from.

    Attributes:
        type: ``int`` and ``float`` lie between ``low`` and ``high``, both included; ``choice`` is one of ``values``.
        log: Draw the logarithm uniformly.
    """

    type: Literal["int", "float", "choice"]
    low: float | None = None
    high: float | None = None
    log: bool = False
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if self.type == "choice":
            if not self.values or self.low is not None or self.high is not None or self.log:
                raise ValueError("a choice needs values and neither low, high nor log")
            return
        if self.low is None or self.high is None or self.values:
            raise ValueError(f"type {self.type} needs low and high and no values")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range needs low above 0, got {self.low:g}")
        if self.type == "int" and (self.low % 1 or self.high % 1):
            raise ValueError(f"type int needs whole numbers, got {self.low:g} and {self.high:g}")

    def contains(self, value: Value) -> bool:
        """Whether the range allows the value."""
        if self.type == "choice":
            return value in self.values
        low, high = self.low or 0.0, self.high or 0.0
        return isinstance(value, int | float) and low <= value <= high and (self.type == "float" or value == int(value))

    def probes(self) -> tuple[Value, ...]:
        """The values that show whether the whole range is possible: its ends, or all choices."""
        if self.type == "choice":
            return self.values
        convert = int if self.type == "int" else float
        return convert(self.low or 0), convert(self.high or 0)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The published grid of an algorithm and the wider ranges of a budgeted search."""

    algorithm: str
    grid: dict[str, tuple[Value, ...]]
    ranges: dict[str, Range]

    def settings(self) -> list[Setting]:
        """Every point of the grid, the last hyperparameter changing fastest; one empty point without any."""
        return [dict(zip(self.grid, point, strict=True)) for point in itertools.product(*self.grid.values())]

    def described(self, search: str) -> dict[str, Any]:
        """The part of the space that decides the result of ``search``, in plain values."""
        if search == "grid":
            return {name: list(values) for name, values in self.grid.items()}
        return {name: dataclasses.asdict(limits) for name, limits in self.ranges.items()}


def load_space(
    algorithm: str, params: type[Any] | None, *, path: Path | None = None, overrides: Sequence[str] = ()
) -> SearchSpace:
    """The search space of an algorithm, from its own file or the shipped one, with ``--set`` applied.

    A method without hyperparameters needs no file: its space is one empty point.

    Args:
        algorithm: Name of the algorithm.
        params: Its parameter record; ``None`` checks the form of the file alone.
        path: A file of one's own instead of the shipped one.
        overrides: Texts like ``tail_size=50,100``.
    """
    names = {field.name for field in dataclasses.fields(params)} if params is not None else set()
    shipped = resources.files("oscbench") / "search_spaces" / f"{algorithm}.yaml"
    if path is None and not shipped.is_file():
        if names and not overrides:
            raise UsageError(f"there is no search space for {algorithm!r}; give one with --space FILE")
        space = SearchSpace(algorithm=algorithm, grid={}, ranges={})
    else:
        text, where = _read(path) if path is not None else (shipped.read_text(), f"search_spaces/{algorithm}.yaml")
        space = parse_space(text, where, algorithm, params)
    return _override(space, overrides, params) if overrides else space


def _read(path: Path) -> tuple[str, str]:
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read search space {path}: {error}") from error


def parse_space(text: str, where: str, algorithm: str, params: type[Any] | None) -> SearchSpace:
    """Reads and checks the text of a search space; everything wrong with it is reported together."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: expected a mapping with the keys {', '.join(_SECTIONS)}, got {raw!r}")
    problems = [f"unknown key {key!r}{nearest(str(key), _SECTIONS)}" for key in raw if key not in _SECTIONS]
    problems += [f"missing key {key!r}" for key in _SECTIONS[:2] if key not in raw]
    if "algorithm" in raw and raw["algorithm"] != algorithm:
        problems.append(f"algorithm: is {raw['algorithm']!r}, wanted {algorithm!r}")
    grid = _parse_grid(_section(raw, "grid", problems), params, problems)
    ranges = _parse_ranges(_section(raw, "ranges", problems), params, problems)
    if problems:
        raise UsageError(f"{where}: " + "; ".join(problems))
    return SearchSpace(algorithm=algorithm, grid=grid, ranges=ranges)


def _section(raw: Mapping[str, Any], name: str, problems: list[str]) -> Mapping[str, Any]:
    section = raw.get(name, {})
    if isinstance(section, dict):
        return section
    problems.append(f"{name}: expected a mapping from hyperparameter to values, got {section!r}")
    return {}


def _parse_grid(
    section: Mapping[str, Any], params: type[Any] | None, problems: list[str]
) -> dict[str, tuple[Value, ...]]:
    grid: dict[str, tuple[Value, ...]] = {}
    for name, values in section.items():
        where = f"grid.{name}"
        if not isinstance(values, list):
            problems.append(f"{where}: expected a list of values, got {values!r}")
        elif not values:
            problems.append(f"{where}: is empty; give at least one value")
        else:
            grid[name] = _checked(name, values, where, params, problems)
            if len(set(grid[name])) < len(grid[name]):
                problems.append(f"{where}: a value occurs twice")
    _check_complete(grid, "grid", params, problems)
    return grid


def _parse_ranges(section: Mapping[str, Any], params: type[Any] | None, problems: list[str]) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for name, limits in section.items():
        where = f"ranges.{name}"
        if not isinstance(limits, dict):
            problems.append(f"{where}: expected a mapping like {{type: int, low: 1, high: 9}}, got {limits!r}")
            continue
        try:
            ranges[name] = from_mapping(Range, limits, where)
        except UsageError as error:
            problems.append(str(error))
        else:
            _checked(name, ranges[name].probes(), where, params, problems)
    if section:
        _check_complete(ranges, "ranges", params, problems)
    return ranges


def _check_complete(given: Mapping[str, Any], where: str, params: type[Any] | None, problems: list[str]) -> None:
    """A record without a default for some field needs that field in the space."""
    for field in dataclasses.fields(params) if params is not None else ():
        has_default = not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        if field.name not in given and not has_default:
            problems.append(f"{where}: {field.name!r} is missing and has no default")


def _checked(
    name: str, values: Sequence[Any], where: str, params: type[Any] | None, problems: list[str]
) -> tuple[Value, ...]:
    """The values as the record stores them; impossible ones are added to ``problems``."""
    if params is None:
        problems += [f"{where}: {value!r} is no plain value" for value in values if not isinstance(value, Value)]
        return tuple(values)
    fields = [field.name for field in dataclasses.fields(params)]
    if name not in fields:
        problems.append(f"{where}: unknown hyperparameter{nearest(name, fields)}")
        return tuple(values)
    accepted: list[Value] = []
    for value in values:
        try:
            record = from_mapping(params, {**_smallest(params), name: value}, where)
        except UsageError as error:
            problems.append(str(error))
        else:
            accepted.append(getattr(record, name))
    return tuple(accepted)


def _smallest(params: type[Any]) -> dict[str, Any]:
    """A value for each field that has no default, so that one other field can be tried alone."""
    hints = get_type_hints(params)
    missing = [field.name for field in dataclasses.fields(params) if field.default is dataclasses.MISSING]
    return {name: 1.0 if hints[name] is float else 1 for name in missing}


def _override(space: SearchSpace, overrides: Sequence[str], params: type[Any] | None) -> SearchSpace:
    """The space with each ``name=v1,v2`` in place of that grid axis, and of that range as a choice."""
    grid, ranges, problems = dict(space.grid), dict(space.ranges), list[str]()
    for text in overrides:
        name, equals, listed = text.partition("=")
        name = name.strip()
        texts = [part.strip() for part in listed.split(",") if part.strip()]
        if not equals or not texts:
            problems.append(f"{text!r} is not of the form name=value,value")
            continue
        values = _checked(name, [_plain(part) for part in texts], f"{text!r}", params, problems)
        if values:
            grid[name] = tuple(dict.fromkeys(values))
            ranges[name] = Range(type="choice", values=grid[name])
    if problems:
        raise UsageError("--set: " + "; ".join(problems))
    return SearchSpace(algorithm=space.algorithm, grid=grid, ranges=ranges if space.ranges else {})


def _plain(text: str) -> Value:
    """A number where the text is one, a truth value for ``true`` and ``false``, else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def complete_setting(setting: Mapping[str, Any], params: type[Any] | None, where: str) -> Setting:
    """The setting with the record's defaults filled in and its types applied: equal settings become equal."""
    if params is None:
        return dict(setting)
    return dataclasses.asdict(from_mapping(params, setting, where))


def edge_warnings(
    space: SearchSpace, search: str, best: Mapping[str, Any], params: type[Any] | None = None
) -> list[str]:
    """One line for each hyperparameter whose best value lies at an end of what was searched, with a way out.

    An end beyond which the method's record of parameters takes nothing is none that anybody could leave.
    """
    lines = []
    for name in space.grid if search == "grid" else space.ranges:
        ends = _numeric_ends(space, search, name)
        if ends is None or name not in best or best[name] not in ends:
            continue
        low, high = ends
        at_top = best[name] == high
        beyond = _beyond(space, search, name, at_top)
        further = int(beyond) if isinstance(best[name], int) else beyond
        if further == best[name] or not _is_setting({**best, name: further}, params):
            continue
        lines.append(
            f"the best {name} {best[name]:g} is the {'largest' if at_top else 'smallest'} value searched, a better one "
            f"may lie beyond: try --set {name}={best[name]:g},{beyond:g} or --search optuna with a wider range"
        )
    return lines


def _is_setting(setting: Setting, params: type[Any] | None) -> bool:
    try:
        complete_setting(setting, params, "")
    except ValueError:
        return False
    return True


def _numeric_ends(space: SearchSpace, search: str, name: str) -> tuple[float, float] | None:
    """Smallest and largest value searched; ``None`` where there is no order or nothing to choose."""
    values = space.grid[name] if search == "grid" else space.ranges[name].probes()
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return (min(numbers), max(numbers)) if len(numbers) == len(values) and len(set(numbers)) > 1 else None


def _beyond(space: SearchSpace, search: str, name: str, at_top: bool) -> float:
    """One step outside the end: the ratio of the last two grid values again, or a factor of two."""
    values = sorted(v for v in space.grid.get(name, ()) if isinstance(v, int | float)) if search == "grid" else []
    if len(values) < 2:
        values = sorted(float(v) for v in space.ranges[name].probes())
        values = [values[0], 2 * values[0], values[-1] / 2, values[-1]]
    end, inner = (values[-1], values[-2]) if at_top else (values[0], values[1])
    step = end * end / inner if inner > 0 < end else end + (end - inner)
    whole = all(isinstance(value, int) for value in space.grid.get(name, ())) and name in space.grid
    return float(max(1, round(step))) if whole else float(f"{step:.2g}")
