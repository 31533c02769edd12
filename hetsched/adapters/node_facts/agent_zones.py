"""NUMA zones and the kubelet's configuration from a node agent's report; `agent_reports` states the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

import msgspec

from hetsched.adapters.objects.kubelet_grants import Near, kubelet_grants, zones_of_devices
from hetsched.contracts.cpuset import MAX_CPU_ID, format_cpuset
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineCpu, MachineZone
from hetsched.contracts.objects.kubelet_options import bounded, is_distribution_modelled, read_options
from hetsched.contracts.objects.node_report import NumaReport, NumaZone, zone_name
from hetsched.contracts.objects.pinned_memory import HUGE_PAGES, MOST_KINDS, STATIC, is_memory
from hetsched.contracts.reserved_cpus import reserved_by_amount
from hetsched.contracts.units import CPU, INT64_MAX, MEMORY, MIB

from .checked_values import MOST_NAMED, MOST_TEXT, Problems, checked_cpuset, checked_word, within

MOST_ZONES = 1024
# Limits of the selection of reserved CPUs: CPUs of the machine, and reserved CPUs.
MOST_CPUS, MOST_SELECTED = 4096, 64
CPU_MANAGER_POLICIES = frozenset({"none", "static"})
TOPOLOGY_MANAGER_POLICIES = frozenset({"none", "best-effort", "restricted", "single-numa-node"})
TOPOLOGY_MANAGER_SCOPES = frozenset({"container", "pod"})
_PAGE_SIZE = re.compile(r"(\d{1,12})kB", re.ASCII)


def numa_facts(report: AgentReport, problems: Problems, kubelet_version: str) -> NumaReport | None:
    """Return the zones and the kubelet's configuration, or None if neither is known."""
    kubelet = report.kubelet
    if report.zones is None and kubelet is None:
        return None
    listed = report.zones or ()
    if len(listed) > MOST_ZONES:
        problems.append(f"ZonesTooMany: {len(listed)} zones, at most {MOST_ZONES} are supported; no zone is used")
        listed = ()
    reserved = checked_cpuset(_reserved_cpus(report, kubelet_version), "the kubelet's reserved CPUs", problems)
    zones = _zones(listed, report.cpus or (), reserved or frozenset(), problems)
    sockets, caches = (_grouped(report.cpus or (), level) for level in ("socket", "cache"))
    if kubelet is None:
        return NumaReport(zones, sockets=sockets, caches=caches)
    near = zones_of_devices(kubelet, zones, problems)
    uuids = {card.pci_address: card.uuid for card in report.gpus or () if card.pci_address and card.uuid}
    return NumaReport(
        zones=_with_memory(_with_devices(zones, near), kubelet, problems),
        sockets=sockets,
        caches=caches,
        cpu_manager_options=bounded(kubelet.cpu_manager_options),
        topology_manager_options=bounded(kubelet.topology_manager_options),
        memory_manager_policy=kubelet.memory_manager_policy and kubelet.memory_manager_policy[:MOST_TEXT],
        grants=kubelet_grants(kubelet, near, problems, uuids),
        cpu_manager_policy=checked_word(
            kubelet.cpu_manager_policy, CPU_MANAGER_POLICIES, "CPU manager policy", problems
        ),
        topology_manager_policy=checked_word(
            kubelet.topology_manager_policy, TOPOLOGY_MANAGER_POLICIES, "topology manager policy", problems
        ),
        topology_manager_scope=checked_word(
            kubelet.topology_manager_scope, TOPOLOGY_MANAGER_SCOPES, "topology manager scope", problems
        ),
        reserved_cpus=format_cpuset(reserved) if reserved else None,
    )


def _reserved_cpus(report: AgentReport, kubelet_version: str) -> str | None:
    """Return the CPUs that a kubelet of this version reserves; the agent does not know the version."""
    kubelet, cpus = report.kubelet, report.cpus or ()
    if kubelet is None:
        return None
    options = read_options(kubelet.cpu_manager_options, {}, kubelet_version)
    number = within(kubelet.reserved_number, MOST_SELECTED)
    if number is None or not options.limit_equal_parts or not _has_modelled_size(cpus):
        return kubelet.reserved_cpus
    selected = reserved_by_amount(cpus, number, options)
    return format_cpuset(selected) if selected else kubelet.reserved_cpus


def _has_modelled_size(cpus: Collection[MachineCpu]) -> bool:
    """Return whether the numbers of CPUs and NUMA nodes are modelled, so that the selection takes little time."""
    return len(cpus) <= MOST_CPUS and is_distribution_modelled(len({cpu.zone for cpu in cpus if cpu.online}))


def _zones(
    listed: tuple[MachineZone, ...], cpus: tuple[MachineCpu, ...], reserved: frozenset[int], problems: Problems
) -> tuple[NumaZone, ...]:
    found: dict[str, NumaZone] = {}
    taken: set[int] = set()
    cores = _cores(cpus, problems)
    for zone in listed:
        name = zone_name(zone.id)
        if zone.id < 0 or name in found:
            problems.append(f"ZoneContradicts: zone {zone.id} is {'negative' if zone.id < 0 else 'listed twice'}")
            continue
        own = checked_cpuset(zone.cpus, f"zone {zone.id}", problems)
        if own is not None and own & taken:
            problems.append(
                f"ZoneContradicts: CPUs {format_cpuset(own & taken)} are in zone {zone.id} and another zone"
            )
            own -= taken
        taken |= own or set()
        capacity = _capacity(zone, own, problems)
        threads = [core & own for core in cores if core & own] if own else []
        found[name] = NumaZone(
            name=name,
            cpus=None if own is None else format_cpuset(own),
            siblings=";".join(map(format_cpuset, threads)) or None,
            capacity=capacity,
            allocatable=_remaining_capacity(capacity, len((own or frozenset()) & reserved)),
            offline_capacity_millis=within(zone.offline_capacity_millis, INT64_MAX),
            costs=_costs(zone, listed, problems),
        )
    return tuple(found.values())


