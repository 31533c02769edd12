"""The NUMA zones of every node, and who holds which CPU there.

Problem: "8 CPUs free" on a node may be four on each of two zones, half of them pinned, some lent to online workloads.
Rule, per zone, in columns beside the node's own:
    effective CPU   min(allocatable, offline_capacity), in millicores; allocatable is at most the CPUs that are named
                    and not reserved
    free            effective - what allocations take there;  it may fall below 0 when the capacity does: then nothing
                    is freed, the zone takes nothing more, and `overcommitted` lists the pods at risk
    CPUs for pins   named CPUs that are neither reserved nor held; of a zone that is only counted, its whole CPUs less
                    those granted
A grant of policy `exclusive`, `immovable` or the kubelet's `static` holds the CPUs it names; `numa` and `none` count
only. `predicted` grants count like CPUs of the kubelet's own choice whose ids are not known yet.
Zones stand in the order of their names, numbers as numbers; a zone without CPUs is none.
Source: cassini (Tencent 2022), gocrane `NodeResourceTopology`; public contract section 1.
Invariants: charging with 1 and then with -1 restores every cell and every holder; of a zone whose CPUs are named, at
least as many whole CPUs are nobody's as `free` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetsched.contracts.allocation import ZoneGrant
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.node_report import NodeReport, NumaZone
from hetsched.contracts.units import CPU, MEMORY, MIB
from hetsched.engine.cluster.columns import UNKNOWN, Columns, Ints

from .cpu_selection import Core, cores_of

if TYPE_CHECKING:
    from hetsched.engine.cluster.booking import Booking
    from hetsched.engine.cluster.state import ClusterState

MOST_ZONES = 64
SHARING = frozenset({"none", "numa"})  # CPU policies under which a container shares its CPUs
KUBELET = "static"
AWARENESS_LABELS = ("topology.crane.io/topology-awareness", "hetsched.io/topology-awareness")
_TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_NUMBER_AT_END = re.compile(r"(.*?)(\d{1,9})?", re.DOTALL)


class Setup(NamedTuple):
    """How a node deals with topology; nodes share few distinct ones.

    `aware` is what a pod that does not say gets there, `pins` means that the kubelet pins CPUs by itself.
    """

    zoned: bool = False
    aware: bool = False
    pins: bool = False
    policy: str = "none"
    pod_scope: bool = False


class NodeZones(NamedTuple):
    """The zones of one node, by position; `usable` is None where a zone's CPUs are counted, not named."""

    names: tuple[str, ...]
    usable: tuple[frozenset[int] | None, ...]
    cores: tuple[tuple[Core, ...], ...]
    zone_of_cpu: dict[int, int]
    positions: dict[str, int]

    def position(self, name: str) -> int | None:
        """Find a zone by its name, or by the number at its end as crane's results write it (`node0`)."""
        found = self.positions.get(name)
        if found is None:
            number = _split(name)[1]
            if number >= 0:
                found = next((i for i, own in enumerate(self.names) if _split(own)[1] == number), None)
        return found


class _Taken(NamedTuple):
    """One booking on its way into the load columns, or out of them."""

    facts: NodeZones
    columns: Columns
    row: int
    sign: int

    def amounts(self, position: int | None, cpu_millis: int, memory_mib: int, pins: int = 0) -> None:
        if position is not None:
            for name, amount in (("cpu", cpu_millis), ("memory", memory_mib), ("cpus", pins)):
                if amount:
                    self.columns.field(f"zone_{name}_free")[position, self.row] -= self.sign * amount


class ZoneAtRisk(NamedTuple):
    """A zone whose capacity fell below what it granted, and the pods that hold some of it."""

    node: str
    zone: str
    short_millis: int
    pods: tuple[str, ...]


def _split(name: str) -> tuple[str, int]:
    match = _NUMBER_AT_END.fullmatch(name)
    assert match is not None
    return match[1], int(match[2]) if match[2] else -1


