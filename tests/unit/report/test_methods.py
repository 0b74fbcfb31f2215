"""What is said of algorithms and losses: complete, true to the registries, and in the documentation as it is now."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from oscbench.losses import LOSSES
from oscbench.metrics import Predictions
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import Cost, Need, ScoreKind, expand_algorithms
from oscbench.registry import About
from oscbench.report.methods import (
    COSTS,
    NEEDS,
    SCORE_KINDS,
    all_methods,
    fact_rows,
    field_docs,
    find_method,
    groups_text,
    hyperparameter_rows,
    method_rows,
    methods_page,
)

ROOT = Path(__file__).parents[3]
METHODS = all_methods(plugins=False)
ENTRIES = [*METHODS["algorithms"], *METHODS["losses"]]
PAGE = methods_page(METHODS)
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"^### |^## .*$", PAGE, flags=re.MULTILINE)}

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])


def registered(entry: dict[str, Any]) -> Any:
    return (POSTPROCESSORS if entry["kind"] == "algorithm" else LOSSES).info(entry["name"])


def parsed(text: str) -> list[Token]:
    """All tokens of a Markdown text, those inside lines included."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in blocks for token in (block, *(block.children or ()))]


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_in_the_documentation_is_the_one_of_today() -> None:
    stored = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert stored == PAGE, "docs/methods.md is out of date; run: python scripts/make_methods_page.py"


def test_every_algorithm_and_loss_has_one_section() -> None:
    headings = re.findall(r"^### (.*)$", PAGE, flags=re.MULTILINE)
    names = [name for name in POSTPROCESSORS.names() if POSTPROCESSORS.get(name).__module__.startswith("oscbench.")]
    assert {"mss", "evm", "proser"} <= set(names)
    assert headings == [*sorted(names), *sorted(LOSSES.names())]


@each_entry
def test_a_section_holds_the_four_lines(entry: dict[str, Any]) -> None:
    about = registered(entry).about
    assert isinstance(about, About)
    assert all(line.strip() == line != "" for line in about)
    assert len(set(about)) == 4
    tokens = parsed(SECTIONS[entry["name"]])
    assert about.formula in [token.content for token in tokens if token.type == "code_inline"]
    lines = ["".join(part.content for part in token.children or ()) for token in tokens if token.type == "inline"]
    assert [f"idea: {about.idea}", f"formula: {about.formula}"] == lines[2:4]
    assert [f"good for: {about.good}", f"poor for: {about.poor}"] == lines[4:6]


