"""The rules by which the published class lists follow from WordNet, as an independent check of the shipped lists.

Source: Large-Scale Open-Set Classification Protocols for ImageNet, Tables 3-5 of its supplement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oscbench.protocols.base import ROLES, Role

ClassesBelow = Callable[[str], list[str]]
"""Sorted ILSVRC wnids below a synset."""

DOG, HUNTING_DOG, TOY_DOG = "n02084071", "n02087122", "n02085374"
FOX, WILD_DOG, WOLF, FELINE, BEAR = "n02118333", "n02115335", "n02114100", "n02120997", "n02131653"
MUSTELINE, UNGULATE, PRIMATE, MONKEY = "n02441326", "n02370806", "n02469914", "n02484322"
FOOD, MOTOR_VEHICLE, DEVICE = "n07555863", "n03791235", "n03183080"
BIRD, INSECT, FISH, REPTILE = "n01503061", "n02159955", "n02512053", "n01661091"
FURNITURE, CAR, TRUCK, BOAT, AIRCRAFT = "n03405725", "n02958343", "n04490091", "n02858304", "n02686568"
FRUIT, FUNGUS, VEGETABLE, COMPUTER, CLOTHING = "n13134947", "n12992868", "n07707451", "n03082979", "n03051540"

_WILD_ANIMALS = (FOX, WILD_DOG, WOLF, FELINE, BEAR, MUSTELINE, UNGULATE)
_MIXED = (DOG, BIRD, INSECT, FURNITURE, FISH, MONKEY, CAR, FELINE, TRUCK, FRUIT, FUNGUS, BOAT, COMPUTER)


def derive_classes(number: int, below: ClassesBelow) -> dict[Role, list[str]]:
    """The wnids of each role of a published protocol in printed order, from the tree alone.

    Args:
        number: 1, 2 or 3.
        below: The tree: sorted ILSVRC wnids below a synset. ``load_tree().classes_below`` gives the printed lists.
    """
    return {1: _derive_first, 2: _derive_second, 3: _derive_third}[number](below)


def _derive_first(below: ClassesBelow) -> dict[Role, list[str]]:
    """All dogs against other mammals; things and food are unknown."""
    return {
        "known": below(DOG),
        "negative": _all_below(below, (*_WILD_ANIMALS, PRIMATE)),
        "unknown": _all_below(below, (FOOD, MOTOR_VEHICLE, DEVICE)),
    }


def _derive_second(below: ClassesBelow) -> dict[Role, list[str]]:
    """Half of the hunting dogs against the other half; other animals are unknown."""
    hunting_dogs = below(HUNTING_DOG)
    half = len(hunting_dogs) // 2
    unknown = _all_below(below, (TOY_DOG, *_WILD_ANIMALS))
    return {"known": hunting_dogs[:half], "negative": hunting_dogs[half:], "unknown": unknown}


def _derive_third(below: ClassesBelow) -> dict[Role, list[str]]:
    """Of each of 13 groups every other class is known; of the rest every third is unknown, the others negative."""
    roles: dict[Role, list[str]] = {role: [] for role in ROLES}
    for group in _MIXED:
        for place, wnid in enumerate(below(group)):
            role: Role = "known" if place % 2 == 0 else "unknown" if place % 3 == 0 else "negative"
            roles[role].append(wnid)
    roles["unknown"] += _all_below(below, (REPTILE, CLOTHING, UNGULATE, VEGETABLE, AIRCRAFT))
    return roles


def _all_below(below: ClassesBelow, groups: Iterable[str]) -> list[str]:
    return [wnid for group in groups for wnid in below(group)]
