"""Devices that the kubelet counts: slots of GPUs, not GPUs.

The kubelet assigns whole devices and chooses them itself; GPUs are shared, and chosen by the control plane. Every GPU
has as many slots as containers may share it, `UUID::0`, `UUID::1`…; a single slot has the GPU's UUID as its ID. A slot
has the zone and the health of its GPU, for the kubelet's own alignment. A container gets the GPU granted to its pod,
not the one of its slot; the plugin prefers slots of the granted GPU, so the two differ only if the kubelet insists. A
GPU partitioned by MIG is no whole GPU and has no slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..gpus.readings import CardReading


class Card(msgspec.Struct, frozen=True):
    """GPU that can be assigned. `id` is its UUID, else its PCI address; `minor` numbers its device node."""

    index: int
    id: str
    vendor: str
    minor: int | None = None
    zone: int | None = None
    healthy: bool = True
    memory_mib: int | None = None


class Slot(msgspec.Struct, frozen=True):
    """One device of the kubelet."""

    id: str
    card: Card


def cards_from(readings: Sequence[CardReading], zones: dict[int, int | None], vendor: str) -> tuple[Card, ...]:
    """Return the whole GPUs of a vendor among the readings; `zones` are by index."""
    found = []
    for reading in readings:
        identity = reading.uuid or reading.pci_address
        if reading.vendor != vendor or reading.mig_devices or identity is None or reading.index is None:
            continue
        # A GPU without facts of a driver cannot be used by a container either.
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
    """Return the slots of GPUs, `count` each."""
    return tuple(Slot(card.id if count == 1 else f"{card.id}::{n}", card) for card in cards for n in range(count))
