"""Static memory manager of the kubelet during the admission of one pod: hints and allocation by NUMA node.

State   for each NUMA node, the allocatable and the free bytes by kind of memory (`memory`, `hugepages-<size>`), and the
        group of NUMA nodes whose memory is assigned together, if any memory of the NUMA node is assigned
Hint    a set of NUMA nodes with enough free memory of every requested kind; preferred if no smaller set has enough
        allocatable memory. A node of a group serves only this group, a node that is used alone serves no group.
All sets are compared, so the number of NUMA nodes is limited (`kubelet_options.assigns_memory`).
If no set has enough free memory, the manager has no preference, and the allocation fails after the topology manager has
admitted the pod. The memory of an init container is reused by later containers with the same affinity.
Source: kubernetes pkg/kubelet/cm/memorymanager/policy_static.go (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from hetsched.contracts.cpu_topology import members

Amounts = tuple[tuple[str, int], ...]  # kinds of memory with bytes
Hints = list[tuple[int, bool]]  # affinities as bits, and whether each is preferred


class MemoryZone(NamedTuple):
    """Memory of one NUMA node by kind, in bytes.

    `group` contains, as bits, the NUMA nodes of its blocks; it is 0 if the NUMA node has no blocks.
    """

    allocatable: Amounts
    free: Amounts
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
        self._groups = [zone.group for zone in zones]
        self._reusable: dict[tuple[int, str], int] = {}
        self.running: list[Block] = []

    def hints(self, asked: Amounts) -> Hints | None:
        """Return the hints of a request, or None if it has no preference: nothing is requested, or nothing fits."""
        if not asked:
            return None
        found, least = [], len(self._free)
        for mask, zones in _sets(len(self._free)):
            if all(sum(self._allocatable[zone].get(kind, 0) for zone in zones) >= need for kind, need in asked):
                least = min(least, len(zones))
                if self._usable(zones, mask) and self._fits(mask, asked, reuse=True):
                    found.append(mask)
        return [(mask, mask.bit_count() == least) for mask in found] or None

    def _usable(self, zones: Iterable[int], mask: int) -> bool:
        return all(self._groups[zone] in (0, mask) for zone in zones)

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
        if affinity.bit_count() > 1 and not self._usable(members(affinity), affinity):
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
            self._groups[zone] = block.affinity
            taken = min(remaining, self._free[zone].get(block.kind, 0))
            self._free[zone][block.kind] = self._free[zone].get(block.kind, 0) - taken
            remaining -= taken

    def zones(self) -> tuple[MemoryZone, ...]:
        """Return the present state of the NUMA nodes."""
        return tuple(
            MemoryZone(tuple(allocatable.items()), tuple(free.items()), group)
            for allocatable, free, group in zip(self._allocatable, self._free, self._groups, strict=True)
        )


@cache
def _sets(count: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return all sets of `count` NUMA nodes as (bits, positions), smaller sets first."""
    sets = (zones for size in range(1, count + 1) for zones in combinations(range(count), size))
    return tuple((sum(1 << zone for zone in zones), zones) for zones in sets)


def occupied(zones: Sequence[MemoryZone], blocks: Iterable[Block]) -> tuple[MemoryZone, ...]:
    """Return the state of NUMA nodes after running containers have received `blocks`."""
    manager = MemoryManager(zones)
    for block in blocks:
        manager._reserve(block)
    return manager.zones()
