"""NUMA zones of a node's report, in the order of their positions.

Zones are sorted by name, numbers as numbers. A zone without CPUs is left out, unless devices are near it or the memory
manager is static: the kubelet then returns hints for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hetsched.contracts.objects.kubelet_options import assigns_memory
from hetsched.contracts.objects.node_report import NodeReport, NumaZone
from hetsched.contracts.units import CPU, GPU_RESOURCES, is_extended

MOST_ZONES = 64
MOST_ZONED_ROWS = 512  # limit of device rows; resources beyond it, in name order, are not tracked per zone
_NUMBER_AT_END = re.compile(r"(.*?)(\d{1,9})?", re.DOTALL)


def split_name(name: str) -> tuple[str, int]:
    match = _NUMBER_AT_END.fullmatch(name)
    assert match is not None
    return match[1], int(match[2]) if match[2] else -1


def zones_of(report: NodeReport) -> tuple[NumaZone, ...]:
    """Return the zones with CPUs, devices or assignable memory, in the order of their positions, 64 at most."""
    if report.numa is None:
        return ()
    near_cards = {card.numa_zone for card in report.gpus or ()}
    used = (
        zone
        for zone in report.numa.zones
        if zone.cpus
        or stated_amount(zone, CPU)
        or zone.assignable is not None
        or zone.name in near_cards
        or any(map(_is_zoned, zone.allocatable))
    )
    return tuple(sorted(used, key=lambda zone: (*split_name(zone.name), zone.name))[:MOST_ZONES])


def stated_amount(zone: NumaZone, resource: str) -> int | None:
    return zone.allocatable.get(resource, zone.capacity.get(resource))


def use_of(zone: NumaZone, resource: str, allocatable: int) -> int:
    """Return the used part of `allocatable`, 0 if the zone does not report `available`.

    `allocatable` and `available` do not include reserved parts.
    """
    return allocatable - min(zone.available.get(resource, allocatable), allocatable)


def availability(report: NodeReport) -> list[object]:
    """Return the parts of a report that `Zones.explain` reads, empty if no zone reports available amounts."""
    zones, numa = zones_of(report), report.numa
    if numa is None or not any(zone.available for zone in zones):
        return []
    amounts = [(zone.name, zone.cpus, zone.capacity, zone.allocatable, zone.available) for zone in zones]
    return [numa.cpu_manager_policy, numa.reserved_cpus, *amounts]


def devices_by_zone(names: Iterable[str], zones: int) -> dict[str, int]:
    """Number the resources whose devices are counted per zone, in name order, as many as `MOST_ZONED_ROWS` allows."""
    most = MOST_ZONED_ROWS // max(zones, 1)
    return {name: number for number, name in enumerate(sorted(names)[:most])}


def zoned_devices(report: NodeReport) -> set[str]:
    """Return the extended resources, except GPUs, whose devices belong to known zones of a node."""
    found: set[str] = set()
    for zone in zones_of(report):
        found.update(filter(_is_zoned, zone.allocatable))
    return found


def static_memory(report: NodeReport) -> set[str]:
    """Return the kinds of memory that the static memory manager of a node may assign."""
    if report.numa is None or not assigns_memory(report.numa):
        return set()
    return set[str]().union(*(zone.assignable or () for zone in report.numa.zones))


def _is_zoned(resource: str) -> bool:
    """Return whether a resource's devices are counted per zone; GPUs state their zone themselves."""
    return is_extended(resource) and resource not in GPU_RESOURCES
