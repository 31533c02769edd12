"""The GPU tab of a node: allocations, free share, and the largest request that fits.

Allocation and utilisation are separate columns; utilisation is unknown if nothing measures single GPUs. Owners have the
same colour and pattern on all tabs of a node. The query string may contain a preview.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from hetsched.adapters.node_facts.fact_text import card_name
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation
from web.api.nodes import facts

from ..amounts import mib_words
from .candidate import CandidateUse
from .holders import holders

OWNER_COLOURS = 6
WHOLE = 1000
Context = dict[str, Any]


def owner_colours(owners: Iterable[str]) -> dict[str, int]:
    """Assign a colour to each owner, in name order, so that the colours stay the same after a redraw."""
    return {owner: place % OWNER_COLOURS + 1 for place, owner in enumerate(sorted(set(owners)))}


def board(node: Node, reservations: list[Reservation], candidate: CandidateUse) -> Context:
    """Return the context of the GPU tab."""
    shown = facts.gpu_facts(node, reservations, timezone.now())
    colours = owner_colours(holder.pod for card in shown.cards for holder in card.holders)
    known = holders(reservations)
    row = facts.stated(node)
    missing = {item.item for item in row.quarantined if item.change == "shrunk"} if row is not None else set()
    cards = [
        {
            "card": card.card,
            "missing": card_name(card.card) in missing,
            "memory": mib_words(card.card.memory_mib),
            "free_milli": card.free_milli,
            "free_memory": mib_words(card.free_memory_mib),
            "memory_known": card.card.memory_mib is not None,
            "memory_used_ratio": _memory_ratio(card),
            "allocated": WHOLE - card.free_milli if card.card.healthy else None,
            "largest": _largest(card),
            "ghost": _candidate_share(card, candidate),
            "slices": [
                {
                    "pod": holder.pod,
                    "holder": known.get(holder.pod),
                    "milli": holder.milli,
                    "memory": mib_words(holder.memory_mib),
                    "ratio": holder.milli / WHOLE,
                    "memory_ratio": holder.memory_mib / card.card.memory_mib if card.card.memory_mib else 0,
                    "colour": colours[holder.pod],
                    "handed": holder.handed_out,
                }
                for holder in card.holders
            ],
        }
        for card in shown.cards
    ]
    handed = [holder.handed_out for card in shown.cards for holder in card.holders if holder.handed_out is not None]
    return {
        "gpu": shown,
        "cards": cards,
        "largest": _largest_of_all(shown.cards),
        "whole_free": sum(card.free_milli == WHOLE for card in shown.cards),
        "mig": _mig(node),
        "linked": any(card.card.links for card in shown.cards),
        "advisory": any(allocation.advisory for allocation in handed),
        "conflicts": any(allocation.problem for allocation in handed),
        "ghost_lost": sorted(set(candidate.cards) - {card.card.index for card in shown.cards}),
        "ghost": candidate,
    }


def _memory_ratio(card: facts.CardFacts) -> float:
    whole, free = card.card.memory_mib, card.free_memory_mib
    return (whole - free) / whole if whole and free is not None else 0.0


def _largest(card: facts.CardFacts) -> str:
    """Describe the largest request that fits on a GPU."""
    if card.card.maintenance:
        return _("none (in maintenance)")
    if not card.card.healthy:
        return _("none (not available)")
    if card.free_milli == 0 or card.free_memory_mib == 0:
        return _("none")
    memory = mib_words(card.free_memory_mib) or _("unknown memory")
    if card.free_milli == WHOLE:
        return _("whole GPU, %(memory)s") % {"memory": memory}
    return _("%(milli)d ‰ of a GPU, %(memory)s") % {"milli": card.free_milli, "memory": memory}


def _largest_of_all(cards: list[facts.CardFacts]) -> dict[str, Any] | None:
    """Return the GPU with the largest free share; among equal GPUs, the one with the most free memory."""
    usable = [card for card in cards if card.card.healthy and card.free_milli and card.free_memory_mib != 0]
    best = max(usable, key=lambda card: (card.free_milli, card.free_memory_mib or 0, -card.card.index), default=None)
    return None if best is None else {"index": best.card.index, "text": _largest(best)}


def _candidate_share(card: facts.CardFacts, candidate: CandidateUse) -> Context | None:
    """Return the share that the previewed candidate would use, and whether it is free."""
    milli = candidate.cards.get(card.card.index)
    if not milli:
        return None
    return {"milli": milli, "ratio": min(milli, card.free_milli) / WHOLE, "fits": milli <= card.free_milli}


def _mig(node: Node) -> list[Context]:
    """Return the MIG devices that the node offers in addition to whole GPUs."""
    return [
        {"name": name, "whole": whole, "requested": node.requested.get(name, 0)}
        for name, whole in sorted(node.allocatable.items())
        if "/mig-" in name
    ]