def zones_of(report: NodeReport) -> tuple[NumaZone, ...]:
    """Return the zones with CPUs, in the order of their positions, 64 at most."""
    if report.numa is None:
        return ()
    with_cpus = (zone for zone in report.numa.zones if zone.cpus or _stated(zone, CPU))
    return tuple(sorted(with_cpus, key=lambda zone: (*_split(zone.name), zone.name))[:MOST_ZONES])


def _stated(zone: NumaZone, resource: str) -> int | None:
    return zone.allocatable.get(resource, zone.capacity.get(resource))


def setup_of(report: NodeReport) -> Setup:
    """Read how a node deals with topology: awareness by its label, else by the kubelet's `single-numa-node`."""
    numa = report.numa
    if numa is None:
        return Setup()
    policy = (numa.topology_manager_policy or "none").lower()
    texts = (report.labels[key].lower() for key in AWARENESS_LABELS if key in report.labels)
    stated = next((_TRUTH[text] for text in texts if text in _TRUTH), None)
    return Setup(
        zoned=bool(zones_of(report)),
        aware=policy == "single-numa-node" if stated is None else stated,
        pins=numa.cpu_manager_policy == KUBELET,
        policy=policy,
        pod_scope=numa.topology_manager_scope == "pod",
    )


class Zones:
    """Zones by row, and by row who holds each CPU; rows without any are left out."""

    def __init__(self) -> None:
        self.nodes: dict[int, NodeZones] = {}
        self.held: dict[int, dict[int, tuple[str, ...]]] = {}

    def copy(self) -> Zones:
        other = Zones()
        other.nodes = dict(self.nodes)
        other.held = {row: dict(cpus) for row, cpus in self.held.items()}
        return other

    # -- facts -------------------------------------------------------------------------------------------------------

    def write(self, row: int, report: NodeReport, columns: Columns) -> None:
        """Write the facts of one row's zones with nothing held there; the caller charges its bookings again."""
        self.nodes.pop(row, None)
        self.held.pop(row, None)
        if not columns.layout.zones:
            return
        for name in ("zone_cpu", "zone_cpu_allocatable", "zone_cpus", "zone_cpus_usable"):
            columns.field(name)[:, row] = 0
        columns.field("zone_memory")[:, row] = UNKNOWN
        if report.numa is not None:
            self._write_zones(row, report, columns)
        columns.field("zone_cpu_free")[:, row] = columns.field("zone_cpu")[:, row]
        columns.field("zone_cpus_free")[:, row] = columns.field("zone_cpus_usable")[:, row]
        columns.field("zone_memory_free")[:, row] = np.maximum(columns.field("zone_memory")[:, row], 0)
        columns.field("card_zone")[:, row] = UNKNOWN
        facts = self.nodes.get(row)
        for card in report.gpus or ():
            position = facts.position(card.numa_zone) if facts and card.numa_zone else None
            if position is not None and card.index < columns.layout.cards:
                columns.field("card_zone")[card.index, row] = position

    def _write_zones(self, row: int, report: NodeReport, columns: Columns) -> None:
        assert report.numa is not None
        reserved = parse_cpuset(report.numa.reserved_cpus or "")
        zones = zones_of(report)
        usable: list[frozenset[int] | None] = []
        cores: list[tuple[Core, ...]] = []
        zone_of_cpu: dict[int, int] = {}
        for position, zone in enumerate(zones):
            stated, memory = _stated(zone, CPU), _stated(zone, MEMORY)
            if zone.cpus:
                named = parse_cpuset(zone.cpus) - zone_of_cpu.keys()
                zone_of_cpu.update(dict.fromkeys(named, position))
                usable.append(named - reserved)
                cores.append(cores_of(named, zone.siblings))
                total, left = len(named), len(named - reserved)
                allocatable = left * 1000 if stated is None else min(stated, left * 1000)
            else:
                usable.append(None)
                cores.append(())
                allocatable = stated or 0
                total, left = zone.capacity.get(CPU, allocatable) // 1000, allocatable // 1000
            offline = zone.offline_capacity_millis
            columns.field("zone_cpu_allocatable")[position, row] = allocatable
            columns.field("zone_cpu")[position, row] = allocatable if offline is None else min(allocatable, offline)
            columns.field("zone_memory")[position, row] = UNKNOWN if memory is None else memory // MIB
            columns.field("zone_cpus")[position, row] = total
            columns.field("zone_cpus_usable")[position, row] = left
        if zones:
            names = tuple(zone.name for zone in zones)
            positions = {name: position for position, name in enumerate(names)}
            self.nodes[row] = NodeZones(names, tuple(usable), tuple(cores), zone_of_cpu, positions)

    # -- what is held ------------------------------------------------------------------------------------------------

    def charge(self, booking: Booking, sign: int, columns: Columns) -> None:
        """Take what an allocation names from the zones of its row (`sign` 1), or give it back (-1)."""
        facts = self.nodes.get(booking.row)
        if facts is None:
            return
        taken = _Taken(facts, columns, booking.row, sign)
        sharing = _policy(booking) in SHARING
        named: set[int] = set()
        for grant in booking.allocation.zones:
            position = facts.position(grant.name)
            ids = frozenset[int]() if sharing else _ids(grant.cpus or "")
            if ids and (position is None or facts.usable[position] is not None):
                named |= ids & facts.zone_of_cpu.keys()
                taken.amounts(position, 0, grant.memory_mib)
            else:
                millis = grant.cpu_millis or 1000 * len(ids)
                taken.amounts(position, millis, grant.memory_mib, 0 if sharing else millis // 1000)
        for grant in booking.allocation.predicted:
            taken.amounts(facts.position(grant.name), grant.cpu_millis, grant.memory_mib, grant.cpu_millis // 1000)
        if named:
            self._hold(taken, sorted(named), booking.pod.key)

    def _hold(self, taken: _Taken, cpus: Sequence[int], key: str) -> None:
        """Note who holds CPUs, or no longer does; a CPU that two pods claim is free once both are gone."""
        held = self.held.setdefault(taken.row, {})
        for cpu in cpus:
            others = tuple(holder for holder in held.get(cpu, ()) if holder != key)
            holders = tuple(sorted((*others, key))) if taken.sign > 0 else others
            if holders:
                held[cpu] = holders
            else:
                del held[cpu]
            position = taken.facts.zone_of_cpu[cpu]
            usable = taken.facts.usable[position]
            pins = int(not others and usable is not None and cpu in usable)
            taken.amounts(position, 1000, 0, pins)
        if not held:
            del self.held[taken.row]

    def free_cpus(self, row: int, position: int) -> frozenset[int] | None:
        """Return the CPUs of a zone that can be pinned, None where they are not named."""
        usable = self.nodes[row].usable[position]
        return None if usable is None else usable - self.held.get(row, {}).keys()


def _policy(booking: Booking) -> str:
    """Return the CPU policy under which a pod holds its zones; older results say it in the pod's own annotation."""
    allocation = booking.allocation
    if allocation.cpu_policy is not None:
        return allocation.cpu_policy
    if any(grant.cpus for grant in allocation.zones):
        return "exclusive"
    wish = booking.pod.shape.numa
    return "none" if wish is None else wish.cpu_policy


@lru_cache(maxsize=16384)
def _ids(text: str) -> frozenset[int]:
    return parse_cpuset(text)


def overcommitted(state: ClusterState) -> Iterator[ZoneAtRisk]:
    """Yield the zones that granted more CPU than they now have, with the pods that hold it, by node and zone."""
    free: Ints = state.columns.field("zone_cpu_free")
    for row, position in np.argwhere(free.T < 0).tolist():
        facts = state.zones.nodes[row]
        pods = sorted(key for key, b in state.on_row[row].items() if position in _positions(facts, b))
        yield ZoneAtRisk(state.columns.names[row], facts.names[position], -int(free[position, row]), tuple(pods))


def _positions(facts: NodeZones, booking: Booking) -> set[int | None]:
    grants: Sequence[ZoneGrant] = booking.allocation.zones + booking.allocation.predicted
    found = {facts.position(grant.name) for grant in grants}
    return found | {facts.zone_of_cpu.get(cpu) for grant in grants for cpu in _ids(grant.cpus or "")}
