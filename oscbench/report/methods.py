"""What the registries know of algorithms and losses: plain documents, and from those tables and ``docs/methods.md``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

from oscbench.errors import UsageError
from oscbench.registry import nearest

if TYPE_CHECKING:
    from oscbench.losses import LossSpec
    from oscbench.postprocessors.base import Cost, Method, Need, ScoreKind
    from oscbench.registry import Entry
    from oscbench.tuning.space import SearchSpace

Document = dict[str, Any]
"""An algorithm or a loss in plain values, as ``--json`` prints it."""

NEEDS: Final[Mapping[Need, str]] = {
    "logits": "the network's outputs",
    "pooled": "the penultimate layer, or the embedding where that was not kept",
    "head": "weights and biases of the last layer, recovered from the training rows where they are missing",
}
COSTS: Final[Mapping[Cost, str]] = {
    "logits": "O(K), as reading the logits",
    "features": "at most O(PK), as the network's last layer",
    "classes": "O(P²), a change of basis",
    "pairs": "O(NP), a comparison with every training row",
    "training": "every setting is a network of its own",
}
SCORE_KINDS: Final[Mapping[ScoreKind, str]] = {
    "log": "logarithm, never saturates",
    "probability": "in float64, saturates near 1",
    "logit": "the network's own output",
    "native": "the method's own unbounded scale",
    "published": "as the code behind the published tables",
}
ABOUT: Final[Mapping[str, str]] = {"idea": "idea", "formula": "formula", "good": "good for", "poor": "poor for"}
"""The four lines, and what they are headed with."""

LINKS: Final[Mapping[str, str]] = {
    r"arXiv:([\w./-]*\w)": "https://arxiv.org/abs/",
    r"doi:([^\s,]+)": "https://doi.org/",
    r"openreview ([\w-]+)": "https://openreview.net/forum?id=",
}
"""How papers are written, and what leads to them."""


# --- what the registries know -------------------------------------------------------------------------------------


def all_methods(*, plugins: bool = True) -> Document:
    """Every algorithm and loss by name, ``plugins`` among them or left out, and the groups with their members."""
    from oscbench.losses import LOSSES
    from oscbench.postprocessors import POSTPROCESSORS
    from oscbench.postprocessors.base import GROUPS

    algorithms = [POSTPROCESSORS.info(name) for name in sorted(POSTPROCESSORS.names())]
    losses = [LOSSES.info(name) for name in sorted(LOSSES.names())]
    if not plugins:
        algorithms = [method for method in algorithms if _is_own(method.value)]
        losses = [loss for loss in losses if _is_own(loss.value.build)]
    return {
        "algorithms": [_algorithm(method) for method in algorithms],
        "losses": [_loss(loss) for loss in losses],
        "groups": {group: [m.name for m in algorithms if belongs(m)] for group, belongs in GROUPS.items()},
    }


def _is_own(value: Any) -> bool:
    return str(value.__module__).startswith(f"{__name__.partition('.')[0]}.")


def find_method(methods: Document, name: str) -> Document:
    """The algorithm or loss called ``name``; a group gives its algorithms, an unknown name the nearest one."""
    known: dict[str, Document] = {entry["name"]: entry for entry in (*methods["losses"], *methods["algorithms"])}
    groups = methods["groups"]
    if name in groups:
        return {"group": name, "algorithms": [known[member] for member in groups[name]]}
    if name not in known:
        names = (*known, *groups)
        raise UsageError(f"unknown method {name!r}{nearest(name, names)} (one of {', '.join(sorted(names))})")
    return known[name]


def _algorithm(method: Method) -> Document:
    space = _shipped_space(method)
    return {
        **_entry("algorithm", method, space),
        "needs": [need for need in NEEDS if need in method.needs],
        "cost": method.cost,
        "score_kinds": list(method.score_kinds),
        "grid_size": None if space is None else len(space.settings()),
        "recipes": {name: dict(changes) for name, changes in method.recipes.items()},
    }


def _loss(loss: Entry[LossSpec]) -> Document:
    spec = loss.value
    return {
        **_entry("loss", loss, None),
        "needs": ["known", "negatives"] if spec.uses_negatives else ["known"],
        "extra_outputs": spec.extra_outputs,
    }


def _entry(kind: str, entry: Entry[Any], space: SearchSpace | None) -> Document:
    return {
        "kind": kind,
        "name": entry.name,
        "label": entry.label,
        "paper": entry.paper,
        "links": [start + found for pattern, start in LINKS.items() for found in re.findall(pattern, entry.paper)],
        "about": None if entry.about is None else entry.about._asdict(),
        "hyperparameters": list(_hyperparameters(entry.params, space)),
    }


def _shipped_space(method: Method) -> SearchSpace | None:
    """The search space of an algorithm; ``None`` for a plug-in with hyperparameters, whose space is a user's file."""
    from oscbench.tuning.space import load_space

    shipped = resources.files("oscbench") / "search_spaces" / f"{method.name}.yaml"
    if dataclasses.fields(method.params) and not shipped.is_file():
        return None
    return load_space(method.name, method.params)


