"""CPU manager and device manager of the kubelet during the admission of one pod, with their topology hints."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import combinations
from typing import NamedTuple

from hetsched.contracts.cpu_manager import strategy_of, take
from hetsched.contracts.cpu_topology import Cpu, Topology, members
from hetsched.contracts.objects.kubelet_options import KubeletOptions

from .memory_manager import Amounts, Hints, MemoryZone

SMT_ALIGNMENT_ERROR = "SMTAlignmentError"
UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"

Counts = tuple[int, ...]


class ContainerDemands(NamedTuple):
    """One container's demands on the kubelet: exclusive CPUs (0: shared pool), GPUs, and other devices by name.

    `memory` is the memory by kind in bytes, which only a Guaranteed pod requests from the static memory manager.
    """

    cpus: int
    cards: int
    init: bool = False
    devices: tuple[tuple[str, int], ...] = ()
    memory: Amounts = ()


class DeviceZones(NamedTuple):
    """Number of devices of one resource by zone, total and free; `elsewhere` counts free devices without a zone."""

    resource: str
    total: Counts
    free: Counts
    elsewhere: int = 0


class ZoneResources(NamedTuple):
    """Resources of a node by zone: total CPUs, CPUs free for exclusive use, total and free GPUs, other devices.

    `cards_elsewhere` counts free GPUs without a zone.
    `free_cpus` is a bit mask of the free CPUs, by the CPU numbers of the kubelet's topology. If it is None, only the
    number of CPUs is known, and each is treated as a separate core. `memory` is empty if the memory manager is not
    static or its state is unknown.
    """

    cpus: Counts
    cpus_free: Counts
    cards: Counts
    cards_free: Counts
    devices: tuple[DeviceZones, ...] = ()
    free_cpus: int | None = None
    cards_elsewhere: int = 0
    memory: tuple[MemoryZone, ...] = ()


class KubeletPolicy(NamedTuple):
    """Kubelet settings other than its topology policy.

    `numa_nodes` is the number of NUMA nodes, including those without CPUs; 0 means one NUMA node per zone. `distances`
    is the distance matrix of the zones, by position; empty if unknown.
    """

    options: KubeletOptions = KubeletOptions()
    topology: Topology | None = None
    distances: tuple[Counts, ...] = ()
    numa_nodes: int = 0


class CpuManager:
    """Static CPU manager during the admission of one pod; `reusable` are the CPUs released by its init containers."""

    def __init__(self, machine: ZoneResources, kubelet: KubeletPolicy) -> None:
        self.named = machine.free_cpus is not None and kubelet.topology is not None
        self.zones = len(machine.cpus)
        if kubelet.topology is not None and machine.free_cpus is not None:
            self.topology, self.available = kubelet.topology, machine.free_cpus
        else:
            self.topology = counted_topology(machine.cpus)
            self.available = _highest_per_zone(self.topology, machine.cpus_free)
        self.options = kubelet.options
        self.group = self.topology.cpus_per_core
        self.strategy = strategy_of(kubelet.options, self.topology)
        self.reusable = self.running = 0

    def by_zone(self, cpus: int) -> Counts:
        zones = self.topology.zones
        return tuple((zones.get(zone, 0) & cpus).bit_count() for zone in range(self.zones))

    def hints(self, asked: int, largest: int) -> Hints | None:
        if not asked or not self.topology.cpus:
            return None
        total, free = self.by_zone(self.topology.all), self.by_zone(self.available | self.reusable)
        needed = sum(1 << zone for zone, cpus in self.topology.zones.items() if cpus & self.reusable)
        found, least = _hints(asked, total, free, needed, largest)
        sockets = self._fewest_sockets(least) if self.options.align_by_socket else 0
        return [(mask, mask.bit_count() == least or bool(sockets and self._spans(mask) == sockets)) for mask in found]

    def _fewest_sockets(self, least: int) -> int:
        per_socket = len(self.topology.zones) // len(self.topology.sockets)
        return -(-least // per_socket) if per_socket else 0

    def _spans(self, mask: int) -> int:
        return len(
            frozenset[int]().union(*(self.topology.sockets_of_zone.get(zone, frozenset()) for zone in members(mask)))
        )

    def refusal(self, asked: int) -> str:
        if not asked or not self.topology.cpus:
            return ""
        if self.options.full_pcpus_only:
            whole = (self.available & ~self.topology.reserved_cores).bit_count()
            if asked % self.group or asked > whole:
                return SMT_ALIGNMENT_ERROR
        return UNEXPECTED_ADMISSION_ERROR if asked > (self.available | self.reusable).bit_count() else ""

    def take(self, asked: int, affinity: int, init: bool) -> str:
        """Take CPUs inside the affinity (with `align-by-socket`, inside its sockets), then any other available CPUs.

        Returns the error if the distribution over NUMA nodes fails, otherwise "".
        """
        if not asked or not self.topology.cpus:
            return ""
        topology = self.topology
        allocatable = self.available | self.reusable
        inside = sum(cpus for zone, cpus in topology.zones.items() if affinity >> zone & 1)
        if self.options.align_by_socket:
            inside = sum(cpus for cpus in topology.sockets.values() if cpus & inside)
        inside &= allocatable
        near = take(topology, inside, min(asked, inside.bit_count()), self.strategy, allocatable)
        if near is None:
            return UNEXPECTED_ADMISSION_ERROR
        others = take(topology, allocatable & ~near, asked - near.bit_count(), self.strategy)
        if others is None:
            return UNEXPECTED_ADMISSION_ERROR
        taken = near | others
        self.available &= ~taken
        self.reusable = self.reusable | taken if init else self.reusable & ~taken
        self.running |= 0 if init else taken
        return ""


class DeviceManager:
    """Device manager for one resource: counts devices by zone; within a zone, the device plugin selects them.

    The last element of each list counts the devices without a zone.
    """

    def __init__(self, devices: DeviceZones) -> None:
        self.total, self.free = devices.total, [*devices.free, devices.elsewhere]
        self.reusable = [0] * len(self.free)
        self.running = [0] * len(self.free)
        self.zoned = any(devices.total)

    @property
    def available(self) -> int:
        """Return the number of available devices, or a huge number (no limit) if none of them has a zone."""
        return sum(self.free) + sum(self.reusable) if self.zoned else 1 << 62

    @property
    def held(self) -> Counts:
        """Return the devices that the pod holds by zone until it ends, including those of its init containers."""
        return tuple(a + b for a, b in zip(self.running[:-1], self.reusable[:-1], strict=True))

    def hints(self, asked: int, largest: int) -> Hints | None:
        """Return the hints over the zones that have devices, or None if the resource has no preference."""
        if not asked or not self.zoned:
            return None
        reusable = self.reusable[:-1]
        needed = sum(1 << zone for zone, count in enumerate(reusable) if count)
        free = tuple(a + b for a, b in zip(self.free[:-1], reusable, strict=True))
        found, least = _hints(asked, self.total, free, needed, largest)
        return [(mask, mask.bit_count() == least) for mask in found]

    def take(self, asked: int, affinity: int, init: bool) -> None:
        """Take devices released by init containers, then devices inside the affinity, then devices outside it.

        Zones with the fewest free devices come first, devices without a zone last.
        """
        if not self.zoned:
            return
        remaining = asked
        for zone, count in enumerate(self.reusable):
            taken = min(count, remaining)
            remaining -= taken
            if not init:
                self.reusable[zone] -= taken
                self.running[zone] += taken
        outside = len(self.total)
        order = sorted(range(outside), key=lambda zone: (not affinity >> zone & 1, self.free[zone], zone))
        for zone in (*order, outside):
            taken = min(self.free[zone], remaining)
            remaining -= taken
            self.free[zone] -= taken
            (self.reusable if init else self.running)[zone] += taken


def _hints(asked: int, total: Counts, free: Counts, needed: int, largest: int) -> tuple[list[int], int]:
    """Return the affinities with enough free resources, and the smallest number of zones that would suffice.

    The smallest number assumes that all resources are free. An affinity is a set of at most `largest` zones that have
    the resource, including all zones in `needed`.
    """
    zones = tuple(zone for zone, count in enumerate(total) if count)
    least = len(zones) if largest >= len(zones) else len(zones) + 1
    found = []
    for mask, chosen in _masks(zones, largest):
        if len(chosen) < least and sum(total[zone] for zone in chosen) >= asked:
            least = len(chosen)
        if needed & ~mask == 0 and sum(free[zone] for zone in chosen) >= asked:
            found.append(mask)
    return found, least


@cache
def _masks(zones: Counts, largest: int) -> tuple[tuple[int, Counts], ...]:
    """Return all sets of at most `largest` zones as (bits, zones), smaller sets first, in the kubelet's order."""
    sets = (chosen for size in range(1, min(largest, len(zones)) + 1) for chosen in combinations(zones, size))
    return tuple((sum(1 << zone for zone in chosen), chosen) for chosen in sets)


@lru_cache(maxsize=4096)
def counted_topology(cpus: Counts) -> Topology:
    """Return the topology of a machine whose CPUs are only counted: each CPU is a core, each zone a socket."""
    owners = [zone for zone, count in enumerate(cpus) for _ in range(count)]
    return Topology(Cpu(number, zone, zone, number, zone) for number, zone in enumerate(owners))


def _highest_per_zone(topology: Topology, counts: Counts) -> int:
    """Return, as bits, the CPUs with the highest ids of each zone, as many per zone as `counts` states."""
    return keep_highest(topology, topology.all, counts)


def keep_highest(topology: Topology, cpus: int, counts: Counts) -> int:
    """Return `cpus` with the lowest CPUs removed from each zone that has more than its count.

    CPUs that were assigned without ids are thus assumed to be the lowest free ones.
    """
    kept = 0
    for zone, own in topology.zones.items():
        free = list(members(cpus & own))
        count = counts[zone] if zone < len(counts) else 0
        kept |= sum(1 << bit for bit in free[max(len(free) - count, 0) :])
    return kept
