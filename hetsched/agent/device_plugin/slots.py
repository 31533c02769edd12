"""The devices that the kubelet counts: slots of cards, not cards.

Problem: the kubelet gives whole devices out and chooses them itself; cards are shared, and chosen elsewhere.
Rule: every card has as many slots as containers may share it, `UUID::0`, `UUID::1`…; one slot: the card's own uuid. A
slot says in which zone its card is and whether it is healthy, as the kubelet's own alignment wants to know. Which card
a container gets is not what its slot says but what its pod was granted; the plugin prefers slots of the granted card,
so the two differ only where the kubelet insists.
A card split by MIG is no whole card and has no slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..card_reading import CardReading


class Card(msgspec.Struct, frozen=True):
    """One card that can be given out. `id` is its uuid, else its PCI address; `minor` numbers its device node."""

    index: int
    id: str
    vendor: str
    minor: int | None = None
    zone: int | None = None
    healthy: bool = True
    memory_mib: int | None = None


class Slot(msgspec.Struct, frozen=True):
    """One device of the kubelet's."""

    id: str
    card: Card


def cards_from(readings: Sequence[CardReading], zones: dict[int, int | None], vendor: str) -> tuple[Card, ...]:
    """Return the whole cards of a vendor among what was read; `zones` are by index."""
    found = []
    for reading in readings:
        identity = reading.uuid or reading.pci_address
        if reading.vendor != vendor or reading.mig_devices or identity is None or reading.index is None:
            continue
        # A card of which no driver tells anything cannot be used by a container either.
        usable = reading.memory_mib is not None and not reading.troubles
        found.append(
            Card(
                reading.index,
                identity,
                vendor,
                reading.minor,
                zones.get(reading.index),
                usable and reading.healthy is not False,
                reading.memory_mib,
            )
        )
    return tuple(found)


def slots_of(cards: Sequence[Card], count: int) -> tuple[Slot, ...]:
    """Return the slots of cards, `count` each."""
    return tuple(Slot(card.id if count == 1 else f"{card.id}::{n}", card) for card in cards for n in range(count))
