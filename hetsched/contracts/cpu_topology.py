"""CPUs of one machine by core, cache group, socket and NUMA node, as sets of bits.

A set of CPUs is an int: bit i is the i-th CPU of the topology, by ascending id. Zones are NUMA nodes, by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple


class Cpu(NamedTuple):
    """One CPU; `zone` is the position of its zone. Core, socket and cache are identified by any sortable number."""

    id: int
    zone: int
    socket: int
    core: int
    cache: int


class Topology:
    """The CPUs of one machine, by ascending id; equal machines compare equal and share cached results."""

    def __init__(self, cpus: Iterable[Cpu], reserved: Iterable[int] = ()) -> None:
        self.cpus = tuple(sorted(cpus))
        self.reserved_ids = frozenset(reserved)
        self._key = (self.cpus, tuple(sorted(self.reserved_ids)))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Topology) and self._key == other._key)

    @cached_property
    def bit_of(self) -> dict[int, int]:
        return {cpu.id: 1 << bit for bit, cpu in enumerate(self.cpus)}

    def bits(self, ids: Iterable[int]) -> int:
        """Return a set of CPU ids as bits; ids that the machine does not have are ignored."""
        bit_of = self.bit_of
        return sum(bit_of[cpu] for cpu in set(ids) if cpu in bit_of)

    def ids(self, bits: int) -> list[int]:
        return [self.cpus[bit].id for bit in members(bits)]

    @cached_property
    def all(self) -> int:
        return (1 << len(self.cpus)) - 1

    @cached_property
    def reserved(self) -> int:
        return self.bits(self.reserved_ids)

    @cached_property
    def reserved_cores(self) -> int:
        """The reserved CPUs and their siblings, which `full-pcpus-only` treats as unavailable."""
        return sum(core for core in self.cores.values() if core & self.reserved)

    def _level(self, name: str) -> dict[int, int]:
        found: dict[int, int] = {}
        for bit, cpu in enumerate(self.cpus):
            number = getattr(cpu, name)
            found[number] = found.get(number, 0) | 1 << bit
        return found

    @cached_property
    def zones(self) -> dict[int, int]:
        return self._level("zone")

    @cached_property
    def sockets(self) -> dict[int, int]:
        return self._level("socket")

    @cached_property
    def cores(self) -> dict[int, int]:
        return self._level("core")

    @cached_property
    def caches(self) -> dict[int, int]:
        return self._level("cache")

    @cached_property
    def sockets_of_zone(self) -> dict[int, frozenset[int]]:
        return {
            zone: frozenset(s for s, own in self.sockets.items() if own & cpus) for zone, cpus in self.zones.items()
        }

    @cached_property
    def cpus_per_core(self) -> int:
        return len(self.cpus) // max(len(self.cores), 1)

    @cached_property
    def cpus_per_socket(self) -> int:
        return len(self.cpus) // max(len(self.sockets), 1)

    @cached_property
    def cpus_per_cache(self) -> int:
        return len(self.cpus) // max(len(self.caches), 1)

    @cached_property
    def sockets_first(self) -> bool:
        """Whether sockets are the outer level: there are more NUMA nodes with CPUs than sockets."""
        return len(self.zones) > len(self.sockets)


def members(bits: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
