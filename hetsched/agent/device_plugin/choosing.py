"""Which pod the kubelet asks for, and which cards its container gets.

Problem: the kubelet asks for devices while it admits a pod, and does not say which pod.
Rule: it admits one pod after the other, and each pod's containers one after the other. So the pod it asks for is one
that has a verified grant which its containers were not given yet. Of these, in this order,
    the pod whose slots the kubelet names again: its init container had them
    the pod of which some containers have their cards and others do not yet
    pods whose whole grant is as many cards as are asked for, in the order in which the grants came
    pods whose grant is larger, likewise
Two that cannot be told apart are then granted alike in number; each still gets cards that only one grant names, and
what came of it is read back by pod, so that the control plane books it and grants accordingly. An entry therefore
counts for its own pod as long as that pod's grant names its cards, else for the pod whose grant names them by now.
Invariants: pure; nothing without a grant; no card is given beyond its whole, whatever the grants say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from hetsched.contracts.allocation import CardGrant

from .handed import Entry
from .slots import Card

WHOLE_MILLI = 1000


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
    by_uid = {grant.uid: grant for grant in grants}
    owners = _owners(grants, entries, cards)
    named = [place for place, entry in enumerate(entries) if not entry.cards.keys().isdisjoint(slots)]
    # A container that has a slot no more has its card no more either: its pod's init container did, or one of the past.
    left = [
        (entry, owner) for place, (entry, owner) in enumerate(zip(entries, owners, strict=True)) if place not in named
    ]
    used = _used(entry for entry, _ in left)
    given: dict[str, set[str]] = {grant.uid: set() for grant in grants}
    for entry, owner in left:
        if owner is not None:
            given[owner] |= set(entry.cards.values())
    again = {owners[place] for place in named} & by_uid.keys()
    if len(again) == 1:
        uid = again.pop()
        assert uid is not None
        had = {card for place in named for card in entries[place].cards.values()}
        found = _take(by_uid[uid], len(slots), given[uid], used, cards, had)
        if found is not None:
            return Chosen(uid, found)
    takes = {grant.uid: _take(grant, len(slots), given[grant.uid], used, cards) for grant in grants}
    able = [grant for grant in grants if takes[grant.uid] is not None]
    begun = [grant for grant in able if given[grant.uid]]
    whole = [grant for grant in able if len(grant.cards) == len(slots)]
    for some in (begun, whole, able):
        for grant in some[:1]:
            return Chosen(grant.uid, takes[grant.uid] or (), sure=len(some) == 1)
    return None


def _owners(grants: Sequence[PodGrant], entries: Sequence[Entry], cards: Mapping[str, Card]) -> list[str | None]:
    """Return for each entry the pod that it counts for, None where no grant names its cards any more."""
    named = {grant.uid: {card.id for share in grant.cards if (card := card_of(share, cards))} for grant in grants}
    own = [entry.uid if named.get(entry.uid, set()) >= set(entry.cards.values()) else None for entry in entries]
    taken = {uid for uid in own if uid is not None}
    owners: list[str | None] = []
    for entry, uid in zip(entries, own, strict=True):
        if uid is None:
            others = (other for other in named if other not in taken and named[other] >= set(entry.cards.values()))
            uid = next(others, None)
            if uid is not None:
                taken.add(uid)
        owners.append(uid)
    return owners


def _used(entries: Iterable[Entry]) -> Counter[str]:
    used: Counter[str] = Counter()
    for entry in entries:
        for slot, card in entry.cards.items():
            used[card] += entry.millis.get(slot, WHOLE_MILLI)
    return used


def _take(
    grant: PodGrant,
    count: int,
    given: Collection[str],
    used: Mapping[str, int],
    cards: Mapping[str, Card],
    first: Collection[str] = (),
) -> tuple[tuple[Card, CardGrant], ...] | None:
    """Return the next cards of a grant, None where one of them is ill, not there, or another container's."""
    found: list[tuple[Card, CardGrant]] = []
    for share in grant.cards:
        card = card_of(share, cards)
        if card is not None and card.id in given:
            continue
        if card is None or not card.healthy or used.get(card.id, 0) + share.milli > WHOLE_MILLI:
            return None
        found.append((card, share))
    found.sort(key=lambda pair: pair[0].id not in first)  # stable: else the order of the grant
    return tuple(found[:count]) if len(found) >= count else None


def card_of(share: CardGrant, cards: Mapping[str, Card]) -> Card | None:
    """Return the card that a share names: by uuid, by index only where the grant has none."""
    if share.uuid:
        return cards.get(share.uuid)
    return next((card for card in cards.values() if card.index == share.index), None)
