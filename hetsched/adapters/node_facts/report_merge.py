"""Merge of a node's facts from its API server and its agent.

The sources know different facts of the same machine. `merge_reports` gives the agent's facts precedence and fills the
gaps from the API server. Allocatable amounts are an exception: for CPU and memory the lower of the two values is
used, because a kubelet admits only pods that fit its own value. For other resources the API server's value takes
precedence.
`acceptance` decides which facts of the result are used.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.node_report import GpuCard, IsaReport, NodeReport, NumaReport, NumaZone, Usage
from hetsched.contracts.times import seconds
from hetsched.contracts.units import CPU, MEMORY

MOST_PROBLEMS = 200
_replace = msgspec.structs.replace


def merge_reports(base: NodeReport, report: NodeReport) -> NodeReport:
    """Merge the API server's report `base` with the agent's `report`, with the precedence described in the module."""
    allocatable = dict(base.allocatable)
    for resource, amount in report.allocatable.items():
        if resource in (CPU, MEMORY) and resource in allocatable:
            allocatable[resource] = min(allocatable[resource], amount)
        else:
            allocatable.setdefault(resource, amount)
    return _replace(
        base,
        allocatable=allocatable,
        isa=_isa(base.isa, report.isa),
        gpus=_cards(base.gpus, report.gpus),
        numa=_numa(base.numa, report.numa),
        usage=newer(base.usage, report.usage),
        problems=(*base.problems, *report.problems)[:MOST_PROBLEMS],
    )


def newer(usage: Usage | None, other: Usage | None) -> Usage | None:
    """Return the later of two samples; a fresh sample takes precedence over a stale one."""
    if usage is None or other is None:
        return usage or other
    if usage.stale != other.stale:
        return other if usage.stale else usage
    return other if (seconds(other.observed_at) or 0) >= (seconds(usage.observed_at) or 0) else usage


def _isa(base: IsaReport, report: IsaReport) -> IsaReport:
    mixed = {"emulated": report.emulated or base.emulated, "cross": report.cross or base.cross}
    return _replace(base if report.native is None else report, **mixed)


def _cards(base: tuple[GpuCard, ...] | None, reported: tuple[GpuCard, ...] | None) -> tuple[GpuCard, ...] | None:
    if reported is None or not base:
        return base if reported is None else reported
    by_uuid = {card.uuid: card for card in base if card.uuid}
    by_index = {card.index: card for card in base}
    filled = []
    for card in reported:
        below = by_uuid.get(card.uuid) if card.uuid else by_index.get(card.index)
        filled.append(card if below is None else _filled(card, below))
    return tuple(filled)


def _filled(card: GpuCard, below: GpuCard) -> GpuCard:
    """Return `card` with its missing facts filled in from `below`, the same GPU in the other report."""
    missing = {
        name: getattr(below, name)
        for name in ("uuid", "model", "vendor", "memory_mib", "cores", "fp32_tflops", "bandwidth_gbs", "clock_mhz",
                     "numa_zone")
        if getattr(card, name) in (None, "")
    }  # fmt: skip
    return _replace(card, **missing)


def _numa(base: NumaReport | None, report: NumaReport | None) -> NumaReport | None:
    if report is None or base is None:
        return base if report is None else report
    below = {zone.name: zone for zone in base.zones}
    zones = tuple(_zone(zone, below.get(zone.name)) for zone in report.zones) if report.zones else base.zones
    return NumaReport(
        zones=zones,
        cpu_manager_policy=report.cpu_manager_policy or base.cpu_manager_policy,
        topology_manager_policy=report.topology_manager_policy or base.topology_manager_policy,
        topology_manager_scope=report.topology_manager_scope or base.topology_manager_scope,
        reserved_cpus=report.reserved_cpus or base.reserved_cpus,
        cpu_manager_options=report.cpu_manager_options or base.cpu_manager_options,
        topology_manager_options=report.topology_manager_options or base.topology_manager_options,
        memory_manager_policy=report.memory_manager_policy or base.memory_manager_policy,
        sockets=report.sockets or base.sockets,
        caches=report.caches or base.caches,
        grants=report.grants,
    )


def _zone(zone: NumaZone, below: NumaZone | None) -> NumaZone:
    if below is None:
        return zone
    return _replace(
        zone,
        cpus=zone.cpus if zone.cpus is not None else below.cpus,
        siblings=zone.siblings or below.siblings,
        capacity={**below.capacity, **zone.capacity},
        allocatable={**below.allocatable, **zone.allocatable},
        offline_capacity_millis=(
            below.offline_capacity_millis if zone.offline_capacity_millis is None else zone.offline_capacity_millis
        ),
        costs=zone.costs or below.costs,
        parent=zone.parent or below.parent,
        assignable=below.assignable if zone.assignable is None else zone.assignable,
    )
