"""Recipes: the published values, schedules by hand, impossible settings."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from oscbench.errors import UsageError
from oscbench.records import canonical_json, from_mapping
from oscbench.training.recipes import RECIPES, Recipe, TrainConfig, recipe_by_name, recipe_name


def test_published_recipes_are_as_published() -> None:
    published, sgd = RECIPES["published"], RECIPES["published-sgd"]
    assert (published.optimizer, published.learning_rate, published.epochs, published.batch_size) == (
        "adam",
        1e-3,
        120,
        64,
    )
    assert (published.schedule, published.weight_decay, published.selection) == ("constant", 0.0, "last")
    assert (sgd.optimizer, sgd.learning_rate, sgd.batch_size) == ("sgd", 1e-3, 32)


def test_constant_rate_never_changes_and_warm_up_is_linear() -> None:
    assert {Recipe().rate_at(epoch) for epoch in (0, 0.5, 60, 119.9)} == {1e-3}
    warm = Recipe(learning_rate=0.1, warmup_epochs=4)
    assert [warm.rate_at(epoch) for epoch in (0, 1, 2, 4, 50)] == pytest.approx([0, 0.025, 0.05, 0.1, 0.1])


def test_cosine_falls_to_zero_once_or_with_restarts() -> None:
    once = Recipe(learning_rate=1.0, epochs=10, schedule="cosine")
    assert [once.rate_at(epoch) for epoch in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])
    again = Recipe(learning_rate=1.0, epochs=70, schedule="cosine", restart_epochs=10)
    assert again.rate_at(2.5) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert [again.rate_at(epoch) for epoch in (5, 10, 20, 30, 50)] == pytest.approx([0.5, 1.0, 0.5, 1.0, 0.5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be > 0"),
        ({"learning_rate": math.inf}, "learning_rate must be > 0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\)"),
        ({"patience": 0}, "patience must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Recipe(**settings)


def test_unknown_recipes_get_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean 'published'"):
        recipe_by_name("publishd")


def test_settings_survive_a_round_trip() -> None:
    config = TrainConfig(
        loss="eos", loss_params={"negative_weight": 0.5}, recipe=Recipe(randaugment=(2, 9), patience=3)
    )
    assert from_mapping(TrainConfig, json.loads(canonical_json(config)), "here") == config


def test_a_recipe_is_called_by_its_name_and_what_differs() -> None:
    for name, recipe in RECIPES.items():
        assert recipe_name(recipe) == name
    changed = dataclasses.replace(RECIPES["demo"], epochs=3, label_smoothing=0.1)
    assert recipe_name(changed) == "demo, epochs=3, label_smoothing=0.1"
