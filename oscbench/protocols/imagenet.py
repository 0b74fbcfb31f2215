"""Protocols 1, 2 and 3 on ILSVRC-2012: the published class lists.

Source: Large-Scale Open-Set Classification Protocols for ImageNet, Tables 3-5 of its supplement.
"""

from __future__ import annotations

from functools import cache

from oscbench.protocols.base import ROLES, Protocol, Role, make_protocol
from oscbench.protocols.wordnet import read_table


@cache
def published_protocol(name: str) -> Protocol:
    """``p1``, ``p2`` or ``p3`` from the shipped lists, which are those that the paper prints."""
    roles: dict[Role, dict[str, str]] = {role: {} for role in ROLES}
    for row in read_table("classes.csv"):
        if f"p{row['protocol']}" == name:
            role = next(role for role in ROLES if role == row["role"])
            roles[role][row["wnid"]] = row["wordnet_name"]
    return make_protocol(name, roles, "classes.csv")
