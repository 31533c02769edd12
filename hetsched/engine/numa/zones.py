"""NUMA zones of every node: capacity, allocation, and the holders of each CPU.

"8 CPUs free" on a node may be four on each of two zones, half of them pinned, some lent to online workloads. Per zone,
in columns next to the node's own:
    effective CPU   min(allocatable, offline_capacity), in millicores; allocatable is at most the CPUs that are named
                    and not reserved
    free            effective - allocations in the zone;  it may become negative when the capacity falls: then no
                    allocation is released, the zone accepts nothing more, and `overcommitted` lists the pods at risk
    CPUs for pins   named CPUs that are neither reserved nor held; in a zone that is only counted, its whole CPUs
                    minus the allocated ones
A grant of policy `exclusive`, `immovable` or the kubelet's `static` holds the CPUs it names; `numa` and `none` count
only. `predicted` grants count like CPUs that the kubelet selected. Zones are sorted by name, numbers as numbers; a
zone without CPUs is left out.

The kubelet's actual assignment (`NumaReport.grants`, from the agent) replaces the predicted one of the same pod. That
of a pod that the control plane does not know (`foreign`) is held as long as it is reported.

`available` of a zone (NodeResourceTopology) is used where no agent reports: with use = allocatable - available, the
part of the use that the current bookings do not explain is reserved until the next report,
    unexplained = use - allocations by bookings            if the kubelet pins and the sum over all zones is not below 0
    unexplained = max(0, use - allocations by bookings)    otherwise
so a pod that was running at the time of the report counts once, and a later one is subtracted.

Source: cassini (Tencent 2022), gocrane `NodeResourceTopology`; public contract section 1.
Invariants: charging with 1 and then with -1 restores every cell and every holder; in a zone with named CPUs, at least
as many whole CPUs are unassigned as `free` states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.kubelet_options import read_options
from hetsched.contracts.objects.node_report import (
    KubeletGrant,
    NodeReport,
    NumaReport,
    NumaZone,
    is_unreadable,
)
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.pod_sentences import BY_KUBELET
from hetsched.contracts.units import CPU, GPU_RESOURCES, MEMORY, MIB, is_extended
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI, WORD_BITS, Columns

from .cpu_manager import Cpu, Topology
from .cpu_selection import Core, cores_of
from .topology_manager import KubeletPolicy

MOST_ZONES = 64
MOST_CPUS = 4096  # per node with individually tracked CPUs: each takes a bit of every node's columns
MOST_ZONED_ROWS = 512  # of devices by zone: as many resources are tracked as fit, by name
SHARING = frozenset({"none", "numa"})  # CPU policies under which a container uses the shared pool
KUBELET = "static"
AWARENESS_LABELS = ("topology.crane.io/topology-awareness", "hetsched.io/topology-awareness")
_ZEROED = (
    "zone_cpu",
    "zone_cpu_allocatable",
    "zone_unreadable",
    "zone_cpus",
    "zone_cpus_usable",
    "kubelet_cpus",
    "zone_devices",
)
_TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_NUMBER_AT_END = re.compile(r"(.*?)(\d{1,9})?", re.DOTALL)


class Setup(NamedTuple):
    """Topology settings of a node; nodes share few distinct ones.

    `aware` is the default for pods that do not state it, `pins` means that the kubelet pins CPUs by itself. `kubelet`
    holds the further inputs of its verdict.
    """

    zoned: bool = False
    aware: bool = False
    pins: bool = False
    policy: str = "none"
    pod_scope: bool = False
    kubelet: KubeletPolicy = KubeletPolicy()


class NodeZones(NamedTuple):
    """The zones of one node, by position; `usable` is None if a zone's CPUs are counted, not named.

    `topology` is set if the kubelet pins and all CPUs are named: its free CPUs are columns of the state.
    """

    names: tuple[str, ...]
    usable: tuple[frozenset[int] | None, ...]
    cores: tuple[tuple[Core, ...], ...]
    zone_of_cpu: dict[int, int]
    positions: dict[str, int]
    topology: Topology | None = None

    def position(self, name: str) -> int | None:
        """Return a zone's position by its name, or by the number at its end as in crane's results (`node0`)."""
        found = self.positions.get(name)
        if found is None:
            number = _split(name)[1]
            if number >= 0:
                found = next((i for i, own in enumerate(self.names) if _split(own)[1] == number), None)
        return found


class _Taken(NamedTuple):
    """One booking that is added to or removed from the load columns."""

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
        """Take a held CPU from those that the kubelet may still assign, if no other pod holds it (`pins` 1)."""
        self.amounts(self.facts.zone_of_cpu[cpu], 1000, 0, pins)
        topology = self.facts.topology
        if pins and topology is not None:
            word, bit = divmod(topology.bit_of[cpu].bit_length() - 1, WORD_BITS)
            self.columns.field("kubelet_cpus_free")[word, self.row] -= self.sign << bit

    def devices(self, counts: dict[str, int], position: int | None) -> None:
        """Take devices that belong to a zone."""
        layout, free = self.columns.layout, self.columns.field("zone_devices_free")
        for resource, count in counts.items():
            number = layout.devices.get(resource)
            if number is not None and position is not None:
                free[number * layout.zones + position, self.row] -= self.sign * count


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
    """Derive a node's topology settings: awareness by its label, else by the kubelet's `single-numa-node`."""
    numa = report.numa
    if numa is None:
        return Setup()
    policy = (numa.topology_manager_policy or "none").lower()
    pins = numa.cpu_manager_policy == KUBELET
    texts = (report.labels[key].lower() for key in AWARENESS_LABELS if key in report.labels)
    stated = next((_TRUTH[text] for text in texts if text in _TRUTH), None)
    return Setup(
        zoned=bool(zones_of(report)),
        aware=policy == "single-numa-node" if stated is None else stated,
        pins=pins,
        policy=policy,
        pod_scope=numa.topology_manager_scope == "pod",
        kubelet=_kubelet(report, numa, pins) if pins or policy != "none" else KubeletPolicy(),
    )


def _kubelet(report: NodeReport, numa: NumaReport, pins: bool) -> KubeletPolicy:
    zones = zones_of(report)
    named = zones if pins and all(zone.cpus for zone in zones) else ()
    if sum(len(parse_cpuset(zone.cpus or "")) for zone in named) > MOST_CPUS:
        named = ()
    texts = tuple((zone.cpus or "", zone.siblings, zone.parent) for zone in named)
    rows = [tuple(zone.costs.get(other.name, -1) for other in zones) for zone in zones]
    return KubeletPolicy(
        options=read_options(numa.cpu_manager_options, numa.topology_manager_options),
        topology=_topology(texts, numa.sockets, numa.caches, numa.reserved_cpus or "") if named else None,
        distances=tuple(rows) if rows and min(map(min, rows)) >= 0 else (),
        numa_nodes=len(numa.zones),
    )


@lru_cache(maxsize=4096)
def _topology(
    zones: tuple[tuple[str, str | None, str | None], ...], sockets: str | None, caches: str | None, reserved: str
) -> Topology:
    """Return the CPUs of a node as the kubelet sees them.

    A zone without a stated socket is in the socket that is its parent, else in one of its own; a CPU without a stated
    cache is in that of its zone.
    """
    socket_of, cache_of = _groups(sockets), _groups(caches)
    parents = list(dict.fromkeys(parent for _, _, parent in zones if parent))
    cpus: list[Cpu] = []
    seen: set[int] = set()
    for position, (text, siblings, parent) in enumerate(zones):
        named = parse_cpuset(text) - seen
        seen |= named
        own_socket = -1 - position if parent is None else len(socket_of) + parents.index(parent)
        for core in cores_of(named, siblings):
            for cpu in core:
                cache = cache_of.get(cpu, -1 - position)
                cpus.append(Cpu(cpu, position, socket_of.get(cpu, own_socket), core[0], cache))
    return Topology(cpus, parse_cpuset(reserved))


def _groups(text: str | None) -> dict[int, int]:
    """Return the group number of each CPU."""
    groups = [parse_cpuset(group) for group in (text or "").split(";")]
    return {cpu: number for number, group in enumerate(groups) for cpu in group}


def words_of(report: NodeReport) -> int:
    """Return how many words of bits the free CPUs of a node take, 0 if its kubelet does not pin named CPUs."""
    topology = setup_of(report).kubelet.topology
    return 0 if topology is None else -(-len(topology.cpus) // WORD_BITS)


def _use(zone: NumaZone, resource: str, allocatable: int) -> int:
    """Return the reported use of a zone, 0 without a report; reserved parts are in neither amount."""
    return allocatable - min(zone.available.get(resource, allocatable), allocatable)


def availability(report: NodeReport) -> list[object]:
    """Return the parts of a report that `Zones.explain` reads, empty if no zone reports what is available."""
    zones, numa = zones_of(report), report.numa
    if numa is None or not any(zone.available for zone in zones):
        return []
    amounts = [(zone.name, zone.cpus, zone.capacity, zone.allocatable, zone.available) for zone in zones]
    return [numa.cpu_manager_policy, numa.reserved_cpus, *amounts]


def devices_by_zone(names: Iterable[str], zones: int) -> dict[str, int]:
    """Number the resources whose devices count by zone."""
    most = MOST_ZONED_ROWS // max(zones, 1)
    return {name: number for number, name in enumerate(sorted(names)[:most])}


def zoned_devices(report: NodeReport) -> set[str]:
    """Return the extended resources, except GPUs, whose devices belong to known zones of a node."""
    found: set[str] = set()
    for zone in zones_of(report):
        found.update(name for name in zone.allocatable if is_extended(name) and name not in GPU_RESOURCES)
    return found


class _Grants(NamedTuple):
    """Assignments by the kubelet of one row, by the uid and the name of the pod, and the indexes of its GPUs."""

    by_pod: dict[str, KubeletGrant]
    cards: dict[str, int]

    def of(self, pod: PodSpec) -> KubeletGrant | None:
        """Return the grant of a pod: by its uid, or by its name if the uid of either is unknown.

        The kubelet's uid of a static pod is not that of its mirror pod, so static pods are known by name too. Another
        grant of the name is that of an earlier pod.
        """
        if pod.uid in self.by_pod:
            return self.by_pod[pod.uid]
        named = self.by_pod.get(pod.key)
        return named if named is None or not pod.uid or not pod.preemptible or named.pod == pod.key else None


class Zones:
    """Zones by row, and by row the holders of each CPU; rows without zones are left out.

    `grants` are the kubelet's own assignments; `unexplained` is the use without a booking: load field, position,
    amount.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, NodeZones] = {}
        self.held: dict[int, dict[int, tuple[str, ...]]] = {}
        self.grants: dict[int, _Grants] = {}
        self.unexplained: dict[int, tuple[tuple[str, int, int], ...]] = {}
        self._foreign: dict[int, dict[str, KubeletGrant]] = {}  # grants of unknown pods, held on their own

    def copy(self) -> Zones:
        other = Zones()
        other.nodes, other.grants, other.unexplained = dict(self.nodes), dict(self.grants), dict(self.unexplained)
        other.held = {row: dict(cpus) for row, cpus in self.held.items()}
        other._foreign = {row: dict(grants) for row, grants in self._foreign.items()}
        return other

    def copy_row(self, row: int, other: Zones) -> None:
        """Copy the allocations of one row from another instance."""
        self.held.pop(row, None)
        self._foreign.pop(row, None)
        if row in other.held:
            self.held[row] = dict(other.held[row])
        if row in other._foreign:
            self._foreign[row] = dict(other._foreign[row])

    # -- facts -------------------------------------------------------------------------------------------------------

    def write(self, row: int, report: NodeReport, columns: Columns) -> None:
        """Write the facts of one row's zones without allocations; the caller charges its bookings again."""
        self.nodes.pop(row, None)
        self.held.pop(row, None)
        self.grants.pop(row, None)
        if columns.layout.zones:
            self._write_facts(row, report, columns)
        grants = report.numa.grants if report.numa is not None else ()
        if grants:
            self._write_grants(row, report, grants, columns)

    def _write_facts(self, row: int, report: NodeReport, columns: Columns) -> None:
        for name in _ZEROED:
            columns.field(name)[:, row] = 0
        columns.field("zone_memory")[:, row] = UNKNOWN
        if report.numa is not None:
            self._write_zones(row, report, columns)
        columns.field("zone_cpu_free")[:, row] = columns.field("zone_cpu")[:, row]
        columns.field("zone_cpus_free")[:, row] = columns.field("zone_cpus_usable")[:, row]
        columns.field("zone_memory_free")[:, row] = np.maximum(columns.field("zone_memory")[:, row], 0)
        columns.field("kubelet_cpus_free")[:, row] = columns.field("kubelet_cpus")[:, row]
        columns.field("zone_devices_free")[:, row] = columns.field("zone_devices")[:, row]
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
            columns.field("zone_unreadable")[position, row] = offline == 0 and is_unreadable(zone.name, report.problems)
            columns.field("zone_memory")[position, row] = UNKNOWN if memory is None else memory // MIB
            columns.field("zone_cpus")[position, row] = total
            columns.field("zone_cpus_usable")[position, row] = left
            for resource, number in columns.layout.devices.items():
                count = zone.allocatable.get(resource, 0)
                columns.field("zone_devices")[number * columns.layout.zones + position, row] = count
        if zones:
            names = tuple(zone.name for zone in zones)
            positions = {name: position for position, name in enumerate(names)}
            topology = setup_of(report).kubelet.topology
            self.nodes[row] = NodeZones(names, tuple(usable), tuple(cores), zone_of_cpu, positions, topology)
            if topology is not None:
                free = topology.all & ~topology.reserved
                for word in range(columns.layout.words):
                    bits = free >> word * WORD_BITS & (1 << WORD_BITS) - 1
                    columns.field("kubelet_cpus")[word, row] = bits

    # -- assignments by the kubelet and other schedulers
    # -------------------------------------------------------------------

    def _write_grants(self, row: int, report: NodeReport, grants: Sequence[KubeletGrant], columns: Columns) -> None:
        cards = {card.uuid: card.index for card in report.gpus or () if card.uuid and card.index < columns.layout.cards}
        by_pod = {key: grant for grant in grants for key in (grant.name, grant.pod) if key}
        self.grants[row] = _Grants(by_pod, cards)
        for grant in grants:
            if grant.foreign:
                self._hold_for_itself(row, grant, 1, columns)

    def release_grants(self, row: int, columns: Columns) -> None:
        """Release the grants of pods that the control plane does not know, before the facts of a row are written."""
        for grant in list(self._foreign.get(row, {}).values()):
            self._hold_for_itself(row, grant, -1, columns)

    def _hold_for_itself(self, row: int, grant: KubeletGrant, sign: int, columns: Columns) -> None:
        known = self._foreign.setdefault(row, {})
        if (grant.pod in known) == (sign > 0):
            return
        if sign > 0:
            known[grant.pod] = grant
        else:
            del known[grant.pod]
        if not known:
            del self._foreign[row]
        milli, memory = columns.field("card_milli_free"), columns.field("card_memory_free")
        total = columns.field("card_memory")
        for uuid in grant.gpus:
            index = self.grants[row].cards.get(uuid)
            if index is not None:
                milli[index, row] -= sign * WHOLE_CARD_MILLI
                memory[index, row] -= sign * max(int(total[index, row]), 0)
        facts = self.nodes.get(row)
        if facts is not None:
            self._take_grant(_Taken(facts, columns, row, sign), grant, f"{BY_KUBELET}{grant.pod}")

    def _take_grant(self, taken: _Taken, grant: KubeletGrant, holder: str) -> None:
        cpus = _ids(grant.cpus) & taken.facts.zone_of_cpu.keys()
        if cpus:
            self._hold(taken, sorted(cpus), holder)
        for zone, counts in grant.devices.items():
            taken.devices(counts, taken.facts.position(zone))

    def explain(self, row: int, report: NodeReport, columns: Columns) -> None:
        """Compare the reported availability of zones with the bookings, and reserve the unexplained use."""
        self.unexplained.pop(row, None)
        facts, zones = self.nodes.get(row), zones_of(report)
        if facts is None or not any(zone.available for zone in zones):
            return
        cpus, found = [], []
        for position, zone in enumerate(zones):
            allocatable, effective, free, memory, memory_free = (
                int(columns.field(name)[position, row])
                for name in ("zone_cpu_allocatable", "zone_cpu", "zone_cpu_free", "zone_memory", "zone_memory_free")
            )
            cpus.append(_use(zone, CPU, allocatable) - (effective - free))
            if memory != UNKNOWN:
                use = _use(zone, MEMORY, memory * MIB) // MIB
                found.append(("zone_memory_free", position, max(use - (memory - memory_free), 0)))
            for resource, number in columns.layout.devices.items():
                at = number * columns.layout.zones + position
                total, left = (int(columns.field(name)[at, row]) for name in ("zone_devices", "zone_devices_free"))
                found.append(("zone_devices_free", at, max(_use(zone, resource, total) - (total - left), 0)))
        if not setup_of(report).pins or sum(cpus) < 0:
            cpus = [max(amount, 0) for amount in cpus]
        for position, amount in enumerate(cpus):
            found.append(("zone_cpu_free", position, amount))
            found.append(("zone_cpus_free", position, -(-amount // 1000)))
        self.unexplained[row] = tuple(one for one in found if one[2])
        self.charge_unexplained(row, columns)

    def charge_unexplained(self, row: int, columns: Columns) -> None:
        """Subtract the unexplained use from the free amounts of a row's zones, after its facts were written."""
        for field, position, amount in self.unexplained.get(row, ()):
            columns.field(field)[position, row] -= amount

    # -- allocations -------------------------------------------------------------------------------------------------

    def charge(self, booking: Booking, sign: int, columns: Columns) -> None:
        """Subtract an allocation from the zones of its row (`sign` 1), or add it back (-1).

        The kubelet's actual assignment to the pod is used instead of the predicted one.
        """
        grants = self.grants.get(booking.row)
        granted = grants.of(booking.pod) if grants is not None else None
        if granted is not None and granted.foreign:
            self._hold_for_itself(booking.row, granted, -sign, columns)
        facts = self.nodes.get(booking.row)
        if facts is None:
            return
        taken = _Taken(facts, columns, booking.row, sign)
        if granted is not None and (granted.cpus or granted.devices):
            self._take_grant(taken, granted, booking.pod.key)
            for grant in booking.allocation.zones:
                taken.amounts(facts.position(grant.name), 0, grant.memory_mib)
            return
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
            ids = _ids(grant.cpus or "") & facts.zone_of_cpu.keys() if facts.topology is not None else frozenset()
            named |= ids
            left = grant.cpu_millis - 1000 * len(ids)
            taken.amounts(facts.position(grant.name), left, grant.memory_mib, left // 1000)
            if grant.devices:
                taken.devices(grant.devices, facts.position(grant.name))
        if named:
            self._hold(taken, sorted(named), booking.pod.key)

    def _hold(self, taken: _Taken, cpus: Sequence[int], key: str) -> None:
        """Add or remove a holder of CPUs; a CPU that two pods claim is free once both are gone."""
        held = self.held.setdefault(taken.row, {})
        for cpu in cpus:
            others = tuple(holder for holder in held.get(cpu, ()) if holder != key)
            holders = tuple(sorted((*others, key))) if taken.sign > 0 else others
            if holders:
                held[cpu] = holders
            else:
                del held[cpu]
            usable = taken.facts.usable[taken.facts.zone_of_cpu[cpu]]
            taken.cpu(cpu, int(not others and usable is not None and cpu in usable))
        if not held:
            del self.held[taken.row]

    def free_cpus(self, row: int, position: int) -> frozenset[int] | None:
        """Return the CPUs of a zone that can be pinned, None if the zone does not name its CPUs."""
        usable = self.nodes[row].usable[position]
        return None if usable is None else usable - self.held.get(row, {}).keys()


def _policy(booking: Booking) -> str:
    """Return the CPU policy under which a pod holds its zones; older results state it in the pod's own annotation."""
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
