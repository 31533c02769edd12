"""Booking: a pod on a node, its allocation, and the resulting load on the node's columns.

Invariant: charging with -1 restores every cell that charging with 1 changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hetsched.contracts.allocation import Allocation, CardGrant
from hetsched.contracts.node_report import GpuCard
from hetsched.contracts.workload import PodSpec
from hetsched.engine.framework.request import CompiledShape

from .columns import WHOLE_CARD_MILLI, Columns

if TYPE_CHECKING:
    from hetsched.engine.numa.zones import Zones


class Booking(msgspec.Struct, eq=False, gc=False):
    """One pod on one node with its allocation."""

    pod: PodSpec
    compiled: CompiledShape
    row: int
    allocation: Allocation


def charge_amounts(booking: Booking, sign: int, columns: Columns, zones: Zones) -> None:
    """Add a booking's allocation to the load of its row (`sign` 1), or subtract it (-1)."""
    row, compiled, layout = booking.row, booking.compiled, columns.layout
    if sign > 0:
        columns.load[:, row] += compiled.delta
    else:
        columns.load[:, row] -= compiled.delta
    if compiled.expected_extra is not None:
        measured = columns.static[layout.static["measured"], row]
        columns.load[layout.load["used"], row] += sign * measured * compiled.expected_extra
    if booking.allocation.gpus:
        milli, memory = layout.load["card_milli_free"].start, layout.load["card_memory_free"].start  # type: ignore[union-attr]
        for card in booking.allocation.gpus:
            if card.index < layout.cards:
                columns.load[milli + card.index, row] -= sign * card.milli
                columns.load[memory + card.index, row] -= sign * card.memory_mib
    if booking.allocation.zones or booking.allocation.predicted or row in zones.grants:
        zones.charge(booking, sign, columns)


def grant_card(card: GpuCard, milli: int, memory_mib: int) -> CardGrant:
    """Return the grant of a share of a GPU with its memory.

    The memory is all of it for a whole GPU, else the requested memory or, without a request, a proportional part.
    """
    total = card.memory_mib or 0
    if milli >= WHOLE_CARD_MILLI:
        charged = total
    else:
        charged = memory_mib or -(-total * milli // WHOLE_CARD_MILLI)
    return CardGrant(card.index, milli, charged, card.uuid)
