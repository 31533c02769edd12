"""Nodes without their names.

Rule: of annotations those that state instruction sets are kept, of problems the code. Addresses are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.nodes import POWER_PROBLEM, ZONE_PROBLEM, isa_report
from hetsched.contracts.node_report import (
    POWER_STATES,
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
    Taint,
    Usage,
)
from hetsched.contracts.times import seconds

from . import well_known
from .names import WITHHELD, Names, known_isa, moment, one_of, renamed
from .realms import CARD

_CPU_MANAGERS = ("none", "static")
_TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


class Nodes:
    """Renames nodes and what describes them."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def node(self, node: NodeReport) -> NodeReport:
        isa = node.isa
        stated = isa_report(node.labels, node.annotations, []) == isa
        return NodeReport(
            name=self._names.node(node.name),
            uid=self._names.uid(node.uid),
            labels=self._names.labels(node.labels),
            annotations=_annotations(node.annotations),
            taints=renamed(self._taint, node.taints),
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
            ),
            gpus=None if node.gpus is None else renamed(self._card, node.gpus),
            numa=None if node.numa is None else self._numa(node.numa),
            power=None if node.power is None else _power(node.power),
            attach_limits={self._names.driver(driver): count for driver, count in node.attach_limits.items()},
            usage=None if node.usage is None else self._usage(node.usage),
            problems=tuple(
                f"{code}: {WITHHELD}"
                for code in (problem.partition(":")[0] for problem in node.problems)
                if code in (ZONE_PROBLEM, POWER_PROBLEM)
            ),
            observed_at=moment(node.observed_at),
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
            links=card.links,  # kinds of a list, and numbers
        )

    def _numa(self, numa: NumaReport) -> NumaReport:
        return NumaReport(
            zones=renamed(self._numa_zone, numa.zones),
            cpu_manager_policy=one_of(numa.cpu_manager_policy, _CPU_MANAGERS),
            topology_manager_policy=one_of(numa.topology_manager_policy, _TOPOLOGY_POLICIES),
            topology_manager_scope=one_of(numa.topology_manager_scope, ("container", "pod")),
            reserved_cpus=numa.reserved_cpus,
            lost_cpus=numa.lost_cpus,
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
        )

    def _taint(self, taint: Taint) -> Taint:
        return Taint(self._names.key(taint.key), self._names.value(taint.key, taint.value), taint.effect)

    def _usage(self, usage: Usage) -> Usage:
        return Usage(self._names.resources(usage.amounts), moment(usage.observed_at), stale=usage.stale)


def _annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Keep what a node's annotations say of instruction sets; what is no instruction set stays wrong."""
    found: dict[str, str] = {}
    if keys.ISA in annotations:
        found[keys.ISA] = known_isa(annotations[keys.ISA]) or WITHHELD
    for key in (keys.EMULATED_ISA, keys.CROSS_ISA):
        if annotations.get(key):
            found[key] = ",".join(known_isa(text) or WITHHELD for text in re.split(r"[,\s]+", annotations[key].strip()))
    if annotations.get(keys.ISA_BOUND) == keys.LOWER:
        found[keys.ISA_BOUND] = keys.LOWER
    if seconds(annotations.get(keys.FACTS_STALE, "")) is not None:
        found[keys.FACTS_STALE] = annotations[keys.FACTS_STALE]
    return found


def _power(power: PowerReport) -> PowerReport:
    return PowerReport(one_of(power.state, POWER_STATES, other=None), power.headroom_watts)
