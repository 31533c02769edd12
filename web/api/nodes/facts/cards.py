"""The GPUs of a node and their holders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import GpuCard
from hetsched.inventory.models import Node
from hetsched.placement.models import HandedOut, Reservation
from web.api.documents import Document

from .origin import Origin, origin, source_of


class DeviceAllocation(Document, frozen=True):
    """GPUs granted to a pod and GPUs that its node allocated, by index; `cards` is null if unknown.

    `advisory`: another device plugin chooses the GPUs. `problem` describes a contradiction.
    """

    advisory: bool
    granted: list[int]
    cards: list[int] | None
    problem: str | None


class CardShare(Document, frozen=True):
    """The share of a GPU that one pod holds; `handedOut` is null where no agent reports device allocations."""

    pod: str
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    handed_out: DeviceAllocation | None = None


class CardFacts(Document, frozen=True):
    """One GPU and its holders; `freeMemoryMiB` is null if the memory of the GPU is unknown."""

    card: GpuCard
    free_milli: int
    free_memory_mib: int | None = msgspec.field(name="freeMemoryMiB")
    holders: list[CardShare]


class GpuFacts(Document, frozen=True):
    """Whole GPUs of a node."""

    origin: Origin
    cards: list[CardFacts]


def gpu_facts(
    node: Node, held: Iterable[Reservation], now: datetime, *, sees: Callable[[str], bool] = lambda namespace: True
) -> GpuFacts:
    """Return the node's GPUs; pods of namespaces outside the caller's scope count without their names."""
    shares: dict[int, list[CardShare]] = {}
    used: dict[int, tuple[int, int]] = {}
    handed = {row.pod_id: handed_cards(row) for row in HandedOut.objects.filter(node=node)}
    for reservation in held:
        for grant in reservation.allocation.gpus:
            if sees(reservation.pod.namespace):
                given = handed.get(reservation.pod_id)
                share = CardShare(reservation.pod.key, grant.milli, grant.memory_mib, given)
                shares.setdefault(grant.index, []).append(share)
            milli, memory = used.get(grant.index, (0, 0))
            used[grant.index] = (milli + grant.milli, memory + grant.memory_mib)
    listed = node.report.gpus is not None
    cards = []
    for card in node.report.gpus if node.report.gpus is not None else cards_of(node.report):
        milli, memory = used.get(card.index, (0, 0))
        cards.append(
            CardFacts(
                card=card,
                free_milli=max(1000 - milli, 0) if card.healthy else 0,
                free_memory_mib=None if card.memory_mib is None else max(card.memory_mib - memory, 0),
                holders=shares.get(card.index, []),
            )
        )
    source = source_of(node, "gpu") if listed else "allocatable and labels"
    return GpuFacts(origin(node, now, source=source), cards)


def handed_cards(row: HandedOut) -> DeviceAllocation:
    cards = None if row.cards is None else sorted(row.cards)
    return DeviceAllocation(row.advisory, sorted(grant.index for grant in row.granted), cards, row.problem or None)
