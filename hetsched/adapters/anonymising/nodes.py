"""Anonymised nodes.

Annotations are kept only if they state instruction sets, and problems are reduced to their codes. Addresses are
omitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hetsched.adapters.objects.node_isa import absent_names, isa_report
from hetsched.adapters.objects.node_topology import POWER_PROBLEM
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.kubelet_options import minor_version, read_options
from hetsched.contracts.objects.node_features import REQUIRED_BY
from hetsched.contracts.objects.node_images import pack_keys, unpack_keys
from hetsched.contracts.objects.node_report import (
    POWER_STATES,
    GpuCard,
    IsaReport,
    KubeletGrant,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
    Usage,
    is_unreadable,
    zone_problem,
)
from hetsched.contracts.times import seconds

from ..objects import keys
from . import well_known
from .names import WITHHELD, NameAnonymizer, known_isa, moment, one_of, renamed
from .realms import CARD

_CPU_MANAGERS = ("none", "static")
_TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def _cpu_groups(text: str | None) -> str | None:
    """Return the text if it is a valid list of CPU groups, else None."""
    try:
        for group in (text or "").split(";"):
            parse_cpuset(group)
    except InputError:
        return None
    return text


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the kubelet policy options that hetsched interprets; all others may contain arbitrary text."""
    unknown = {*read_options(options, {}).unknown} & {*read_options({}, options).unknown}
    return {name: value for name, value in options.items() if f"{name}={value}" not in unknown}


