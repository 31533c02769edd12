"""Slots of GPUs, which the kubelet manages as devices in place of the GPUs.

The kubelet assigns whole devices and chooses them itself, but GPUs can be shared and are chosen by the control plane.
Every GPU therefore has one slot for each container that may share it: `UUID::0`, `UUID::1`…. If there is only one slot,
its ID is the GPU's UUID. A slot has the zone and the health of its GPU, which the kubelet uses for alignment. A
container gets the GPU granted to its pod, which may differ from the GPU of its slot. The plugin recommends slots of the
granted GPUs to the kubelet, so the GPU of a slot and the assigned GPU differ only if the kubelet chooses another slot.
A GPU partitioned by MIG has no slots, because it cannot be assigned as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..gpus.readings import CardReading


class Card(msgspec.Struct, frozen=True):
    """A GPU that can be assigned. `id` is its UUID, else its PCI address; `minor` is the number of its device node."""

    index: int
    id: str
    vendor: str
    minor: int | None = None
    zone: int | None = None
    healthy: bool = True
    memory_mib: int | None = None


class Slot(msgspec.Struct, frozen=True):
    """One device in the kubelet's view: a slot of a GPU."""

    id: str
    card: Card


def cards_from(readings: Sequence[CardReading], zones: dict[int, int | None], vendor: str) -> tuple[Card, ...]:
    """Return a vendor's whole GPUs among the readings; `zones` maps GPU indexes to NUMA zones."""
    found = []
    for reading in readings:
        identity = reading.uuid or reading.pci_address
        if reading.vendor != vendor or reading.mig_devices or identity is None or reading.index is None:
            continue
        # Containers cannot use a GPU about which the driver reports nothing, so such a GPU counts as unhealthy.
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
    """Return `count` slots for each GPU."""
    return tuple(Slot(card.id if count == 1 else f"{card.id}::{n}", card) for card in cards for n in range(count))
