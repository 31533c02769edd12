"""Cards and zones in maintenance: nothing new is placed on them until a moment; what holds them stays.

Rule: a card in maintenance takes nothing, a zone leaves no CPU to pods which ask for zones; in a cluster thought empty
both are there, so that a pod which only they could take waits for them. Both are overrides of an operator's, so they
end by themselves and are shown with the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.facts import Override
from hetsched.journal.audit import Actor

from .fact_review import override
from .models import Cluster, Node
from .overrides import MAINTENANCE

_STATED = {"card": ("card", MAINTENANCE), "zone": ("offline-capacity", "0")}


class Maintenance(msgspec.Struct, frozen=True, rename="camel"):
    """A card or a zone of a node that takes nothing new, until when, and why."""

    part: str
    name: str
    until: str
    since: str
    by: str
    reason: str


def maintain(
    cluster: Cluster, node_name: str, part: str, name: str, until: str | None, *, actor: Actor, reason: str
) -> Node:
    """Keep new pods off a card or a zone until a moment; a moment of None ends its maintenance.

    `part` is card or zone; `name` is a card's index, or the name of a zone.
    Raises: InputError `NodeUnknown`, `ReasonMissing`, `PartUnknown`, `FactUnknown`, `ExpiryInvalid`.
    """
    if part not in _STATED:
        raise InputError("PartUnknown", f"{part[:40]!r} is not maintained", place="part", hint="Known: card, zone")
    kind, value = _STATED[part]
    stated, action = (value, "node.maintenance") if until is not None else (None, "node.maintenance-end")
    return override(cluster, node_name, f"{kind}.{name}", stated, until, actor=actor, reason=reason, action=action)


def in_maintenance(overrides: Iterable[Override]) -> list[Maintenance]:
    """Return the cards and zones that are in maintenance."""
    parts = {stated: part for part, stated in _STATED.items()}
    found = []
    for one in overrides:
        kind, _, name = one.fact.partition(".")
        part = parts.get((kind, one.value))
        if part is not None:
            found.append(Maintenance(part, name, one.until, one.since, one.by, one.reason))
    return found