def _hyperparameters(params: type[Any], space: SearchSpace | None) -> Iterator[Document]:
    hints, said = get_type_hints(params), field_docs(params)
    for field in dataclasses.fields(params):
        hint = hints[field.name]
        limits = None if space is None else space.ranges.get(field.name)
        yield {
            "name": field.name,
            "type": "choice" if get_origin(hint) is Literal else getattr(hint, "__name__", str(hint)),
            "choices": list(get_args(hint)) if get_origin(hint) is Literal else None,
            "default": None if field.default is dataclasses.MISSING else field.default,
            "grid": list(space.grid[field.name]) if space is not None and field.name in space.grid else None,
            "range": None if limits is None else dataclasses.asdict(limits),
            "meaning": said.get(field.name, ""),
        }


def field_docs(params: type[Any]) -> dict[str, str]:
    """What a parameter record and those it inherits from say of each field.

    Either in a section ``Attributes:``, or as ````name``: text``; what a record with one field says is about that.
    """
    said: dict[str, str] = {}
    for record in reversed([base for base in params.__mro__ if dataclasses.is_dataclass(base)]):
        text = inspect.cleandoc(record.__doc__ or "")
        if text.startswith(f"{record.__name__}("):  # what the decorator writes where there is no docstring
            continue
        own = [name for name in record.__dict__.get("__annotations__", {}) if name in record.__dataclass_fields__]
        section = text.partition("Attributes:\n")[2].partition("\n\n")[0]
        found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
        found += re.findall(r"^``(\w+)``: (.*)", text, flags=re.DOTALL)
        if not found and len(own) == 1:
            found = [(own[0], text)]
        said |= {name: _sentence(words) for name, words in found}
    return said


def _sentence(text: str) -> str:
    text = " ".join(text.split()).replace("``", "`")
    return text[:1].upper() + text[1:]


# --- as plain text ------------------------------------------------------------------------------------------------


def method_rows(entries: Iterable[Document]) -> list[dict[str, str]]:
    """A row per algorithm, or per loss; what may be long stands last."""
    rows = []
    for entry in entries:
        row = {"name": entry["name"], "label": entry["label"]}
        if entry["kind"] == "algorithm":
            row |= {"cost": entry["cost"], "settings": value_text(entry["grid_size"])}
        else:
            row["extra outputs"] = str(entry["extra_outputs"])
        row |= {"needs": ", ".join(entry["needs"]) or "embedding", "paper": entry["paper"] or "-"}
        defaults = (f"{p['name']} {value_text(p['default'])}" for p in entry["hyperparameters"])
        rows.append(row | {"hyperparameters": ", ".join(defaults) or "-"})
    return rows


def fact_rows(entry: Document, *, explained: bool = True) -> dict[str, str]:
    """A line per fact on an algorithm or loss, its four lines first; ``explained``: with what their words mean."""

    def words(chosen: Iterable[str], meanings: Mapping[Any, str]) -> str:
        return "; ".join(f"{word}: {meanings[word]}" for word in chosen) if explained else ", ".join(chosen)

    rows = {entry["kind"]: entry["name"], "label": entry["label"]}
    rows |= {title: entry["about"][field] for field, title in ABOUT.items()} if entry["about"] else {}
    rows["paper"] = "  ".join([entry["paper"] or "-", *entry["links"]])
    if entry["kind"] == "loss":
        return rows | {"needs": ", ".join(entry["needs"]), "extra outputs": str(entry["extra_outputs"])}
    rows["needs"] = words(entry["needs"], NEEDS) or "embedding"
    rows["cost"] = words([entry["cost"]], COSTS)
    rows["scores"] = words(entry["score_kinds"], SCORE_KINDS)
    rows["settings"] = value_text(entry["grid_size"])
    for name, changes in entry["recipes"].items():
        changed = ", ".join(f"{field} {value_text(value)}" for field, value in changes.items())
        rows[f"recipe {name}"] = changed or "the defaults"
    return rows


def hyperparameter_rows(entry: Document) -> list[dict[str, str]]:
    """A row per hyperparameter; a loss has neither grid nor range."""
    rows = []
    for parameter in entry["hyperparameters"]:
        row = {"hyperparameter": parameter["name"]}
        row["type"] = "/".join(map(value_text, parameter["choices"] or [parameter["type"]]))
        row["default"] = value_text(parameter["default"])
        if entry["kind"] == "algorithm":
            row |= {"grid": _values(parameter["grid"] or ()), "range": _limits(parameter)}
        rows.append(row | {"meaning": parameter["meaning"]})
    return rows


