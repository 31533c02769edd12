"""Topology settings of a node: default of topology awareness, policies, options and CPU numbers of its kubelet.

Source: gocrane `NodeResourceTopology`; public contract section 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hetsched.contracts.cpu_topology import Cpu, Topology
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.kubelet_options import (
    assigns_memory,
    is_distribution_modelled,
    read_options,
    zones_with_cpus,
)
from hetsched.contracts.objects.node_report import NodeReport, NumaReport
from hetsched.contracts.units import CPU
from hetsched.engine.cluster.columns import WORD_BITS

from .cpu_selection import cores_of
from .reported_zones import stated_amount, zones_of
from .resource_managers import KubeletPolicy

MOST_CPUS = 4096  # limit of CPUs tracked one by one; each uses a bit in every node's columns
KUBELET = "static"
AWARENESS_LABELS = ("topology.crane.io/topology-awareness", "hetsched.io/topology-awareness")
_TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


class Setup(NamedTuple):
    """Topology settings of a node; a cluster has only a few distinct ones.

    `aware` is true if pods that do not state topology awareness are treated as aware, `pins` if the kubelet pins CPUs
    by itself, `memory` if its memory manager is static and modelled. `kubelet` holds the other inputs of the kubelet's
    verdict.
    """

    zoned: bool = False
    aware: bool = False
    pins: bool = False
    policy: str = "none"
    pod_scope: bool = False
    kubelet: KubeletPolicy = KubeletPolicy()
    memory: bool = False


def setup_of(report: NodeReport) -> Setup:
    """Derive a node's topology settings; `aware` is its label's value, else true for the policy `single-numa-node`."""
    numa = report.numa
    if numa is None:
        return Setup()
    policy = (numa.topology_manager_policy or "none").lower()
    pins = numa.cpu_manager_policy == KUBELET
    texts = (report.labels[key].lower() for key in AWARENESS_LABELS if key in report.labels)
    stated = next((_TRUTH[text] for text in texts if text in _TRUTH), None)
    memory = assigns_memory(numa)
    return Setup(
        zoned=bool(zones_of(report)),
        aware=policy == "single-numa-node" if stated is None else stated,
        pins=pins,
        policy=policy,
        pod_scope=numa.topology_manager_scope == "pod",
        kubelet=_kubelet(report, numa, pins) if pins or memory or policy != "none" else KubeletPolicy(),
        memory=memory,
    )


def _kubelet(report: NodeReport, numa: NumaReport, pins: bool) -> KubeletPolicy:
    zones = zones_of(report)
    named = zones if pins and all(zone.cpus or not stated_amount(zone, CPU) for zone in zones) else ()
    if sum(len(parse_cpuset(zone.cpus or "")) for zone in named) > MOST_CPUS:
        named = ()
    texts = tuple((zone.cpus or "", zone.siblings, zone.parent) for zone in named)
    rows = [tuple(zone.costs.get(other.name, -1) for other in zones) for zone in zones]
    options = read_options(numa.cpu_manager_options, numa.topology_manager_options, report.kubelet_version)
    if not is_distribution_modelled(len(zones_with_cpus(numa))):
        options = options._replace(distribute_cpus_across_numa=False)
    return KubeletPolicy(
        options=options,
        topology=_topology(texts, numa.sockets, numa.caches, numa.reserved_cpus or "") if named else None,
        distances=tuple(rows) if rows and min(map(min, rows)) >= 0 else (),
        numa_nodes=len(numa.zones),
    )


@lru_cache(maxsize=4096)
def _topology(
    zones: tuple[tuple[str, str | None, str | None], ...], sockets: str | None, caches: str | None, reserved: str
) -> Topology:
    """Return the CPUs of a node as the kubelet sees them.

    A zone without a stated socket is in its parent socket or, without a parent, in a separate socket. A CPU without a
    stated cache is in the cache of its zone.
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
    """Return the group number of each CPU in a list of groups such as `0-3;4-7`."""
    groups = [parse_cpuset(group) for group in (text or "").split(";")]
    return {cpu: number for number, group in enumerate(groups) for cpu in group}


def bitset_words(report: NodeReport) -> int:
    """Return the number of words of the bit set of a node's free CPUs, 0 if its kubelet does not pin named CPUs."""
    topology = setup_of(report).kubelet.topology
    return 0 if topology is None else -(-len(topology.cpus) // WORD_BITS)
