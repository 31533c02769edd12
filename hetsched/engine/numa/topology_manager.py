"""Prediction of the kubelet's pod admission: hint providers, the topology manager's merge, and the allocation.

A pod that the kubelet rejects after binding stays Failed, and its controller creates the next one: a loop of schedule,
reject, recreate. Therefore the verdict is predicted before a node is selected.
Hint    an affinity (a set of zones, as bits) whose free amounts hold the request; preferred if its size is the
        smallest that could hold the request if everything were free, or, with `align-by-socket`, if it spans the
        fewest sockets
Providers: the CPU manager, and the device manager once for each resource whose devices have zones. A provider without
a preference returns None, one that cannot serve the request an empty list.
Merge   one hint of each resource, with the intersection of their affinities; preferred if all are preferred and
        equal. The best is preferred, then has the fewest zones, then (`prefer-closest-numa-nodes`) the smallest mean
        distance, then the lowest ids; if none is preferred, the largest size up to the largest smallest hint.
    none, best-effort   admits any hint
    restricted          admits if the best hint is preferred
    single-numa-node    admits if a preferred hint of one zone exists for every resource
Scope `container` merges for each container in turn, `pod` once for their sum (or an init container that needs more).
Devices and CPUs are then taken inside the affinity first; `cpu_manager` selects the CPUs. `full-pcpus-only` refuses
requests that are not a multiple of the threads of a core, or exceed the CPUs of cores without a reserved CPU.
Source: kubernetes pkg/kubelet/cm/{topologymanager,cpumanager,devicemanager} (1.36).
Invariant: pure; equal arguments give equal verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import NamedTuple

from hetsched.contracts.objects.kubelet_options import MOST_MODELLED_NUMA_NODES, KubeletOptions

from .cpu_manager import Cpu, Strategy, Topology, members, take

TOPOLOGY_AFFINITY_ERROR, UNEXPECTED_ADMISSION_ERROR = "TopologyAffinityError", "UnexpectedAdmissionError"
SMT_ALIGNMENT_ERROR = "SMTAlignmentError"
SINGLE, RESTRICTED, BEST_EFFORT = "single-numa-node", "restricted", "best-effort"

Counts = tuple[int, ...]
Hints = list[tuple[int, bool]]  # affinities as bits, and whether each is preferred


class ContainerDemands(NamedTuple):
    """One container's demands on the kubelet: exclusive CPUs (0: shared pool), GPUs, and other devices by name."""

    cpus: int
    cards: int
    init: bool = False
    devices: tuple[tuple[str, int], ...] = ()


class DeviceZones(NamedTuple):
    """The devices of one resource by zone, total and free; `elsewhere` are free and have no zone."""

    resource: str
    total: Counts
    free: Counts
    elsewhere: int = 0


class ZoneResources(NamedTuple):
    """By zone: total CPUs and those free for exclusive use, total and free GPUs, and other devices.

    `free_cpus` are the free CPUs as bits of the kubelet's topology; None: CPUs are only counted, each a core of its
    own.
    """

    cpus: Counts
    cpus_free: Counts
    cards: Counts
    cards_free: Counts
    devices: tuple[DeviceZones, ...] = ()
    free_cpus: int | None = None


class KubeletPolicy(NamedTuple):
    """A kubelet's options besides its policy; `numa_nodes` includes those without CPUs, 0: as many as zones.

    `distances` are by position of the zones, empty if unknown.
    """

    options: KubeletOptions = KubeletOptions()
    topology: Topology | None = None
    distances: tuple[Counts, ...] = ()
    numa_nodes: int = 0


class KubeletVerdict(NamedTuple):
    """Verdict of the kubelet: `reason` is its error, empty if it admits the pod.

    `cpus` and `cards` are the amounts taken by zone while the pod runs, `devices` by resource and zone; `aligned` are
    the zones that bind it, empty if none do. `cpu_ids` are the CPUs, if they are named.
    """

    reason: str
    cpus: Counts = ()
    aligned: Counts = ()
    cards: Counts = ()
    devices: tuple[tuple[str, Counts], ...] = ()
    cpu_ids: tuple[int, ...] = ()


