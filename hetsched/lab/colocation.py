"""Model of machines whose zones are shared with online workloads: their kubelets, and the slowdown of pods.

A kubelet accounts for its pods' resources by zone, checks every bound pod against this account, and chooses CPUs and
GPUs itself, regardless of the scheduler. Online workloads leave `offline_capacity` of each zone to other pods; half of
the zones are busy, with a daily cycle. A pod that was granted zones runs in these zones. Any other pod runs where CPU
time is free, as with ideal kernel balancing.
For a pod with the share s_z of its CPUs in zone z:

    steal_z   max(0, 1 - capacity_z / demand_z), demand_z the CPUs of all pods there
    steal     sum of s_z * steal_z
    remote    of memory: 1 - sum of s_z^2, as all threads use all memory alike;
              of GPUs: the share of (CPU, GPU) pairs whose CPU and GPU are in different zones
    speed     (1 - steal) / (1 + memory_penalty * remote memory + card_penalty * remote GPUs)

Pods whose steal reaches `evict_steal_ratio` are evicted one by one, the highest steal first, until no pod reaches it.
Source: the machines follow published sysfs and hwloc dumps; the load and the cost model are
specific to hetsched, because the publication does not describe them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.objects.node_report import GpuCard, NodeReport, NumaReport, NumaZone
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.numa.kubelet_admission import kubelet_containers
from hetsched.engine.numa.reported_zones import zones_of
from hetsched.engine.numa.resource_managers import Counts, ZoneResources
from hetsched.engine.numa.topology_manager import verdict
from hetsched.engine.numa.topology_setup import setup_of

Shares = tuple[float, ...]


class CostModel(msgspec.Struct, frozen=True):
    """Penalties for remote memory, remote GPUs and stolen CPU time; `day_steps` is the length of a day in steps."""

    memory_penalty: float = 0.6
    card_penalty: float = 0.4
    evict_steal_ratio: float = 0.3
    busy_lent_ratio: float = 0.7
    quiet_lent_ratio: float = 0.1
    day_wave_ratio: float = 0.15
    day_steps: int = 24


class _Kind(NamedTuple):
    """Kind of machine: number of zones, CPUs and GPUs per zone, and threads per core."""

    zones: int
    cpus: int
    cards: int = 0
    threads: int = 2


_SERVERS = _Kind(2, 24, cards=4)  # two sockets with eight GPUs
_XEON, _KUNPENG, _EPYC = _Kind(4, 10), _Kind(4, 32), _Kind(8, 12)
_KINDS = (_SERVERS, _XEON, _KUNPENG, _EPYC)
_EVERY_KIND = (
    *_KINDS,
    _Kind(8, 6, threads=1),  # Magny-Cours
    _Kind(8, 2, threads=1),  # Opteron
    _Kind(8, 32, threads=4),  # POWER7
    _Kind(4, 24, threads=1),  # x3950
    _Kind(2, 8, cards=1, threads=1),  # Xeon Phi host
    _Kind(1, 20),  # hybrid desktop
    _Kind(1, 12, cards=2, threads=1),
    _Kind(4, 16, threads=1),  # SG2042
)
_SINGLE = ("static", "single-numa-node", "container")
_KUBELETS = (
    ("static", "single-numa-node", "pod"),
    ("none", "single-numa-node", "container"),
    ("static", "restricted", "pod"),
    ("none", "single-numa-node", "container"),
)
_GIB = 2**30


def machines(count: int) -> list[NodeReport]:
    """Return machines of all kinds; every second one has online workloads and leaves CPU pinning to hetsched."""
    each = ((_KINDS[number % len(_KINDS)], _KUBELETS[(number + number // len(_KINDS)) % 4]) for number in range(count))
    return [_machine(number, kind, kubelet) for number, (kind, kubelet) in enumerate(each)]


def machines_of_every_kind(count: int, seed: int) -> list[NodeReport]:
    """Return machines drawn from all kinds, whose kubelets pin CPUs and use the policy `single-numa-node`."""
    draw = random.Random(seed)
    return [_machine(number, draw.choice(_EVERY_KIND), _SINGLE) for number in range(count)]


def _machine(number: int, kind: _Kind, kubelet: tuple[str, str, str]) -> NodeReport:
    manager, policy, scope = kubelet
    total, cores = kind.zones * kind.cpus, kind.cpus // kind.threads
    zones = []
    for position in range(kind.zones):
        first = range(position * cores, (position + 1) * cores)
        threads = [range(cpu, total, total // kind.threads) for cpu in first]
        cpus = [cpu for core in threads for cpu in core]
        amounts = {"cpu": 1000 * kind.cpus, "memory": 4 * _GIB * kind.cpus}
        siblings = ";".join(",".join(map(str, core)) for core in threads)
        zones.append(NumaZone(f"node-{position}", format_cpuset(cpus), siblings, amounts, amounts))
    cards = tuple(
        GpuCard(
            index, vendor="nvidia", model="A100-SXM4-40GB", memory_mib=40960, numa_zone=f"node-{index // kind.cards}"
        )
        for index in range(kind.zones * kind.cards)
    )
    return NodeReport(
        name=f"host-{number:03}",
        allocatable={"cpu": 1000 * total, "memory": 4 * _GIB * total, "pods": 110},
        gpus=cards,
        numa=NumaReport(tuple(zones), manager, policy, scope),
    )


def colocated(report: NodeReport) -> bool:
    """Return whether online workloads run on a machine in addition to the scheduled pods."""
    return report.numa is not None and report.numa.cpu_manager_policy != "static"


def with_capacity(report: NodeReport, capacity_millis: Sequence[int]) -> NodeReport:
    """Return the report with the capacity that online workloads leave in each zone."""
    assert report.numa is not None
    zones = tuple(
        msgspec.structs.replace(zone, offline_capacity_millis=millis)
        for zone, millis in zip(report.numa.zones, capacity_millis, strict=True)
    )
    return msgspec.structs.replace(report, numa=msgspec.structs.replace(report.numa, zones=zones))


def capacity_millis(report: NodeReport, step: int, seed: int, model: CostModel) -> list[int]:
    """Return the capacity that online workloads leave in each zone at one step; it depends only on the arguments."""
    remaining = []
    for zone in zones_of(report):
        fixed = random.Random(f"{seed}/{report.name}/{zone.name}")
        lent = model.busy_lent_ratio if fixed.random() < 0.5 else model.quiet_lent_ratio
        phase = fixed.random()
        wave = model.day_wave_ratio * math.sin(2 * math.pi * (step / model.day_steps + phase))
        noise = random.Random(f"{seed}/{report.name}/{zone.name}/{step}").uniform(-0.03, 0.03)
        ratio = min(max(1 - lent + lent * wave + noise, 0.0), 1.0)
        remaining.append(int(zone.capacity["cpu"] * ratio))
    return remaining


class AssignedResources(NamedTuple):
    """Resources that a kubelet assigned to a pod: exclusive CPUs by zone, and GPUs by index."""

    cpus: Counts
    cards: tuple[int, ...]


class SimulatedKubelet:
    """Kubelet of one node, which accounts for its resources and admits or rejects every bound pod."""

    def __init__(self, report: NodeReport) -> None:
        self.setup = setup_of(report)
        zones = zones_of(report)
        self._cpus = tuple(len(parse_cpuset(zone.cpus or "")) for zone in zones)
        self._cards = tuple(
            tuple(card.index for card in report.gpus or () if card.numa_zone == zone.name) for zone in zones
        )
        self.held: dict[str, AssignedResources] = {}

    def admit(self, pod: PodSpec) -> AssignedResources | str:
        """Admit the pod, or return the reason for the rejection."""
        containers = kubelet_containers(pod.shape)
        if not self.setup.pins:
            containers = tuple(container._replace(cpus=0) for container in containers)
        taken = {card for held in self.held.values() for card in held.cards}
        free = [[card for card in cards if card not in taken] for cards in self._cards]
        cpus_free = list(self._cpus)
        for held in self.held.values():
            cpus_free = [remaining - used for remaining, used in zip(cpus_free, held.cpus, strict=True)]
        cards = tuple(len(cards) for cards in self._cards)
        machine = ZoneResources(self._cpus, tuple(cpus_free), cards, tuple(len(cards) for cards in free))
        said = verdict(self.setup.policy, self.setup.pod_scope, machine, containers)
        if said.reason:
            return said.reason
        given = tuple(card for cards, count in zip(free, said.cards, strict=True) for card in cards[:count])
        held = self.held[pod.key] = AssignedResources(said.cpus, given)
        return held

    def remove(self, key: str) -> None:
        del self.held[key]


class Running(NamedTuple):
    """One pod on one machine: its CPUs, the positions of the zones that it is bound to, and the zones of its GPUs."""

    cpus: int
    bound: Mapping[int, int]
    card_zones: tuple[int, ...]


def speeds(pods: Mapping[str, Running], capacity: Sequence[int], model: CostModel) -> dict[str, tuple[float, float]]:
    """Return the speed and the steal (0-1) of every pod on one machine; `capacity` is in millicores by zone."""
    shares = {key: _shares(pod, capacity) for key, pod in pods.items()}
    demand = [
        sum(1000 * pods[key].cpus * share[zone] for key, share in shares.items()) for zone in range(len(capacity))
    ]
    stolen = [
        max(0.0, 1 - remaining / asked) if asked else 0.0 for remaining, asked in zip(capacity, demand, strict=True)
    ]
    found = {}
    for key, share in shares.items():
        steal = sum(part * lost for part, lost in zip(share, stolen, strict=True))
        remote = 1 - sum(part * part for part in share)
        zones = pods[key].card_zones
        remote_cards = sum(1 - share[zone] for zone in zones) / len(zones) if zones else 0.0
        slowdown = 1 + model.memory_penalty * remote + model.card_penalty * remote_cards
        found[key] = ((1 - steal) / slowdown, steal)
    return found


def _shares(pod: Running, capacity: Sequence[int]) -> Shares:
    if pod.bound:
        total = sum(pod.bound.values())
        return tuple(pod.bound.get(zone, 0) / total for zone in range(len(capacity)))
    total = sum(capacity)
    return tuple(remaining / total if total else 1 / len(capacity) for remaining in capacity)


def evicted(pods: dict[str, Running], capacity: Sequence[int], model: CostModel) -> list[str]:
    """Remove the pods whose steal reaches the limit, the highest first, and return their keys."""
    removed: list[str] = []
    while True:
        losing = [(-steal, key) for key, (_, steal) in speeds(pods, capacity, model).items()]
        worst = min(losing, default=(0.0, ""))
        if -worst[0] < model.evict_steal_ratio:
            return removed
        removed.append(worst[1])
        del pods[worst[1]]