def groups_text(methods: Document) -> str:
    """The groups of algorithms in one line, each with its size and what it leaves out."""
    names = [entry["name"] for entry in methods["algorithms"]]
    texts = []
    for group, members in methods["groups"].items():
        others = [name for name in names if name not in members]
        without = f", without {', '.join(others)}" if others else ""
        texts.append(f"{group} ({len(members)}{without})")
    return ", ".join(texts)


def value_text(value: Any) -> str:
    """A value as search spaces spell it; a dash for none.

    >>> [value_text(value) for value in (1.0, 1e-4, 50, True, "pooled", None)]
    ['1', '0.0001', '50', 'true', 'pooled', '-']
    """
    if value is None or isinstance(value, bool):
        return {None: "-", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(values: Iterable[Any]) -> str:
    return ", ".join(map(value_text, values)) or "-"


def _limits(parameter: Document) -> str:
    limits = parameter["range"]
    if limits is None:
        return "-"
    if limits["low"] is None:
        return "any" if set(limits["values"]) == set(parameter["choices"] or ()) else _values(limits["values"])
    return f"{limits['low']:g} to {limits['high']:g}{', log' if limits['log'] else ''}"


# --- as a page ----------------------------------------------------------------------------------------------------

PAGE: Final = """\
# Algorithms and losses

`python scripts/make_methods_page.py` writes this page from what the methods say of themselves. `oscbench methods`
prints its tables, plug-ins included, and `oscbench methods NAME` one method; both take `--json`.

In formulas a row has features `z`, logits `l` and probabilities `p = softmax(l)`; `y` is its predicted class, in losses
its label. The last layer has weights `W` (row `w_k` for class `k`) and biases `b`; `m_k` is the mean of a class's
training rows. `|x|` is the Euclidean length, `|x|_1` the sum of absolute values, `LSE(l) = ln sum_k exp(l_k)`, `W^+` a
pseudo-inverse. `K` is the number of known classes, `P` the width of the features, `N` the number of training rows.

## Algorithms

{algorithms}

- groups of algorithms for `--alg`: {groups}
- cost of scoring one row:{costs}
- settings: of the published grid; a hyperparameter that is not in it stays at its default, and `--search optuna` draws
  from the ranges instead
- needs besides the embedding:{needs}
- scores, higher for rows that look more known, the default first:{score_kinds}

{algorithm_sections}

## Losses

{losses}

- needs: training samples of known classes, and negative ones
- extra outputs: of the network, besides one per known class

{loss_sections}
"""


def methods_page(methods: Document) -> str:
    """The page of the documentation: tables, what their words mean, a section for each algorithm and loss."""
    algorithms, losses = methods["algorithms"], methods["losses"]
    return PAGE.format(
        algorithms=_overview(algorithms),
        groups=groups_text(methods),
        costs=_glossary(COSTS),
        needs=_glossary(NEEDS),
        score_kinds=_glossary(SCORE_KINDS),
        algorithm_sections="\n\n".join(map(_section, algorithms)),
        losses=_overview(losses),
        loss_sections="\n\n".join(map(_section, losses)),
    )


def _overview(entries: Iterable[Document]) -> str:
    rows = method_rows(entries)
    return _table([row | {"name": f"[{row['name']}](#{row['name']})", "paper": _linked(row["paper"])} for row in rows])


def _glossary(words: Mapping[Any, str]) -> str:
    return "".join(f"\n  - `{word}`: {meaning}" for word, meaning in words.items())


def _section(entry: Document) -> str:
    facts = {title: _escaped(text) for title, text in fact_rows(entry, explained=False).items()}
    name = facts.pop(entry["kind"])
    facts |= {"formula": f"`{entry['about']['formula']}`", "paper": _linked(entry["paper"])}
    rows = [row | {"meaning": _escaped(row["meaning"])} for row in hyperparameter_rows(entry)]
    lines = "\n".join(f"- {title}: {text}" for title, text in facts.items())
    return "\n\n".join([f"### {name}", lines, *([_table(rows)] if rows else [])])


def _table(rows: Sequence[dict[str, str]]) -> str:
    import pandas as pd

    from oscbench.report.tables import markdown

    return markdown(pd.DataFrame(rows))


def _linked(paper: str) -> str:
    for pattern, start in LINKS.items():
        paper = re.sub(pattern, rf"[\g<0>]({start}\g<1>)", paper)
    return paper


def _escaped(text: str) -> str:
    """Text without signs that Markdown would take for its own; what stands between backticks stays."""
    return re.sub(r"(`[^`]*`)|([\\*_<\[])", lambda found: found[1] or f"\\{found[2]}", text)
