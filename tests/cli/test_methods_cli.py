"""``oscbench methods``: tables, one method, a loss, a group, and JSON that agrees with the registries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from oscbench.losses import LOSSES
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import expand_algorithms

Run = Callable[..., tuple[object, str, str]]


def cells(table: str) -> list[list[str]]:
    """The cells of each line, without the header."""
    return [re.split(r" {2,}", line) for line in table.splitlines()[1:]]


def test_without_a_name_all_are_listed(run: Run) -> None:
    code, out, err = run("methods")
    assert (code, err) == (0, "")
    algorithms, losses, groups = out.split("\n\n")
    header = ["name", "label", "cost", "settings", "needs", "paper", "hyperparameters"]
    assert algorithms.splitlines()[0].split() == header
    assert [row[0] for row in cells(algorithms)] == sorted(POSTPROCESSORS.names())
    assert [row[0] for row in cells(losses)] == sorted(LOSSES.names())
    evm = ["evm", "EVM", "pairs", "80", "embedding", "arXiv:1506.06112"]
    defaults = "tail_size 1000, distance_multiplier 0.4, cover_threshold 1, metric cosine, negatives false"
    assert [*evm, defaults] in cells(algorithms)
    assert ["mss", "MSS", "logits", "1", "logits", "arXiv:1610.02136", "-"] in cells(algorithms)
    assert ["garbage", "Garbage", "1", "known, negatives", "arXiv:2210.06789", "-"] in cells(losses)
    assert re.fullmatch(r"groups of algorithms for --alg: all \(\d+\), posthoc \(\d+, without proser\)\n", groups)


@pytest.mark.parametrize(("name", "registry"), [("gen", POSTPROCESSORS), ("objectosphere", LOSSES)])
def test_one_method_says_what_it_is(run: Run, name: str, registry: object) -> None:
    code, out, err = run("methods", name)
    assert (code, err) == (0, "")
    facts, table = out.split("\n\n")
    said = dict(re.split(r" {2,}", line, maxsplit=1) for line in facts.splitlines())
    entry = registry.info(name)
    assert [said[title] for title in ("idea", "formula", "good for", "poor for")] == [*entry.about]
    assert said["label"] == entry.label
    assert re.search(r"  https://\S+$", said["paper"])
    assert [row[0] for row in cells(table)] == [*entry.params.__dataclass_fields__]


def test_words_are_explained(run: Run) -> None:
    out = run("methods", "knn")[1]
    assert re.search(r"^needs +pooled: the penultimate layer", out, flags=re.MULTILINE)
    assert re.search(r"^cost +pairs: O\(NP\)", out, flags=re.MULTILINE)
    assert re.search(r"^scores +native: ", out, flags=re.MULTILINE)


def test_a_method_without_hyperparameters_has_no_table(run: Run) -> None:
    out = run("methods", "mss")[1]
    assert out.startswith("algorithm  mss\n")
    assert "\n\n" not in out


def test_a_group_lists_its_members(run: Run) -> None:
    code, out, _ = run("methods", "posthoc")
    assert code == 0
    assert [row[0] for row in cells(out)] == sorted(expand_algorithms(["posthoc"]))


def test_json_agrees_with_the_registries(run: Run) -> None:
    document = json.loads(run("methods", "--json")[1])
    assert [*document] == ["algorithms", "losses", "groups"]
    assert [entry["name"] for entry in document["losses"]] == sorted(LOSSES.names())
    assert [entry["name"] for entry in document["algorithms"]] == sorted(POSTPROCESSORS.names())
    for entry in document["algorithms"]:
        method = POSTPROCESSORS.info(entry["name"])
        assert set(entry["needs"]) == method.needs
        assert (entry["label"], entry["cost"], entry["paper"]) == (method.label, method.cost, method.paper)
        assert tuple(entry["score_kinds"]) == method.score_kinds
        assert entry["recipes"] == method.recipes
    for entry in document["losses"]:
        spec = LOSSES.get(entry["name"])
        assert entry["extra_outputs"] == spec.extra_outputs
        assert ("negatives" in entry["needs"]) == spec.uses_negatives
    by_name = {entry["name"]: entry for entry in (*document["algorithms"], *document["losses"])}
    for name in ("evm", "eos"):
        assert json.loads(run("methods", name, "--json")[1]) == by_name[name]
    group = json.loads(run("methods", "posthoc", "--json")[1])
    assert group == {"group": "posthoc", "algorithms": [by_name[name] for name in document["groups"]["posthoc"]]}


@pytest.mark.parametrize(
    ("name", "near"),
    [("openmx", "'openmax'"), ("EVM", "'evm'"), ("garbgae", "'garbage'"), ("posthok", "'posthoc'")],
)
def test_an_unknown_name_is_refused_with_the_nearest(run: Run, name: str, near: str) -> None:
    code, out, err = run("methods", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: unknown method {name!r}, did you mean {near}? (one of ")
    assert err.count("\n") == 1


def test_neither_ray_nor_pandas_is_loaded() -> None:
    program = (
        "import sys\nfrom oscbench.cli import main\ntry:\n    main(['methods'])\nexcept SystemExit:\n"
        "    print(*[name for name in ('ray', 'pandas', 'matplotlib') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("name ")
    assert done.stderr.split() == []
