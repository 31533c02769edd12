"""Which cards pods are to be booked on, now that it is known which ones they were given.

Problem: where another device plugin chooses, a pod may sit on a card that the ledger gave to its neighbour. The ledger
must follow, and must not promise one card twice while it does.
Rule: a pod moves to the cards that it has. Whoever was granted such a card and has been given nothing yet takes one
that is as good (same model, no less memory) and has room. Where the cards do not add up nevertheless, because two pods
were given one card or nothing as good is left, those pods stay where they are booked, and it is said of the pod that
stays and of whoever it meets. The words name no other pod: who reads them may not know of it.
Invariants: pure; no card is held beyond its whole, if none was before; whoever does not move keeps its grants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hetsched.contracts.allocation import CardGrant
from hetsched.contracts.node_report import GpuCard

WHOLE_MILLI = 1000
Grants = tuple[CardGrant, ...]


class Holder(msgspec.Struct, frozen=True):
    """One pod and what it is booked on; `has` are the cards it was given, None while that is not known."""

    key: str
    grants: Grants
    has: tuple[int, ...] | None = None


class Moves(msgspec.Struct):
    """New grants by pod, and what is wrong with which pods, in a sentence each."""

    grants: dict[str, Grants] = {}
    problems: dict[str, str] = {}


def moves_of(holders: Sequence[Holder], cards: Mapping[int, GpuCard]) -> Moves:
    """Return how the ledger has to follow what pods of one node were given."""
    moves = Moves()
    held = {holder.key: holder.grants for holder in holders}
    wanted: dict[str, Grants] = {}
    for holder in holders:
        if holder.has is None or set(holder.has) == {grant.index for grant in holder.grants}:
            continue
        if len(holder.has) != len(holder.grants):
            moves.problems[holder.key] = (
                f"it was granted {len(holder.grants)} cards and was given {_names(holder.has)}; what it holds beyond "
                "its grant is not booked"
            )
            continue
        wanted[holder.key] = _onto(holder, cards)
    waiting = {holder.key for holder in holders if holder.has is None}
    while wanted:
        trial = {**held, **wanted}
        _make_way(trial, waiting, cards)
        overfull = _overfull(trial)
        if not overfull:
            moves.grants = {key: grants for key, grants in trial.items() if grants != held[key]}
            break
        # The last of them stays; that nobody moves is possible always.
        stays = [key for key in wanted if any(grant.index in overfull for grant in wanted[key])] or list(wanted)
        index = next((grant.index for grant in wanted[stays[-1]] if grant.index in overfull), min(overfull))
        others = sorted(key for key in overfull[index] if key != stays[-1])
        moves.problems[stays[-1]] = f"it was given card {index}, which another pod holds too"
        for other in others:
            moves.problems.setdefault(other, f"another pod was given card {index} too, which it holds")
        del wanted[stays[-1]]
    return moves


def _onto(holder: Holder, cards: Mapping[int, GpuCard]) -> Grants:
    """Return a pod's grants on the cards that it has; those that it has already stay as they are."""
    assert holder.has is not None
    free = sorted(set(holder.has) - {grant.index for grant in holder.grants})
    return tuple(grant if grant.index in holder.has else _moved(grant, free.pop(0), cards) for grant in holder.grants)


def _moved(grant: CardGrant, index: int, cards: Mapping[int, GpuCard]) -> CardGrant:
    card = cards[index]
    memory = (card.memory_mib or 0) if grant.milli >= WHOLE_MILLI else grant.memory_mib
    return CardGrant(index, grant.milli, memory, card.uuid)


def _make_way(trial: dict[str, Grants], waiting: set[str], cards: Mapping[int, GpuCard]) -> None:
    """Let pods that were given nothing yet take other cards as good, where theirs are gone."""
    for key in sorted(waiting):
        for place, grant in enumerate(trial[key]):
            if len(_overfull(trial).get(grant.index, ())) == 0:
                continue
            used = _used(trial)
            mine = {other.index for other in trial[key]}
            for index in sorted(cards):
                as_good = _as_good(cards[index], cards.get(grant.index))
                if index not in mine and as_good and used[index] + grant.milli <= WHOLE_MILLI:
                    moved = _moved(grant, index, cards)
                    trial[key] = (*trial[key][:place], moved, *trial[key][place + 1 :])
                    break


def _as_good(card: GpuCard, than: GpuCard | None) -> bool:
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
    """Return the cards that are held beyond their whole, and by whom."""
    overfull = {index for index, milli in _used(held).items() if milli > WHOLE_MILLI}
    return {
        index: [key for key, grants in held.items() if any(grant.index == index for grant in grants)]
        for index in overfull
    }


def _names(cards: Sequence[int]) -> str:
    return ", ".join(f"card {index}" for index in sorted(cards)) or "none"
