"""Choose the pod of an Allocate call, and the GPUs of its container.

The kubelet requests devices while it admits a pod, and the request does not identify the pod. It admits pods one after
the other, and requests devices for the containers of a pod one after the other. Therefore the pod must be one whose
verified grant is not yet fully assigned to its containers. Candidates, in this order:

    the pod to which the requested slots are assigned, if the kubelet requests the slots of an init container again
    the pod of which only some containers have their GPUs
    pods whose whole grant has as many GPUs as requested, in the order in which the grants arrived
    pods whose grant has more GPUs, in the same order

Two pods whose grants have the same number of GPUs cannot be distinguished, so each may get the GPUs of the other pod's
grant; no pod gets GPUs of both grants. The agent reports the actual assignment by pod, and the control plane records it
and changes the grants accordingly. An assignment entry therefore belongs to its own pod while that pod's grant contains
the entry's GPUs, and otherwise to the pod whose grant now contains them.
Invariants: no side effects; no assignment without a grant; no GPU is overallocated, regardless of the grants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from hetsched.contracts.objects.allocation import CardGrant

from .assignments import AssignedGpus
from .slots import Card

WHOLE_MILLI = 1000


class PodGrant(msgspec.Struct, frozen=True):
    """GPUs granted to one pod of this node by the control plane."""

    uid: str
    cards: tuple[CardGrant, ...]


class PodSelection(msgspec.Struct, frozen=True):
    """Chosen pod with the GPUs for one container; `sure` is true if no other pod matches the request."""

    uid: str
    cards: tuple[tuple[Card, CardGrant], ...]
    sure: bool = True


def choose(
    slots: Sequence[str], grants: Sequence[PodGrant], entries: Sequence[AssignedGpus], cards: Mapping[str, Card]
) -> PodSelection | None:
    """Return the GPUs for the container that requests these slots, or None if no grant matches."""
    by_uid = {grant.uid: grant for grant in grants}
    owners = _owners(grants, entries, cards)
    named = [place for place, entry in enumerate(entries) if not entry.cards.keys().isdisjoint(slots)]
    # Earlier entries of the requested slots no longer count: they belong to an init container of the pod or have
    # expired.
    remaining = [
        (entry, owner) for place, (entry, owner) in enumerate(zip(entries, owners, strict=True)) if place not in named
    ]
    used = _used(entry for entry, _ in remaining)
    given: dict[str, set[str]] = {grant.uid: set() for grant in grants}
    for entry, owner in remaining:
        if owner is not None:
            given[owner] |= set(entry.cards.values())
    again = {owners[place] for place in named} & by_uid.keys()
    if len(again) == 1:
        uid = again.pop()
        assert uid is not None
        had = {card for place in named for card in entries[place].cards.values()}
        found = _next_gpus(by_uid[uid], len(slots), given[uid], used, cards, had)
        if found is not None:
            return PodSelection(uid, found)
    takes = {grant.uid: _next_gpus(grant, len(slots), given[grant.uid], used, cards) for grant in grants}
    able = [grant for grant in grants if takes[grant.uid] is not None]
    begun = [grant for grant in able if given[grant.uid]]
    whole = [grant for grant in able if len(grant.cards) == len(slots)]
    for some in (begun, whole, able):
        for grant in some[:1]:
            return PodSelection(grant.uid, takes[grant.uid] or (), sure=len(some) == 1)
    return None


def _owners(grants: Sequence[PodGrant], entries: Sequence[AssignedGpus], cards: Mapping[str, Card]) -> list[str | None]:
    """Return the pod that each entry belongs to, or None if no grant contains the GPUs of the entry."""
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


def _used(entries: Iterable[AssignedGpus]) -> Counter[str]:
    used: Counter[str] = Counter()
    for entry in entries:
        for slot, card in entry.cards.items():
            used[card] += entry.millis.get(slot, WHOLE_MILLI)
    return used


def _next_gpus(
    grant: PodGrant,
    count: int,
    given: Collection[str],
    used: Mapping[str, int],
    cards: Mapping[str, Card],
    first: Collection[str] = (),
) -> tuple[tuple[Card, CardGrant], ...] | None:
    """Return the next `count` GPUs of a grant: those in `first`, then the others in the order of the grant.

    GPUs in `given` are excluded. Returns None if too few GPUs remain, or if one of them is missing, unhealthy, or used
    so much that the granted share does not fit.
    """
    found: list[tuple[Card, CardGrant]] = []
    for share in grant.cards:
        card = card_of(share, cards)
        if card is not None and card.id in given:
            continue
        if card is None or not card.healthy or used.get(card.id, 0) + share.milli > WHOLE_MILLI:
            return None
        found.append((card, share))
    found.sort(key=lambda pair: pair[0].id not in first)  # a stable sort, so the others stay in the order of the grant
    return tuple(found[:count]) if len(found) >= count else None


def card_of(share: CardGrant, cards: Mapping[str, Card]) -> Card | None:
    """Return the GPU of a share: by UUID, or by index if the grant has no UUID."""
    if share.uuid:
        return cards.get(share.uuid)
    return next((card for card in cards.values() if card.index == share.index), None)
