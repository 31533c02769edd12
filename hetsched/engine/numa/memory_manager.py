"""Static memory manager of the kubelet during the admission of one pod: hints and allocation by NUMA node.

State   for each NUMA node and kind of memory (`memory`, `hugepages-<size>`), the allocatable and the free bytes; the
        number of assigned blocks; and the group of NUMA nodes that these blocks use together
Hint    a set of NUMA nodes with enough free memory of every requested kind; preferred if no smaller set has enough
        allocatable memory. A node of a group serves only this group, a node that is used alone serves no group.
If no set has enough free memory, the manager has no preference, and the allocation fails after the topology manager has
admitted the pod. The memory of an init container is reused by later containers with the same affinity.
Source: kubernetes pkg/kubelet/cm/memorymanager/policy_static.go (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from hetsched.contracts.cpu_manager import members

MEMORY = "memory"
Amounts = tuple[tuple[str, int], ...]  # kinds of memory with bytes
Hints = list[tuple[int, bool]]  # affinities as bits, and whether each is preferred


class MemoryZone(NamedTuple):
    """Memory of one NUMA node by kind, in bytes; `group` contains, as bits, the NUMA nodes of its blocks."""

    allocatable: Amounts
    free: Amounts
    blocks: int = 0
    group: int = 0


class Block(NamedTuple):
    """Memory of one kind that a container holds on the NUMA nodes `affinity` (as bits), in bytes."""

    affinity: int
    kind: str
    size: int


class MemoryManager:
    """Memory of a node during the admission of one pod."""

    def __init__(self, zones: Sequence[MemoryZone]) -> None:
        self._allocatable = [dict(zone.allocatable) for zone in zones]
        self._free = [dict(zone.free) for zone in zones]
        self._blocks = [zone.blocks for zone in zones]
        self._groups = [zone.group or 1 << position for position, zone in enumerate(zones)]
        self._reusable: dict[tuple[int, str], int] = {}
        self.running: list[Block] = []

    def hints(self, asked: Amounts) -> Hints | None:
        """Return the hints of a request, or None if it has no preference: nothing is requested, or nothing fits."""
        if not asked:
            return None
        found, least = [], len(self._free)
        for size in range(1, len(self._free) + 1):
            for zones in combinations(range(len(self._free)), size):
                if any(sum(self._allocatable[zone].get(kind, 0) for zone in zones) < need for kind, need in asked):
                    continue
                least = min(least, size)
                mask = sum(1 << zone for zone in zones)
                if self._usable(mask, zones) and self._fits(mask, asked, reuse=True):
                    found.append(mask)
        return [(mask, mask.bit_count() == least) for mask in found] or None

    def _usable(self, mask: int, zones: Sequence[int]) -> bool:
        if len(zones) == 1:
            return self._groups[zones[0]] == mask
        return all(not self._blocks[zone] or self._groups[zone] == mask for zone in zones)

    def _fits(self, mask: int, asked: Amounts, *, reuse: bool) -> bool:
        return all(
            sum(self._free[zone].get(kind, 0) for zone in members(mask))
            + (self._reusable.get((mask, kind), 0) if reuse else 0)
            >= need
            for kind, need in asked
        )

    def take(self, asked: Amounts, affinity: int | None, preferred: bool, init: bool) -> bool:
        """Allocate the memory of a container and return True, or return False if the kubelet would reject the pod.

        `affinity` is the decision of the topology manager, None if it has none. The manager extends an affinity with
        too little free memory; a preferred affinity only to a preferred one.
        """
        if not asked:
            return True
        if affinity is None or not self._fits(affinity, asked, reuse=False):
            wider = [hint for hint in self.hints(asked) or () if hint[0] & (affinity or 0) == (affinity or 0)]
            if not wider:
                return False
            chosen, suits = min(wider, key=lambda hint: (not hint[1], hint[0].bit_count(), hint[0]))
            if preferred and not suits:
                return False
            affinity = chosen
        if affinity.bit_count() > 1 and not self._usable(affinity, tuple(members(affinity))):
            return False
        for kind, need in asked:
            reused = min(self._reusable.get((affinity, kind), 0), need)
            self._reserve(Block(affinity, kind, need - reused))
            if init:
                self._reusable[affinity, kind] = max(self._reusable.get((affinity, kind), 0), need)
            else:
                self._reusable[affinity, kind] = self._reusable.get((affinity, kind), 0) - reused
                self.running.append(Block(affinity, kind, need))
        return True

    def _reserve(self, block: Block) -> None:
        """Reserve a block on the NUMA nodes of its affinity, those with the lowest ids first."""
        remaining = block.size
        for zone in members(block.affinity):
            self._blocks[zone] += 1
            self._groups[zone] = block.affinity
            taken = min(remaining, self._free[zone].get(block.kind, 0))
            self._free[zone][block.kind] = self._free[zone].get(block.kind, 0) - taken
            remaining -= taken

    def zones(self) -> tuple[MemoryZone, ...]:
        """Return the present state of the NUMA nodes."""
        return tuple(
            MemoryZone(tuple(allocatable.items()), tuple(free.items()), blocks, group)
            for allocatable, free, blocks, group in zip(
                self._allocatable, self._free, self._blocks, self._groups, strict=True
            )
        )


def occupied(zones: Sequence[MemoryZone], blocks: Iterable[Block]) -> tuple[MemoryZone, ...]:
    """Return the state of NUMA nodes after running containers have received `blocks`."""
    manager = MemoryManager(zones)
    for block in blocks:
        manager._reserve(block)
    return manager.zones()