_CARDS = ""  # name of the GPUs among the resources of the device manager
_PLAIN = KubeletPolicy()


@lru_cache(maxsize=65536)
def verdict(
    policy: str,
    pod_scope: bool,
    machine: ZoneResources,
    containers: tuple[ContainerDemands, ...],
    kubelet: KubeletPolicy = _PLAIN,
) -> KubeletVerdict:
    """Predict the kubelet's verdict on a pod with these containers, in start order."""
    admission = _Admission(policy, machine, kubelet)
    whole = _whole(containers)
    affinity: int | None = None
    aligned = 0
    for number, container in enumerate(containers):
        if not pod_scope or not number:
            affinity = admission.affinity(whole if pod_scope else container)
        if affinity is None:
            return KubeletVerdict(TOPOLOGY_AFFINITY_ERROR)
        reason = admission.allocate(container, affinity)
        if reason:
            return KubeletVerdict(reason)
        aligned |= 0 if container.init else affinity
    return admission.admitted(aligned)


@lru_cache(maxsize=65536)
def reason(
    policy: str,
    pod_scope: bool,
    machine: ZoneResources,
    containers: tuple[ContainerDemands, ...],
    kubelet: KubeletPolicy = _PLAIN,
) -> str:
    """Return the reason of the verdict; for a single container it does not depend on which CPUs are taken."""
    if len(containers) != 1:
        return verdict(policy, pod_scope, machine, containers, kubelet).reason
    admission = _Admission(policy, machine, kubelet)
    if admission.affinity(containers[0]) is None:
        return TOPOLOGY_AFFINITY_ERROR
    return admission.refusal(containers[0])


def policy_in_force(policy: str, kubelet: KubeletPolicy, zones: int) -> str:
    """Return the effective policy: none with more NUMA nodes than the kubelet allows, or than are modelled."""
    if max(kubelet.numa_nodes, zones) > kubelet.options.max_allowable_numa_nodes:
        return "none"
    if zones > MOST_MODELLED_NUMA_NODES and policy != SINGLE:
        return "none"
    return policy


def _whole(containers: tuple[ContainerDemands, ...]) -> ContainerDemands:
    """Return the total demand under scope `pod`."""
    names = sorted({name for container in containers for name, _ in container.devices})
    return ContainerDemands(
        _peak((c.cpus, c.init) for c in containers),
        _peak((c.cards, c.init) for c in containers),
        devices=tuple((name, _peak((dict(c.devices).get(name, 0), c.init) for c in containers)) for name in names),
    )


def _peak(amounts: Iterable[tuple[int, bool]]) -> int:
    """Return the peak demand: each init container runs alone together with the sidecars started before it."""
    running = peak = 0
    for amount, init in amounts:
        peak = max(peak, running + amount)
        running += 0 if init else amount
    return peak


class _Admission:
    """Admission of one pod by the resource managers of one kubelet."""

    def __init__(self, policy: str, machine: ZoneResources, kubelet: KubeletPolicy) -> None:
        self.zones = len(machine.cpus)
        self.all = (1 << self.zones) - 1
        self.kubelet = kubelet
        self.policy = policy_in_force(policy, kubelet, self.zones)
        # single-numa-node uses hints of one zone only.
        self.largest = 1 if self.policy == SINGLE else self.zones
        self.cpus = _CpuManager(machine, kubelet)
        listed = (DeviceZones(_CARDS, machine.cards, machine.cards_free), *machine.devices)
        self.devices = {one.resource: _DeviceManager(one) for one in listed}

    def affinity(self, asked: ContainerDemands) -> int | None:
        """Return the affinity with which a container or pod is admitted, None if the policy rejects it."""
        if self.policy not in (BEST_EFFORT, RESTRICTED, SINGLE):
            return self.all
        hints = [manager.hints(amount, self.largest) for manager, amount in self._devices_of(asked)]
        hints.append(self.cpus.hints(asked.cpus, self.largest))
        return merge(self.policy, hints, self.zones, self.kubelet)

    def _devices_of(self, asked: ContainerDemands) -> list[tuple[_DeviceManager, int]]:
        amounts = ((_CARDS, asked.cards), *asked.devices)
        return [(self.devices[name], amount) for name, amount in amounts if amount and name in self.devices]

    def refusal(self, asked: ContainerDemands) -> str:
        """Return the error with which a manager would fail to allocate, empty if none would."""
        if any(amount > manager.available for manager, amount in self._devices_of(asked)):
            return UNEXPECTED_ADMISSION_ERROR
        return self.cpus.refusal(asked.cpus)

    def allocate(self, asked: ContainerDemands, affinity: int) -> str:
        """Allocate a container's demand and return "", or the error of the manager that cannot."""
        error = self.refusal(asked)
        if not error:
            for manager, amount in self._devices_of(asked):
                manager.take(amount, affinity, asked.init)
            self.cpus.take(asked.cpus, affinity, asked.init)
        return error

    def admitted(self, aligned: int) -> KubeletVerdict:
        held_to = () if aligned == self.all else tuple(members(aligned))
        cards = self.devices.pop(_CARDS)
        taken = tuple((name, tuple(manager.running)) for name, manager in self.devices.items() if any(manager.running))
        ids = tuple(self.cpus.topology.ids(self.cpus.running)) if self.cpus.named else ()
        return KubeletVerdict("", self.cpus.by_zone(self.cpus.running), held_to, tuple(cards.running), taken, ids)