def _grouped(cpus: tuple[MachineCpu, ...], level: str) -> str | None:
    """Format the online CPUs of each socket or cache (`level`), ordered by its ID; None if it is unknown for a CPU."""
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        number = getattr(cpu, level)
        if cpu.online and number is None:
            return None
        if cpu.online and 0 <= cpu.id <= MAX_CPU_ID:
            groups.setdefault(number, []).append(cpu.id)
    return ";".join(format_cpuset(groups[number]) for number in sorted(groups)) or None


def _cores(cpus: tuple[MachineCpu, ...], problems: Problems) -> list[frozenset[int]]:
    """Return the known cores in the order of their lowest thread; each core is the set of its threads."""
    texts = {cpu.siblings for cpu in cpus if cpu.online and cpu.siblings}
    groups = {group for text in texts if (group := checked_cpuset(text, "siblings", problems))}
    cores: list[frozenset[int]] = []
    seen: set[int] = set()
    for group in sorted(groups, key=min):
        if group & seen:
            problems.append(f"CpuContradicts: CPUs {format_cpuset(group & seen)} are reported in two cores")
            continue
        seen |= group
        cores.append(group)
    return cores


def _with_devices(zones: tuple[NumaZone, ...], near: Near) -> tuple[NumaZone, ...]:
    """Add the healthy devices in each zone to the zone's resources."""
    counted: dict[str, Counter[str]] = {}
    for resource, devices in near.items():
        for zone in devices.values():
            counted.setdefault(zone, Counter())[resource] += 1
    return tuple(
        msgspec.structs.replace(
            zone,
            capacity={**zone.capacity, **counted.get(zone.name, {})},
            allocatable={**zone.allocatable, **counted.get(zone.name, {})},
        )
        for zone in zones
    )


def _with_memory(zones: tuple[NumaZone, ...], kubelet: KubeletState, problems: Problems) -> tuple[NumaZone, ...]:
    """Add the assignable memory of the static memory manager, unless it is unknown for one of the zones."""
    memory = kubelet.memory
    if memory is None or kubelet.memory_manager_policy != STATIC:
        return zones
    by_zone = {zone_name(zone): _assignable(amounts) for zone, amounts in memory.items()}
    named = {zone.name for zone in zones}
    if by_zone.keys() != named or None in by_zone.values():
        what = "the kubelet's memory manager and the machine have different NUMA nodes, or an amount is out of range"
        problems.append(f"KubeletMemoryUnknown: {what}")
        return zones
    return tuple(msgspec.structs.replace(zone, assignable=by_zone[zone.name]) for zone in zones)


def _assignable(amounts: dict[str, int]) -> dict[str, int] | None:
    known = all(is_memory(kind) and 0 <= size <= INT64_MAX for kind, size in amounts.items())
    return amounts if known and len(amounts) <= MOST_KINDS else None


def _capacity(zone: MachineZone, cpus: frozenset[int] | None, problems: Problems) -> dict[str, int]:
    memory = within(zone.memory_mib, INT64_MAX // MIB)
    return {
        **({CPU: 1000 * len(cpus)} if cpus else {}),
        **({} if memory is None else {MEMORY: memory * MIB}),
        **_huge_pages(zone, problems),
    }


def _huge_pages(zone: MachineZone, problems: Problems) -> dict[str, int]:
    """Return the huge pages of a zone as Kubernetes resources: `hugepages-<size>` in bytes."""
    found: dict[str, int] = {}
    for size, count in list(zone.hugepages.items())[:MOST_NAMED]:
        match = _PAGE_SIZE.fullmatch(size)
        if match is None or not 0 <= count * int(match[1]) <= INT64_MAX // 1024:
            problems.append(f"HugePagesUnreadable: invalid huge pages in zone {zone.id}: {count} of {size[:40]!r}")
        elif count:
            found[f"{HUGE_PAGES}{_binary(int(match[1]))}"] = count * int(match[1]) * 1024
    return found


def _binary(kib: int) -> str:
    for suffix, factor in (("Gi", 2**20), ("Mi", 2**10)):
        if kib % factor == 0:
            return f"{kib // factor}{suffix}"
    return f"{kib}Ki"


def _remaining_capacity(capacity: dict[str, int], reserved_cpus: int) -> dict[str, int]:
    remaining = dict(capacity)
    if CPU in remaining:
        remaining[CPU] -= 1000 * reserved_cpus
    if MEMORY in remaining:
        pages = sum(amount for resource, amount in capacity.items() if resource.startswith(HUGE_PAGES))
        remaining[MEMORY] = max(remaining[MEMORY] - pages, 0)
    return remaining


def _costs(zone: MachineZone, listed: tuple[MachineZone, ...], problems: Problems) -> dict[str, int]:
    if zone.distances is None:
        return {}
    if len(zone.distances) != len(listed) or min(zone.distances, default=0) < 0:
        problems.append(f"ZoneContradicts: zone {zone.id} has {len(zone.distances)} distances to {len(listed)} zones")
        return {}
    return {zone_name(other.id): cost for other, cost in zip(listed, zone.distances, strict=True)}
