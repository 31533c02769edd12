"""New GPU reservations of pods, derived from the devices that the kubelet allocated to them.

If another device plugin assigns the GPUs, a pod may use a GPU that is reserved for another pod. The reservations must
be corrected without assigning one GPU twice.
The reservation of a pod moves to its allocated GPUs. If such a GPU is reserved for another pod without an allocation
yet, the reservation of that pod moves to an equivalent GPU (same model, no less memory) with free capacity. If two pods
have the same GPU, or no equivalent GPU is free, the affected pods keep their reservations, and a problem is reported
for each of them. The text of a problem does not name other pods, because its readers may have no access to them.
Invariants: pure functions; no GPU becomes overallocated by a move; a pod that does not move keeps its grants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.node_report import GpuCard

WHOLE_MILLI = 1000
Grants = tuple[CardGrant, ...]


class GpuHolder(msgspec.Struct, frozen=True):
    """A pod and its reserved GPUs; `has` lists the GPUs that the kubelet allocated to it, or is None if unknown."""

    key: str
    grants: Grants
    has: tuple[int, ...] | None = None


class Moves(msgspec.Struct):
    """The result of `plan_moves`: new grants by pod key, and a sentence for each pod with a problem."""

    grants: dict[str, Grants] = {}
    problems: dict[str, str] = {}


def plan_moves(holders: Sequence[GpuHolder], cards: Mapping[int, GpuCard]) -> Moves:
    """Return the changes that make the reservations of one node match the device allocations."""
    moves = Moves()
    held = {holder.key: holder.grants for holder in holders}
    wanted: dict[str, Grants] = {}
    for holder in holders:
        if holder.has is None or set(holder.has) == {grant.index for grant in holder.grants}:
            continue
        if len(holder.has) != len(holder.grants):
            moves.problems[holder.key] = Message(
                "the kubelet allocated {text}, but the number of GPUs assigned by hetsched is {n}; additional GPUs "
                "are not reserved",
                n=len(holder.grants),
                text=_names(holder.has),
            )
            continue
        wanted[holder.key] = _plan_grants(holder, cards)
    waiting = {holder.key for holder in holders if holder.has is None}
    while wanted:
        trial = {**held, **wanted}
        _relocate_pending(trial, waiting, cards)
        overfull = _overfull(trial)
        if not overfull:
            moves.grants = {key: grants for key, grants in trial.items() if grants != held[key]}
            break
        # The last pod in conflict keeps its reservation. The loop ends, because a plan without moves is always valid.
        stays = [key for key in wanted if any(grant.index in overfull for grant in wanted[key])] or list(wanted)
        index = next((grant.index for grant in wanted[stays[-1]] if grant.index in overfull), min(overfull))
        others = sorted(key for key in overfull[index] if key != stays[-1])
        moves.problems[stays[-1]] = Message(
            "the kubelet allocated GPU {card}, which is also assigned to another pod", card=index
        )
        for other in others:
            moves.problems.setdefault(
                other, Message("the kubelet also allocated the pod's GPU {card} to another pod", card=index)
            )
        del wanted[stays[-1]]
    return moves


def _plan_grants(holder: GpuHolder, cards: Mapping[int, GpuCard]) -> Grants:
    """Return a pod's grants on its allocated GPUs; grants that already name such a GPU stay unchanged."""
    assert holder.has is not None
    free = sorted(set(holder.has) - {grant.index for grant in holder.grants})
    return tuple(
        grant if grant.index in holder.has else _move_grant(grant, free.pop(0), cards) for grant in holder.grants
    )


def _move_grant(grant: CardGrant, index: int, cards: Mapping[int, GpuCard]) -> CardGrant:
    card = cards[index]
    memory = (card.memory_mib or 0) if grant.milli >= WHOLE_MILLI else grant.memory_mib
    return CardGrant(index, grant.milli, memory, card.uuid)


def _relocate_pending(trial: dict[str, Grants], waiting: set[str], cards: Mapping[int, GpuCard]) -> None:
    """Move pods that have no allocation yet from overallocated GPUs to equivalent free GPUs."""
    for key in sorted(waiting):
        for place, grant in enumerate(trial[key]):
            if len(_overfull(trial).get(grant.index, ())) == 0:
                continue
            used = _used(trial)
            mine = {other.index for other in trial[key]}
            for index in sorted(cards):
                as_good = _can_replace(cards[index], cards.get(grant.index))
                if index not in mine and as_good and used[index] + grant.milli <= WHOLE_MILLI:
                    moved = _move_grant(grant, index, cards)
                    trial[key] = (*trial[key][:place], moved, *trial[key][place + 1 :])
                    break


def _can_replace(card: GpuCard, than: GpuCard | None) -> bool:
    if than is None or not card.healthy or card.model is None or card.model != than.model:
        return False
    return (card.memory_mib or 0) >= (than.memory_mib or 0)


def _used(held: Mapping[str, Grants]) -> dict[int, int]:
    used: dict[int, int] = defaultdict(int)
    for grants in held.values():
        for grant in grants:
            used[grant.index] += grant.milli
    return used


def _overfull(held: Mapping[str, Grants]) -> dict[int, list[str]]:
    """Return the overallocated GPUs with the pods that hold them."""
    overfull = {index for index, milli in _used(held).items() if milli > WHOLE_MILLI}
    return {
        index: [key for key, grants in held.items() if any(grant.index == index for grant in grants)]
        for index in overfull
    }


def _names(cards: Sequence[int]) -> Message:
    return joined(", ", [Message("GPU {card}", card=index) for index in sorted(cards)]) if cards else Message("none")