class _CpuManager:
    """The static policy during the admission of one pod; `reusable` are the CPUs released by its init containers."""

    def __init__(self, machine: ZoneResources, kubelet: KubeletPolicy) -> None:
        self.named = machine.free_cpus is not None and kubelet.topology is not None
        self.zones = len(machine.cpus)
        if kubelet.topology is not None and machine.free_cpus is not None:
            self.topology, self.available = kubelet.topology, machine.free_cpus
        else:
            self.topology = counted_topology(machine.cpus)
            self.available = _lowest(self.topology, machine.cpus_free)
        self.options = options = kubelet.options
        self.group = self.topology.cpus_per_core
        groups = (self.group if options.full_pcpus_only else 1) if options.distribute_cpus_across_numa else 0
        self.strategy = Strategy(groups, options.distribute_cpus_across_cores, options.prefer_align_cpus_by_uncorecache)
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

    def take(self, asked: int, affinity: int, init: bool) -> None:
        """Take CPUs inside the affinity, or with `align-by-socket` its sockets, then the rest."""
        if not asked or not self.topology.cpus:
            return
        topology = self.topology
        allocatable = self.available | self.reusable
        inside = sum(cpus for zone, cpus in topology.zones.items() if affinity >> zone & 1)
        if self.options.align_by_socket:
            inside = sum(cpus for cpus in topology.sockets.values() if cpus & inside)
        inside &= allocatable
        taken = take(topology, inside, min(asked, inside.bit_count()), self.strategy) or 0
        taken |= take(topology, allocatable & ~taken, asked - taken.bit_count(), self.strategy) or 0
        self.available &= ~taken
        self.reusable = self.reusable | taken if init else self.reusable & ~taken
        self.running |= 0 if init else taken


class _DeviceManager:
    """One resource of the device manager; the device plugin selects the devices within a zone."""

    def __init__(self, devices: DeviceZones) -> None:
        self.total, self.free, self.elsewhere = devices.total, list(devices.free), devices.elsewhere
        self.reusable = [0] * len(devices.total)
        self.running = [0] * len(devices.total)
        self.zoned = any(devices.total)

    @property
    def available(self) -> int:
        """Return the total in all zones; devices without zones are not counted here."""
        return sum(self.free) + sum(self.reusable) + self.elsewhere if self.zoned else 1 << 62

    def hints(self, asked: int, largest: int) -> Hints | None:
        """Return the hints: sets of the zones that have devices."""
        if not asked or not self.zoned:
            return None
        needed = sum(1 << zone for zone, count in enumerate(self.reusable) if count)
        free = tuple(a + b for a, b in zip(self.free, self.reusable, strict=True))
        found, least = _hints(asked, self.total, free, needed, largest)
        return [(mask, mask.bit_count() == least) for mask in found]

    def take(self, asked: int, affinity: int, init: bool) -> None:
        """Take released devices of init containers, then inside the affinity, zones with the fewest devices first."""
        if not self.zoned:
            return
        left = asked
        for zone, count in enumerate(self.reusable):
            taken = min(count, left)
            left -= taken
            if not init:
                self.reusable[zone] -= taken
                self.running[zone] += taken
        order = sorted(range(len(self.free)), key=lambda zone: (not affinity >> zone & 1, self.free[zone], zone))
        for zone in order:
            taken = min(self.free[zone], left)
            left -= taken
            self.free[zone] -= taken
            (self.reusable if init else self.running)[zone] += taken
        self.elsewhere -= left


