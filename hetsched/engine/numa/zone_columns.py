"""Columns of a node's NUMA zones: the facts of each zone, and changes of its free amounts.

A node with 8 free CPUs may have four in each of two zones, some of them pinned or used by online workloads. The
following amounts are therefore stored per zone, in columns next to the node's own:
    effective CPU   min(allocatable, offline_capacity), in millicores; allocatable is at most the CPUs that are named
                    and not reserved
    free            effective - allocations in the zone;  it may become negative when the capacity falls: then no
                    allocation is released, the zone accepts nothing more, and `overcommitted` lists the pods at risk
    CPUs for pins   named CPUs that are neither reserved nor assigned; in a zone whose CPUs are only counted, its
                    whole CPUs minus the allocated ones
Source: cassini (Tencent 2022), gocrane `NodeResourceTopology`; public contract section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hetsched.contracts.cpu_topology import Topology
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.node_report import NodeReport, NumaReport, NumaZone, is_unreadable
from hetsched.contracts.units import CPU, MEMORY, MIB
from hetsched.engine.cluster.columns import UNKNOWN, WORD_BITS, Columns

from .cpu_selection import Core, cores_of
from .memory_manager import MemoryZone
from .reported_zones import split_name, stated_amount, zones_of
from .topology_setup import setup_of

_ZEROED = (
    "zone_cpu",
    "zone_cpu_allocatable",
    "zone_unreadable",
    "zone_cpus",
    "zone_cpus_usable",
    "kubelet_cpus",
    "zone_devices",
    "static_memory",
    "memory_group",
)


class NodeZones(NamedTuple):
    """The zones of one node, by position; the entry of `usable` is None for a zone whose CPUs are not named.

    `topology` is set if the kubelet pins CPUs and all CPUs are named; its free CPUs are then columns of the state.
    `memory` contains the unassigned memory of each zone if the kubelet's memory manager is static, else it is empty.
    """

    names: tuple[str, ...]
    usable: tuple[frozenset[int] | None, ...]
    cores: tuple[tuple[Core, ...], ...]
    zone_of_cpu: dict[int, int]
    positions: dict[str, int]
    topology: Topology | None = None
    memory: tuple[MemoryZone, ...] = ()

    def position(self, name: str) -> int | None:
        """Return a zone's position by its name, or by the number at its end as in crane's results (`node0`)."""
        found = self.positions.get(name)
        if found is None:
            number = split_name(name)[1]
            if number >= 0:
                found = next((i for i, own in enumerate(self.names) if split_name(own)[1] == number), None)
        return found


class TakenAmounts(NamedTuple):
    """Update of the load columns for one placed pod: `sign` 1 takes its amounts from the zones, -1 releases them."""

    facts: NodeZones
    columns: Columns
    row: int
    sign: int

    def amounts(self, position: int | None, cpu_millis: int, memory_mib: int, pins: int = 0) -> None:
        if position is not None:
            for name, amount in (("cpu", cpu_millis), ("memory", memory_mib), ("cpus", pins)):
                if amount:
                    self.columns.field(f"zone_{name}_free")[position, self.row] -= self.sign * amount

    def cpu(self, cpu: int, pins: int) -> None:
        """Take an assigned CPU from the free CPU of its zone and, with `pins` 1, from the CPUs that can be pinned."""
        self.amounts(self.facts.zone_of_cpu[cpu], 1000, 0, pins)
        topology = self.facts.topology
        if pins and topology is not None:
            word, bit = divmod(topology.bit_of[cpu].bit_length() - 1, WORD_BITS)
            self.columns.field("kubelet_cpus_free")[word, self.row] -= self.sign << bit

    def devices(self, counts: dict[str, int], position: int | None) -> None:
        """Take devices from the free devices of a zone; without a zone, nothing is taken."""
        layout, free = self.columns.layout, self.columns.field("zone_devices_free")
        for resource, count in counts.items():
            number = layout.devices.get(resource)
            if number is not None and position is not None:
                free[number * layout.zones + position, self.row] -= self.sign * count


def write_facts(row: int, report: NodeReport, columns: Columns) -> NodeZones | None:
    """Write the facts of one row's zones without allocations; return the zones, or None if the node has none."""
    for name in _ZEROED:
        columns.field(name)[:, row] = 0
    columns.field("zone_memory")[:, row] = UNKNOWN
    facts = _write_zones(row, report, report.numa, columns) if report.numa is not None else None
    columns.field("zone_cpu_free")[:, row] = columns.field("zone_cpu")[:, row]
    columns.field("zone_cpus_free")[:, row] = columns.field("zone_cpus_usable")[:, row]
    columns.field("zone_memory_free")[:, row] = np.maximum(columns.field("zone_memory")[:, row], 0)
    columns.field("kubelet_cpus_free")[:, row] = columns.field("kubelet_cpus")[:, row]
    columns.field("zone_devices_free")[:, row] = columns.field("zone_devices")[:, row]
    columns.field("static_memory_free")[:, row] = columns.field("static_memory")[:, row]
    columns.field("card_zone")[:, row] = UNKNOWN
    for card in report.gpus or ():
        position = facts.position(card.numa_zone) if facts and card.numa_zone else None
        if position is not None and card.index < columns.layout.cards:
            columns.field("card_zone")[card.index, row] = position
    return facts


