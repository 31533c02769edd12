"""Which pod the kubelet asks for, and which cards its container gets.

Problem: the kubelet asks for devices while it admits a pod, and does not say which pod.
Rule: it admits one pod after the other, and each pod's containers one after the other. So the pod it asks for is one
that has a verified grant which its containers were not given yet. Of these, in this order,
    the pod whose slots the kubelet names again: its init container had them
    the pod of which some containers have their cards and others do not yet
    pods whose whole grant is as many cards as are asked for, in the order in which the grants came
    pods whose grant is larger, likewise
Two that cannot be told apart are then granted alike in number; each still gets cards that only one grant names, and
what came of it is read back by pod, so that the control plane books it.
Invariants: pure; a card is given under one grant only, or in shares that the grants add up; nothing without a grant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.allocation import CardGrant

from .handed import Entry
from .slots import Card


class PodGrant(msgspec.Struct, frozen=True):
    """The cards that the control plane granted to one pod of this node."""

    uid: str
    cards: tuple[CardGrant, ...]


class Chosen(msgspec.Struct, frozen=True):
    """A pod and its cards for one container, as many as were asked for; `sure`: no other pod could be meant."""

    uid: str
    cards: tuple[tuple[Card, CardGrant], ...]
    sure: bool = True


def choose(
    slots: Sequence[str], grants: Sequence[PodGrant], entries: Sequence[Entry], cards: Mapping[str, Card]
) -> Chosen | None:
    """Return what the container that asks for these slots gets, None where no grant is left for it."""
    by_slot = {slot: entry for entry in entries for slot in entry.cards}
    again = {by_slot[slot].uid for slot in slots if slot in by_slot}
    given = {grant.uid: _given(grant, entries, cards) for grant in grants}
    if len(again) == 1:
        uid = again.pop()
        grant = next((one for one in grants if one.uid == uid), None)
        had = frozenset(by_slot[slot].cards[slot] for slot in slots if slot in by_slot)
        found = None if grant is None else _take(grant, len(slots), given[uid] - had, cards, had)
        if found is not None:
            return Chosen(uid, found)
    open_ones = [grant for grant in grants if len(given[grant.uid]) + len(slots) <= len(grant.cards)]
    begun = [grant for grant in open_ones if given[grant.uid]]
    whole = [grant for grant in open_ones if len(grant.cards) == len(slots)]
    for some in (begun, whole, open_ones):
        for grant in some:
            found = _take(grant, len(slots), given[grant.uid], cards)
            if found is not None:
                return Chosen(grant.uid, found, sure=len(some) == 1)
    return None


def _given(grant: PodGrant, entries: Sequence[Entry], cards: Mapping[str, Card]) -> set[str]:
    """Return the cards of a grant that containers of its pod have."""
    return {card for entry in entries if entry.uid == grant.uid for card in entry.cards.values()}


def _take(
    grant: PodGrant, count: int, given: set[str], cards: Mapping[str, Card], first: frozenset[str] = frozenset()
) -> tuple[tuple[Card, CardGrant], ...] | None:
    """Return the next cards of a grant, None where one of them is not there or not healthy."""
    found: list[tuple[Card, CardGrant]] = []
    for share in grant.cards:
        card = card_of(share, cards)
        if card is None or card.id not in given:
            if card is None or not card.healthy:
                return None
            found.append((card, share))
    found.sort(key=lambda pair: pair[0].id not in first)  # stable: else the order of the grant
    return tuple(found[:count]) if len(found) >= count else None


def card_of(share: CardGrant, cards: Mapping[str, Card]) -> Card | None:
    """Return the card that a share names: by uuid, by index only where the grant has none."""
    if share.uuid:
        return cards.get(share.uuid)
    return next((card for card in cards.values() if card.index == share.index), None)
