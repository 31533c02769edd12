"""Prediction of the kubelet's pod admission: hint providers, the topology manager's merge, and the allocation.

Hint    an affinity (a set of zones, as bits) with enough free resources; preferred if its size is the smallest
        that would be enough if everything were free, or, with `align-by-socket`, if it spans the fewest sockets
Providers: the CPU manager, and the device manager once for each resource whose devices have zones. A provider without a
preference returns None; a provider that cannot serve the request returns an empty list.
Merge   one hint of each resource, with the intersection of their affinities; preferred if all are preferred and
        equal. The best hint is a preferred one; among these, the order is fewest zones, then
        (`prefer-closest-numa-nodes`) smallest mean distance, then lowest ids. If none is preferred, the best hint has
        the largest size up to a limit: the greatest among the sizes of the smallest hint of each resource.
    none, best-effort   admits any hint
    restricted          admits if the best hint is preferred
    single-numa-node    admits if a preferred hint of one zone exists for every resource
Scope `container` merges for each container in turn, `pod` once for their sum (or an init container that needs more).
Devices and CPUs are then taken inside the affinity first; `cpu_manager` selects the CPUs. `full-pcpus-only` rejects
requests that are not a multiple of the threads of a core, or exceed the CPUs of cores without a reserved CPU.
Source: kubernetes pkg/kubelet/cm/{topologymanager,cpumanager,devicemanager} (1.36).
Invariant: pure; equal arguments give equal verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hetsched.contracts.cpu_topology import members
from hetsched.contracts.objects.kubelet_options import MOST_MODELLED_NUMA_NODES

from .memory_manager import Block, Hints, MemoryManager
from .resource_managers import (
    UNEXPECTED_ADMISSION_ERROR,
    ContainerDemands,
    Counts,
    CpuManager,
    DeviceManager,
    DeviceZones,
    KubeletPolicy,
    ZoneResources,
)

TOPOLOGY_AFFINITY_ERROR = "TopologyAffinityError"
SINGLE, RESTRICTED, BEST_EFFORT = "single-numa-node", "restricted", "best-effort"


class KubeletVerdict(NamedTuple):
    """Verdict of the kubelet: `reason` is its error, empty if it admits the pod.

    `cpus` are the CPUs taken by zone while the pod runs. `cards` and `devices` (by resource) are the devices taken by
    zone until the pod ends: the kubelet does not release the devices of init containers. `aligned` are the zones that
    the pod is bound to, empty if there are none. `cpu_ids` are the ids of the CPUs, if known. `memory` are
    the blocks of the memory manager that the pod holds while it runs.
    """

    reason: str
    cpus: Counts = ()
    aligned: Counts = ()
    cards: Counts = ()
    devices: tuple[tuple[str, Counts], ...] = ()
    cpu_ids: tuple[int, ...] = ()
    memory: tuple[Block, ...] = ()


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
    """Predict the kubelet's verdict on a pod; `containers` are its containers in start order."""
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
    """Return only the `reason` of `verdict`; faster for a single container, because no CPUs have to be selected.

    With `distribute-cpus-across-numa`, the selection of CPUs may fail.
    """
    if len(containers) != 1 or machine.memory or kubelet.options.distribute_cpus_across_numa:
        return verdict(policy, pod_scope, machine, containers, kubelet).reason
    admission = _Admission(policy, machine, kubelet)
    if admission.affinity(containers[0]) is None:
        return TOPOLOGY_AFFINITY_ERROR
    return admission.refusal(containers[0])


def effective_policy(policy: str, kubelet: KubeletPolicy, machine: ZoneResources) -> str:
    """Return the effective policy: `none` if there are more NUMA nodes than the kubelet or this model supports.

    The kubelet counts all NUMA nodes, also those without CPUs. With more than it allows it does not start, so the
    reported settings are not those of the running kubelet. This model compares sets of the zones that have resources.
    """
    if max(kubelet.numa_nodes, len(machine.cpus)) > kubelet.options.max_allowable_numa_nodes:
        return "none"
    totals = (machine.cpus, machine.cards, *(devices.total for devices in machine.devices))
    if policy != SINGLE and sum(map(any, zip(*totals, strict=True))) > MOST_MODELLED_NUMA_NODES:
        return "none"
    return policy


def _whole(containers: tuple[ContainerDemands, ...]) -> ContainerDemands:
    """Return the peak demand of all containers of a pod together, which is aligned under scope `pod`."""
    names = sorted({name for container in containers for name, _ in container.devices})
    # The memory manager leaves out kinds that only init containers request.
    kinds = sorted({kind for container in containers if not container.init for kind, _ in container.memory})
    return ContainerDemands(
        _peak((c.cpus, c.init) for c in containers),
        _peak((c.cards, c.init) for c in containers),
        devices=tuple((name, _peak((dict(c.devices).get(name, 0), c.init) for c in containers)) for name in names),
        memory=tuple((kind, _peak((dict(c.memory).get(kind, 0), c.init) for c in containers)) for kind in kinds),
    )