def _write_zones(row: int, report: NodeReport, numa: NumaReport, columns: Columns) -> NodeZones | None:
    reserved = parse_cpuset(numa.reserved_cpus or "")
    zones = zones_of(report)
    usable: list[frozenset[int] | None] = []
    cores: list[tuple[Core, ...]] = []
    zone_of_cpu: dict[int, int] = {}
    for position, zone in enumerate(zones):
        stated, memory = stated_amount(zone, CPU), stated_amount(zone, MEMORY)
        if zone.cpus or not stated:
            named = parse_cpuset(zone.cpus or "") - zone_of_cpu.keys()
            zone_of_cpu.update(dict.fromkeys(named, position))
            usable.append(named - reserved)
            cores.append(cores_of(named, zone.siblings))
            total, remaining = len(named), len(named - reserved)
            allocatable = remaining * 1000 if stated is None else min(stated, remaining * 1000)
        else:
            usable.append(None)
            cores.append(())
            allocatable = stated or 0
            total, remaining = zone.capacity.get(CPU, allocatable) // 1000, allocatable // 1000
        offline = zone.offline_capacity_millis
        columns.field("zone_cpu_allocatable")[position, row] = allocatable
        columns.field("zone_cpu")[position, row] = allocatable if offline is None else min(allocatable, offline)
        columns.field("zone_unreadable")[position, row] = offline == 0 and is_unreadable(zone.name, report.problems)
        columns.field("zone_memory")[position, row] = UNKNOWN if memory is None else memory // MIB
        columns.field("zone_cpus")[position, row] = total
        columns.field("zone_cpus_usable")[position, row] = remaining
        for resource, number in columns.layout.devices.items():
            count = zone.allocatable.get(resource, 0)
            columns.field("zone_devices")[number * columns.layout.zones + position, row] = count
    if not zones:
        return None
    names = tuple(zone.name for zone in zones)
    positions = {name: position for position, name in enumerate(names)}
    setup = setup_of(report)
    topology, unassigned = setup.kubelet.topology, _memory_zones(zones) if setup.memory else ()
    write_memory("static_memory", unassigned, row, columns)
    facts = NodeZones(names, tuple(usable), tuple(cores), zone_of_cpu, positions, topology, unassigned)
    if topology is not None:
        free = topology.all & ~topology.reserved
        for word in range(columns.layout.words):
            bits = free >> word * WORD_BITS & (1 << WORD_BITS) - 1
            columns.field("kubelet_cpus")[word, row] = bits
    return facts


def _memory_zones(zones: Iterable[NumaZone]) -> tuple[MemoryZone, ...]:
    amounts = (tuple(sorted((zone.assignable or {}).items())) for zone in zones)
    return tuple(MemoryZone(whole, whole) for whole in amounts)


def write_memory(field: str, zones: Sequence[MemoryZone], row: int, columns: Columns) -> None:
    """Write the free memory of each zone of a row to a field of bytes by kind and zone."""
    amounts, size = columns.field(field), columns.layout.zones
    for position, zone in enumerate(zones):
        for kind, free in zone.free:
            number = columns.layout.memory.get(kind)
            if number is not None:
                amounts[number * size + position, row] = free
