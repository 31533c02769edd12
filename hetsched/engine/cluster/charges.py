"""Add the resources of a placed pod to the load columns of its node, or subtract them.

Invariant: subtracting restores every cell that adding changed.
"""

from __future__ import annotations

from hetsched.engine.numa.zones import Zones

from .columns import Columns
from .placed_pod import PlacedPod


def charge_amounts(placed: PlacedPod, sign: int, columns: Columns, zones: Zones) -> None:
    """Add the resources of a placed pod to the load columns of its node (`sign` 1), or subtract them (-1)."""
    row, compiled, layout = placed.row, placed.compiled, columns.layout
    if sign > 0:
        columns.load[:, row] += compiled.delta
    else:
        columns.load[:, row] -= compiled.delta
    if compiled.expected_extra is not None:
        measured = columns.static[layout.static["measured"], row]
        columns.load[layout.load["used"], row] += sign * measured * compiled.expected_extra
    if placed.allocation.gpus:
        milli, memory = layout.load["card_milli_free"].start, layout.load["card_memory_free"].start  # type: ignore[union-attr]
        for card in placed.allocation.gpus:
            if card.index < layout.cards:
                columns.load[milli + card.index, row] -= sign * card.milli
                columns.load[memory + card.index, row] -= sign * card.memory_mib
    allocation = placed.allocation
    if allocation.zones or allocation.predicted or allocation.memory or row in zones.grants:
        zones.charge(placed, sign, columns)