def _peak(amounts: Iterable[tuple[int, bool]]) -> int:
    """Return the highest amount of one resource that a pod uses at the same time.

    `amounts` has a pair (amount, whether it is an init container) for each container, in start order.

    An init container ends before the next container starts; all other containers continue to run.
    """
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
        self.policy = effective_policy(policy, kubelet, machine)
        # single-numa-node uses hints of one zone only.
        self.largest = 1 if self.policy == SINGLE else self.zones
        self.cpus = CpuManager(machine, kubelet)
        listed = (DeviceZones(_CARDS, machine.cards, machine.cards_free, machine.cards_elsewhere), *machine.devices)
        self.devices = {one.resource: DeviceManager(one) for one in listed}
        self.memory = MemoryManager(machine.memory) if machine.memory else None
        self.preferred = False

    def affinity(self, asked: ContainerDemands) -> int | None:
        """Return the affinity with which a container or pod is admitted, or None if the policy rejects it."""
        if self.policy not in (BEST_EFFORT, RESTRICTED, SINGLE):
            return self.all
        hints = [manager.hints(amount, self.largest) for manager, amount in self._devices_of(asked)]
        hints.append(self.cpus.hints(asked.cpus, self.largest))
        if self.memory is not None:
            hints.append(self.memory.hints(asked.memory))
        chosen = merge(self.policy, hints, self.zones, self.kubelet)
        self.preferred = all(one is None or (chosen, True) in one for one in hints)
        return chosen

    def _devices_of(self, asked: ContainerDemands) -> list[tuple[DeviceManager, int]]:
        amounts = ((_CARDS, asked.cards), *asked.devices)
        return [(self.devices[name], amount) for name, amount in amounts if amount and name in self.devices]

    def refusal(self, asked: ContainerDemands) -> str:
        """Return the error of the first manager that could not allocate the demand, "" if all can."""
        if any(amount > manager.available for manager, amount in self._devices_of(asked)):
            return UNEXPECTED_ADMISSION_ERROR
        return self.cpus.refusal(asked.cpus)

    def allocate(self, asked: ContainerDemands, affinity: int) -> str:
        """Allocate a container's demand and return "", or return the error of the manager that cannot allocate it."""
        error = self.refusal(asked)
        if not error:
            for manager, amount in self._devices_of(asked):
                manager.take(amount, affinity, asked.init)
            error = self.cpus.take(asked.cpus, affinity, asked.init)
        if not error and self.memory is not None:
            # `none` decides on no affinity. `single-numa-node` drops an affinity of all NUMA nodes.
            dropped = self.policy not in (BEST_EFFORT, RESTRICTED) and affinity == self.all
            if not self.memory.take(asked.memory, None if dropped else affinity, self.preferred, asked.init):
                return UNEXPECTED_ADMISSION_ERROR
        return error

    def admitted(self, aligned: int) -> KubeletVerdict:
        held_to = () if aligned == self.all else tuple(members(aligned))
        cards = self.devices.pop(_CARDS)
        taken = tuple((name, held) for name, manager in self.devices.items() if any(held := manager.held))
        ids = tuple(self.cpus.topology.ids(self.cpus.running)) if self.cpus.named else ()
        blocks = tuple(self.memory.running) if self.memory is not None else ()
        return KubeletVerdict("", self.cpus.by_zone(self.cpus.running), held_to, cards.held, taken, ids, blocks)


def merge(policy: str, resources: Sequence[Hints | None], zones: int, kubelet: KubeletPolicy = _PLAIN) -> int | None:
    """Return the affinity admitted by a policy (all zones if no resource has hints), or None if it rejects the pod."""
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
    return _best_fallback(stated, zones, distances) if policy == BEST_EFFORT else None


def _fitness(mask: int, distances: tuple[Counts, ...]) -> tuple[int, float, int]:
    """Return the sort key of an affinity: fewer zones, then a smaller mean distance of its zones, then lower ids."""
    mean = 0.0
    if distances:
        chosen = list(members(mask))
        mean = sum(distances[a][b] for a in chosen for b in chosen) / len(chosen) ** 2
    return mask.bit_count(), mean, mask


def _best_fallback(stated: Sequence[Hints], zones: int, distances: tuple[Counts, ...]) -> int:
    """Return the affinity under `best-effort` if no merged hint is preferred.

    The limit is the greatest among the sizes of the smallest hint of each resource. The result is the largest merged
    hint up to this limit or, if there is none, the best of all merged hints.
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