@each_entry
def test_a_section_holds_every_hyperparameter(entry: dict[str, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(registered(entry).params)]
    assert re.findall(r"^\| (\w+) ", SECTIONS[entry["name"]], flags=re.MULTILINE)[1:] == fields


def test_nothing_on_the_page_is_taken_for_markup() -> None:
    allowed = {"text", "code_inline", "softbreak", "link_open", "link_close", "inline"}
    blocks = r"(heading|paragraph|bullet_list|list_item|table|thead|tbody|tr|th|td)_(open|close)"
    assert {token.type for token in parsed(PAGE) if not re.fullmatch(blocks, token.type)} == allowed
    assert not re.search(r"[ \t]$", PAGE, flags=re.MULTILINE)
    assert PAGE.endswith("\n")


def test_what_markdown_would_take_for_markup_is_shown_as_it_is() -> None:
    sentence = "A *b* <c> _d_ [e](f) \\ `g_*h`."
    entry = METHODS["losses"][0] | {"about": About(sentence, "|a|_1 * b_1 * c < d", sentence, "x")._asdict()}
    tokens = parsed(methods_page(METHODS | {"losses": [entry]}))
    shown = ["".join(part.content for part in token.children or ()) for token in tokens if token.type == "inline"]
    assert f"idea: {sentence.replace('`', '')}" in shown
    assert "formula: |a|_1 * b_1 * c < d" in shown


def test_links_of_the_page_lead_somewhere() -> None:
    links = [str(token.attrs["href"]) for token in parsed(PAGE) if token.type == "link_open"]
    inside = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert inside == {entry["name"] for entry in ENTRIES} == set(SECTIONS) & inside
    assert all(re.fullmatch(r"#\w+|https://[\w.]+/\S+\w", link) for link in links)


# --- papers -------------------------------------------------------------------------------------------------------


@each_entry
def test_every_reference_is_a_link(entry: dict[str, Any]) -> None:
    assert len(entry["links"]) == len(entry["paper"].split(", ")) >= 1
    assert all(f"]({link})" in SECTIONS[entry["name"]] for link in entry["links"])


def test_links_are_formed(plugin: None) -> None:
    entry = find_method(all_methods(), "mine")
    assert entry["links"] == [
        "https://arxiv.org/abs/1506.06112",
        "https://arxiv.org/abs/cs/0101001",
        "https://doi.org/10.1000/a_(b)",
        "https://openreview.net/forum?id=a-B_1",
    ]


# --- numbers and words --------------------------------------------------------------------------------------------


def test_grid_sizes_are_those_of_the_files() -> None:
    counted = {}
    for name in [entry["name"] for entry in METHODS["algorithms"]]:
        file = ROOT / "search_spaces" / f"{name}.yaml"
        grid = yaml.safe_load(file.read_text())["grid"] if file.exists() else {}
        counted[name] = math.prod(len(set(values)) for values in grid.values())
    assert counted["evm"] == 80
    assert counted["openmax"] == 96
    assert {entry["name"]: entry["grid_size"] for entry in METHODS["algorithms"]} == counted
    assert {row["name"]: int(row["settings"]) for row in method_rows(METHODS["algorithms"])} == counted


@each_entry
def test_defaults_are_those_of_the_records(entry: dict[str, Any]) -> None:
    said = {parameter["name"]: parameter["default"] for parameter in entry["hyperparameters"]}
    assert said == dataclasses.asdict(registered(entry).params())


@each_entry
def test_every_hyperparameter_has_a_meaning(entry: dict[str, Any]) -> None:
    missing = [parameter["name"] for parameter in entry["hyperparameters"] if not parameter["meaning"].endswith(".")]
    assert missing == [], f"say what they are in the docstring of {registered(entry).params.__name__}"


def test_hyperparameters_as_text() -> None:
    rows = {name: hyperparameter_rows(find_method(METHODS, name)) for name in ("proser", "mds", "evm", "eos")}
    assert rows["proser"][0] == {
        "hyperparameter": "dummies",
        "type": "int",
        "default": "5",
        "grid": "1, 2, 5, 10, 25, 100",
        "range": "1 to 400, log",
        "meaning": "B, the outputs beside those of the known classes.",
    }
    assert rows["proser"][1]["type"] == "published/authors"
    assert rows["proser"][1]["range"] == "-"
    assert [(row["default"], row["grid"], row["range"]) for row in rows["mds"]] == [
        ("true", "true, false", "true, false"),
        ("pooled", "pooled, embedding", "any"),
        ("classifier", "-", "any"),
    ]
    assert rows["evm"][2]["range"] == "1"  # one choice of many
    assert rows["eos"] == [
        {
            "hyperparameter": "negative_weight",
            "type": "float",
            "default": "1",
            "meaning": "Weight of a negative sample's loss; known samples weigh 1.",
        }
    ]


def test_facts_name_needs_and_recipes() -> None:
    facts = {name: fact_rows(find_method(METHODS, name), explained=False) for name in ("vim", "evm", "proser", "eos")}
    assert facts["vim"]["needs"] == "logits, pooled, head"
    assert facts["evm"]["needs"] == "embedding"
    assert facts["evm"]["scores"] == "log, probability, published"
    assert facts["proser"]["recipe published"] == "the defaults"
    assert "learning_rate 0.001" in facts["proser"]["recipe authors"]
    assert (facts["eos"]["needs"], facts["eos"]["extra outputs"]) == ("known, negatives", "0")


def test_every_word_is_explained() -> None:
    assert [*NEEDS] == [*get_args(Need)]
    assert [*COSTS] == [*get_args(Cost)]
    assert [*SCORE_KINDS] == [*get_args(ScoreKind)]


def test_groups_are_those_that_searches_expand() -> None:
    groups = all_methods()["groups"]
    assert {name: set(members) for name, members in groups.items()} == {
        name: set(expand_algorithms([name])) for name in ("all", "posthoc")
    }
    three = {"algorithms": [{"name": name} for name in "abc"], "groups": {"x": [*"abc"], "y": ["b"]}}
    assert groups_text(three) == "x (3), y (1, without a, c)"


# --- docstrings and plug-ins --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Base:
    """``width``: of what ``it`` is,
    in two lines."""  # noqa: D209

    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    """More.

    Attributes:
        first: One
            and more: of it.
        second: Two.

    Third: nothing.
    """

    first: float = 0.5
    second: bool = False
    third: str = "a"


@dataclass(frozen=True, kw_only=True)
class Single:
    """The whole says it."""

    only: int = 1


@dataclass(frozen=True, kw_only=True)
class Silent:
    only: int = 1


def test_meanings_are_read_from_docstrings() -> None:
    assert field_docs(Base) == {"width": "Of what `it` is, in two lines."}
    assert field_docs(Derived) == field_docs(Base) | {"first": "One and more: of it.", "second": "Two."}
    assert field_docs(Single) == {"only": "The whole says it."}
    assert field_docs(Silent) == {}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method from outside that says as little of itself as it may."""
    monkeypatch.setattr(POSTPROCESSORS, "_entries", dict(POSTPROCESSORS._entries))
    paper = "arXiv:1506.06112, arXiv:cs/0101001, doi:10.1000/a_(b), openreview a-B_1, by hand"

    @POSTPROCESSORS.register("mine", params=Silent, paper=paper, per_class=False)
    class Mine:
        def fit(self, train: Any) -> Any:
            return self

        def predict(self, inputs: Any) -> Predictions:
            raise NotImplementedError


def test_a_plugin_is_listed_and_left_out_of_the_page(plugin: None) -> None:
    methods = all_methods()
    entry = find_method(methods, "mine")
    assert (entry["label"], entry["about"], entry["grid_size"]) == ("mine", None, None)
    assert "mine" in methods["groups"]["posthoc"]
    (row,) = method_rows([entry])
    assert (row["settings"], row["needs"], row["hyperparameters"]) == ("-", "embedding", "only 1")
    assert [*fact_rows(entry)] == ["algorithm", "label", "paper", "needs", "cost", "scores", "settings"]
    assert hyperparameter_rows(entry)[0]["grid"] == "-"
    assert all_methods(plugins=False) == METHODS
