"""A pod placed on a node, with its allocation."""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.node_report import GpuCard
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.request import CompiledShape

from .columns import WHOLE_CARD_MILLI


class PlacedPod(msgspec.Struct, eq=False, gc=False):
    """A pod placed on a node row, with its allocation."""

    pod: PodSpec
    compiled: CompiledShape
    row: int
    allocation: Allocation


def grant_card(card: GpuCard, milli: int, memory_mib: int) -> CardGrant:
    """Return the allocation of `milli` thousandths of a GPU, with the GPU memory (MiB) that belongs to it.

    A whole GPU comes with all its memory, a share with the requested memory or, without a memory request, with a
    proportional part.
    """
    total = card.memory_mib or 0
    if milli >= WHOLE_CARD_MILLI:
        charged = total
    else:
        charged = memory_mib or -(-total * milli // WHOLE_CARD_MILLI)
    return CardGrant(card.index, milli, charged, card.uuid)
