"""Registration: an entry says what a method needs and gives, and a class without what it claims is refused."""

from __future__ import annotations

from typing import Any, Literal, get_origin, get_type_hints

import pytest

from oscbench.errors import UsageError
from oscbench.postprocessors import POSTPROCESSORS, OnePass, PostProcessor
from oscbench.postprocessors.base import MethodRegistry, usable_score_kind


class Whole:
    def fit(self, train: Any) -> Any: ...

    def predict(self, inputs: Any) -> Any: ...

    def score(self, inputs: Any) -> Any: ...


class OnlyDeclared(OnePass):
    """Has nothing of its own."""


class WithoutScore(PostProcessor):
    def fit(self, train: Any) -> Any: ...

    def predict(self, inputs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("method", "claims", "message"),
    [
        (OnlyDeclared, {}, "without fit, predict, score$"),
        (OnlyDeclared, {"per_class": False, "one_pass": True}, "without fit, predict, best_of_settings$"),
        (WithoutScore, {}, "without score$"),
        (Whole, {"one_pass": True}, "without best_of_settings, open_source$"),
        (Whole, {"needs": {"pool"}}, "registered with pool, which is unknown"),
        (Whole, {"score_kinds": ("logs",)}, "registered with logs, which is unknown"),
        (Whole, {"score_kinds": ()}, "without a score kind"),
    ],
)
def test_a_class_without_what_it_claims_is_refused(method: type, claims: dict[str, Any], message: str) -> None:
    registry = MethodRegistry("nothing", "algorithm")
    with pytest.raises(TypeError, match=message):
        registry.register("new", **claims)(method)
    assert registry.names() == []


def test_what_a_method_needs_and_gives_is_asked_of_the_registry() -> None:
    registry = MethodRegistry("nothing", "algorithm")
    assert registry.register("new", needs=["pooled", "head"], score_kinds=("native",))(Whole) is Whole
    assert registry.register("other", per_class=False)(WithoutScore) is WithoutScore
    new = registry.info("new")
    assert (new.needs, new.score_kinds, new.per_class, new.one_pass) == ({"pooled", "head"}, ("native",), True, False)
    assert not registry.info("other").per_class
    assert POSTPROCESSORS.info("openmax").one_pass
    assert POSTPROCESSORS.info("evm").needs == frozenset()
    assert {"arXiv:1911.11132", "arXiv:2110.06207"} == set(POSTPROCESSORS.info("mls").paper.split(", "))


def test_every_method_answers_a_request_for_what_was_published() -> None:
    kinds = {name: usable_score_kind(name, "published") for name in ("mss", "mls", "openmax", "evm")}
    assert kinds == {"mss": "published", "mls": "logit", "openmax": "published", "evm": "published"}
    with pytest.raises(UsageError, match="EVM has no score kind 'native'; use log or probability or published"):
        usable_score_kind("evm", "native")


CHOICES = [
    (name, field)
    for name in POSTPROCESSORS.names()
    for field, hint in get_type_hints(POSTPROCESSORS.info(name).params).items()
    if get_origin(hint) is Literal
]


@pytest.mark.parametrize(("name", "field"), CHOICES)
def test_an_unknown_choice_of_a_hyperparameter_is_refused(name: str, field: str) -> None:
    """Also by records made in Python: a misspelt layer would otherwise mean the other one without a word."""
    with pytest.raises(UsageError, match=f"{field} must be one of .*, got 'misspelt'"):
        POSTPROCESSORS.info(name).params(**{field: "misspelt"})