def _hints(asked: int, total: Counts, free: Counts, needed: int, largest: int) -> tuple[list[int], int]:
    """Return the affinities whose free amounts hold the request, and the smallest size that could if all were free.

    Affinities are sets of the zones that have any of the resource, up to `largest`, and contain the `needed` ones.
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
    """Return the sets of zones, smaller ones first, in the kubelet's order."""
    sets = (chosen for size in range(1, min(largest, len(zones)) + 1) for chosen in combinations(zones, size))
    return tuple((sum(1 << zone for zone in chosen), chosen) for chosen in sets)


def merge(policy: str, resources: Sequence[Hints | None], zones: int, kubelet: KubeletPolicy = _PLAIN) -> int | None:
    """Return the affinity that a policy admits, all zones for no restriction; None: rejected."""
    stated = [hints for hints in resources if hints is not None]
    if not stated:
        return (1 << zones) - 1
    distances = kubelet.distances if kubelet.options.prefer_closest_numa_nodes and policy != SINGLE else ()
    # A merged hint is preferred only if all resources prefer the same set.
    agreed = set.intersection(*({mask for mask, preferred in hints if preferred} for hints in stated))
    if policy == SINGLE:
        agreed = {mask for mask in agreed if mask.bit_count() == 1}
    if agreed:
        return min(agreed, key=lambda mask: _fitness(mask, distances))
    return _least_bad(stated, zones, distances) if policy == BEST_EFFORT else None


def _fitness(mask: int, distances: tuple[Counts, ...]) -> tuple[int, float, int]:
    """Order affinities: fewer zones, then closer ones (the mean over all pairs), then lower ids."""
    mean = 0.0
    if distances:
        chosen = list(members(mask))
        mean = sum(distances[a][b] for a in chosen for b in chosen) / len(chosen) ** 2
    return mask.bit_count(), mean, mask


def _least_bad(stated: Sequence[Hints], zones: int, distances: tuple[Counts, ...]) -> int:
    """Return the affinity of best-effort without a preferred hint.

    It has as many zones as the resource with the largest minimum needs, or fewer.
    """
    everywhere = (1 << zones) - 1
    target = max(min((mask.bit_count() for mask, _ in hints), default=0) for hints in stated)
    merged = {everywhere}
    for hints in stated:
        if hints:
            merged = {one & mask for one in merged for mask, _ in hints}
    merged.discard(0)
    within = [mask for mask in merged if mask.bit_count() <= target]
    if within:
        most = max(mask.bit_count() for mask in within)
        within = [mask for mask in within if mask.bit_count() == most]
    return min(within or merged, key=lambda mask: _fitness(mask, distances), default=everywhere)


@lru_cache(maxsize=4096)
def counted_topology(cpus: Counts) -> Topology:
    """Return a machine whose CPUs are only counted: each a core of its own, each zone a socket."""
    owners = [zone for zone, count in enumerate(cpus) for _ in range(count)]
    return Topology(Cpu(number, zone, zone, number, zone) for number, zone in enumerate(owners))


def _lowest(topology: Topology, counts: Counts) -> int:
    """Return the given number of CPUs of each zone."""
    return at_most(topology, topology.all, counts)


def at_most(topology: Topology, cpus: int, counts: Counts) -> int:
    """Return the CPUs without the lowest ones of each zone that exceeds its count.

    CPUs that were assigned without names are thus assumed to be the lowest free ones.
    """
    kept = 0
    for zone, own in topology.zones.items():
        free = list(members(cpus & own))
        count = counts[zone] if zone < len(counts) else 0
        kept |= sum(1 << bit for bit in free[max(len(free) - count, 0) :])
    return kept