class NodeAnonymizer:
    """Anonymizer of nodes and of the names in their facts.

    `images` maps the hashes of the images of pods to those of their pseudonyms; all other images are omitted.
    """

    def __init__(self, names: NameAnonymizer, images: Mapping[int, int]) -> None:
        self._names = names
        self._images = images

    def node(self, node: NodeReport) -> NodeReport:
        isa = node.isa
        stated = isa_report(node.labels, node.annotations, []) == isa
        return NodeReport(
            name=self._names.node(node.name),
            uid=self._names.uid(node.uid),
            labels=self._names.labels(node.labels),
            annotations=_annotations(node.annotations),
            taints=renamed(self._names.taint, node.taints),
            unschedulable=node.unschedulable,
            ready=node.ready,
            allocatable=self._names.resources(node.allocatable),
            isa=IsaReport(
                native=known_isa(isa.native),
                emulated=tuple(filter(well_known.is_isa, isa.emulated)),
                cross=tuple(filter(well_known.is_isa, isa.cross)),
                source=isa.source if stated else "",
                complete=isa.complete,
                arch=self._names.value(keys.KUBERNETES_ARCH, isa.arch),
                absent=absent_names(",".join(isa.absent)),
            ),
            gpus=None if node.gpus is None else renamed(self._card, node.gpus),
            numa=None if node.numa is None else self._numa(node.numa),
            power=None if node.power is None else _power(node.power),
            attach_limits={self._names.driver(driver): count for driver, count in node.attach_limits.items()},
            usage=None if node.usage is None else self._usage(node.usage),
            problems=self._problems(node),
            observed_at=moment(node.observed_at),
            declared_features=tuple(filter(REQUIRED_BY.__contains__, node.declared_features)),
            image_sizes=pack_keys(
                (self._images[key], size) for key, size in unpack_keys(node.image_sizes) if key in self._images
            ),
            kubelet_version=_release(node.kubelet_version),
        )

    def _problems(self, node: NodeReport) -> tuple[str, ...]:
        zones = () if node.numa is None else node.numa.zones
        unreadable = (zone.name for zone in zones if is_unreadable(zone.name, node.problems))
        power = (problem for problem in node.problems if problem.partition(":")[0] == POWER_PROBLEM)
        return (
            *(zone_problem(self._names.zone(name), WITHHELD) for name in unreadable),
            *(f"{POWER_PROBLEM}: {WITHHELD}" for _ in power),
        )

    def _card(self, card: GpuCard) -> GpuCard:
        return GpuCard(
            index=card.index,
            uuid=None if card.uuid is None else self._names.of(CARD, card.uuid),
            model=card.model,
            vendor=self._names.vendor(card.vendor),
            memory_mib=card.memory_mib,
            cores=card.cores,
            fp32_tflops=card.fp32_tflops,
            bandwidth_gbs=card.bandwidth_gbs,
            clock_mhz=card.clock_mhz,
            numa_zone=None if card.numa_zone is None else self._names.zone(card.numa_zone),
            healthy=card.healthy,
            maintenance=card.maintenance,
            links=card.links,  # only numbers and link kinds from a fixed list
        )

    def _numa(self, numa: NumaReport) -> NumaReport:
        return NumaReport(
            zones=renamed(self._numa_zone, numa.zones),
            cpu_manager_policy=one_of(numa.cpu_manager_policy, _CPU_MANAGERS),
            topology_manager_policy=one_of(numa.topology_manager_policy, _TOPOLOGY_POLICIES),
            topology_manager_scope=one_of(numa.topology_manager_scope, ("container", "pod")),
            reserved_cpus=numa.reserved_cpus,
            lost_cpus=numa.lost_cpus,
            cpu_manager_options=_known_options(numa.cpu_manager_options),
            topology_manager_options=_known_options(numa.topology_manager_options),
            memory_manager_policy=one_of(numa.memory_manager_policy, ("None", "Static")),
            sockets=_cpu_groups(numa.sockets),
            caches=_cpu_groups(numa.caches),
            grants=renamed(self._kubelet_grant, numa.grants),
        )

    def _kubelet_grant(self, grant: KubeletGrant) -> KubeletGrant:
        return KubeletGrant(
            pod=self._names.uid(grant.pod),
            cpus=_cpu_groups(grant.cpus) or "",
            gpus=tuple(self._names.of(CARD, uuid) for uuid in grant.gpus),
            devices={self._names.zone(zone): self._names.resources(counts) for zone, counts in grant.devices.items()},
            foreign=grant.foreign,
            memory=tuple(self._names.memory(one) for one in grant.memory),
        )

    def _numa_zone(self, zone: NumaZone) -> NumaZone:
        return NumaZone(
            name=self._names.zone(zone.name),
            cpus=zone.cpus,
            siblings=zone.siblings,
            capacity=self._names.resources(zone.capacity),
            allocatable=self._names.resources(zone.allocatable),
            offline_capacity_millis=zone.offline_capacity_millis,
            costs={self._names.zone(name): cost for name, cost in zone.costs.items()},
            available=self._names.resources(zone.available),
            parent=None if zone.parent is None else self._names.zone(zone.parent),
            assignable=None if zone.assignable is None else self._names.resources(zone.assignable),
        )

    def _usage(self, usage: Usage) -> Usage:
        return Usage(self._names.resources(usage.amounts), moment(usage.observed_at), stale=usage.stale)


def _annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return a node's instruction set annotations; each invalid value is replaced by a fixed invalid text."""
    found: dict[str, str] = {}
    if keys.ISA in annotations:
        found[keys.ISA] = known_isa(annotations[keys.ISA]) or WITHHELD
    for key in (keys.EMULATED_ISA, keys.CROSS_ISA):
        if annotations.get(key):
            found[key] = ",".join(known_isa(text) or WITHHELD for text in re.split(r"[,\s]+", annotations[key].strip()))
    if annotations.get(keys.ISA_BOUND) == keys.LOWER:
        found[keys.ISA_BOUND] = keys.LOWER
    if keys.ISA_ABSENT in annotations:
        found[keys.ISA_ABSENT] = ",".join(absent_names(annotations[keys.ISA_ABSENT]))
    if seconds(annotations.get(keys.FACTS_STALE, "")) is not None:
        found[keys.FACTS_STALE] = annotations[keys.FACTS_STALE]
    return found


def _release(kubelet_version: str) -> str:
    """Return a version without its patch number and its suffix, which may name a vendor."""
    major, minor = minor_version(kubelet_version)
    return f"v{major}.{minor}" if major else ""


def _power(power: PowerReport) -> PowerReport:
    return PowerReport(one_of(power.state, POWER_STATES, other=None), power.headroom_watts)
