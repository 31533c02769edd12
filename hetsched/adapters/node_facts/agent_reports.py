"""Converter of a node agent's report into a `NodeReport` for the engine.

The agent that sends the report may be outdated, faulty or compromised. One invalid value must not discard all facts of
the node, and no unchecked value may reach the engine. Zones are named `node-<id>`. Each part is read separately.
Malformed, contradictory or out-of-range values are treated as unknown and are listed in `problems`, after the agent's
own problems.
A zone's allocatable CPU is its online CPUs minus the reserved ones; its allocatable memory excludes huge pages. A GPU
that is split (MIG) is not listed, as it cannot be allocated as a whole. A GPU of unknown health is treated as healthy.
Source: public contract section 2 (`agent --once`); kubelet's node allocatable.
Invariant: the content of a report never raises an exception; the returned zones do not share CPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from hetsched.adapters.objects.kubelet_grants import Near, kubelet_grants, zones_of_devices
from hetsched.adapters.objects.node_isa import valid_isa
from hetsched.contracts.cpuset import MAX_CPU_ID, format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    IsaSource,
    KubeletState,
    MachineCard,
    MachineCpu,
    MachineIsa,
    MachineUsage,
    MachineZone,
)
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.objects.kubelet_options import bounded
from hetsched.contracts.objects.node_report import (
    LINK_KINDS,
    CardLink,
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    NumaZone,
    Usage,
)
from hetsched.contracts.objects.pinned_memory import MOST_KINDS, STATIC, is_memory
from hetsched.contracts.units import CPU, DISK_MBPS, INT64_MAX, MEMORY, MIB, NETWORK_MBPS

MOST_ZONES = 1024
MOST_PROBLEMS = 200
MOST_TEXT = 300  # characters of a name or a problem
MOST_NAMED = 64  # limit for each list: instruction sets, page sizes, measured resources
SOURCE = "agent"
CPU_MANAGER_POLICIES = frozenset({"none", "static"})
TOPOLOGY_MANAGER_POLICIES = frozenset({"none", "best-effort", "restricted", "single-numa-node"})
TOPOLOGY_MANAGER_SCOPES = frozenset({"container", "pod"})
_PAGE_SIZE = re.compile(r"(\d{1,12})kB", re.ASCII)

Problems = list[str]
Number = TypeVar("Number", int, float)


def zone_name(zone: int) -> str:
    """Return the name of a zone in the engine and the API."""
    return f"node-{zone}"


def node_facts(report: AgentReport, *, observed_at: str = "") -> NodeReport:
    """Return all facts in an agent's report, for the merge with the facts from the API server.

    `allocatable` contains CPU and memory, derived from the hardware, and the known bandwidths. Agents do not report
    labels and taints.
    """
    problems = [f"{problem.code}: {problem.message}" for problem in report.problems]
    numa = numa_facts(report, problems)
    return NodeReport(
        name=report.node,
        allocatable=_allocatable(report, numa),
        isa=isa_facts(report.isa, problems),
        gpus=card_facts(report.gpus, problems),
        numa=numa,
        usage=usage_facts(report.usage, problems),
        problems=tuple(problem[:MOST_TEXT] for problem in problems[:MOST_PROBLEMS]),
        source=SOURCE,
        observed_at=observed_at,
    )


# -- instruction sets ------------------------------------------------------------------------------------------------


def isa_facts(machine: MachineIsa, problems: Problems) -> IsaReport:
    """Return the machine's instruction sets; `complete` is true if the source of the native one is exact."""
    native = None if machine.canonical is None else valid_isa(machine.canonical, problems)
    chosen = _accepted_source(machine, native)
    return IsaReport(
        native=native,
        emulated=_distinct(valid_isa(offer.isa, problems) for offer in machine.emulated),
        cross=_distinct(valid_isa(offer, problems) for offer in machine.cross),
        source=f"{SOURCE}: {chosen.source}" if chosen is not None else SOURCE if native else "",
        complete=chosen is None or chosen.bound == "exact",
    )


def _accepted_source(machine: MachineIsa, native: str | None) -> IsaSource | None:
    """Return the first source that confirms the native ISA; exact sources precede lower bounds."""
    if native is None:
        return None
    agreeing = [source for source in machine.sources if source.canonical == native and source.conflict is None]
    return min(agreeing, key=lambda source: source.bound != "exact", default=None)


def _distinct(offers: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(offer for offer in offers if offer is not None))[:MOST_NAMED]


# -- NUMA --------------------------------------------------------------------------------------------------------------


def numa_facts(report: AgentReport, problems: Problems) -> NumaReport | None:
    """Return the zones and the kubelet's configuration, or None if neither is known."""
    kubelet = report.kubelet
    if report.zones is None and kubelet is None:
        return None
    listed = report.zones or ()
    if len(listed) > MOST_ZONES:
        problems.append(f"ZonesTooMany: {len(listed)} zones, at most {MOST_ZONES} are supported; no zone is used")
        listed = ()
    reserved = _cpuset(kubelet.reserved_cpus if kubelet else None, "the kubelet's reserved CPUs", problems)
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
        cpu_manager_policy=_word(kubelet.cpu_manager_policy, CPU_MANAGER_POLICIES, "CPU manager policy", problems),
        topology_manager_policy=_word(
            kubelet.topology_manager_policy, TOPOLOGY_MANAGER_POLICIES, "topology manager policy", problems
        ),
        topology_manager_scope=_word(
            kubelet.topology_manager_scope, TOPOLOGY_MANAGER_SCOPES, "topology manager scope", problems
        ),
        reserved_cpus=format_cpuset(reserved) if reserved else None,
    )


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
        own = _cpuset(zone.cpus, f"zone {zone.id}", problems)
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
            offline_capacity_millis=_bounded(zone.offline_capacity_millis, INT64_MAX),
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
    groups = {group for text in texts if (group := _cpuset(text, "siblings", problems))}
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
    by_zone = {f"node-{zone}": _assignable(amounts) for zone, amounts in memory.items()}
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
    memory = _bounded(zone.memory_mib, INT64_MAX // MIB)
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
            found[f"hugepages-{_binary(int(match[1]))}"] = count * int(match[1]) * 1024
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
        pages = sum(amount for resource, amount in capacity.items() if resource.startswith("hugepages-"))
        remaining[MEMORY] = max(remaining[MEMORY] - pages, 0)
    return remaining


def _costs(zone: MachineZone, listed: tuple[MachineZone, ...], problems: Problems) -> dict[str, int]:
    if zone.distances is None:
        return {}
    if len(zone.distances) != len(listed) or min(zone.distances, default=0) < 0:
        problems.append(f"ZoneContradicts: zone {zone.id} has {len(zone.distances)} distances to {len(listed)} zones")
        return {}
    return {zone_name(other.id): cost for other, cost in zip(listed, zone.distances, strict=True)}


# -- GPUs ------------------------------------------------------------------------------------------------------------


def card_facts(cards: tuple[MachineCard, ...] | None, problems: Problems) -> tuple[GpuCard, ...] | None:
    """Return the whole (unsplit) GPUs of a machine, or None if they could not be listed."""
    if cards is None:
        return None
    found: dict[int, GpuCard] = {}
    uuids: set[str] = set()
    for card in cards:
        wrong = _card_problem(card, found, uuids)
        if wrong:
            problems.append(wrong)
            continue
        if card.uuid:
            uuids.add(card.uuid)
        found[card.index] = _card(card)
    return tuple(found[index] for index in sorted(found))


def _card_problem(card: MachineCard, found: dict[int, GpuCard], uuids: set[str]) -> str:
    """Return the reason why a GPU cannot be allocated as a whole, or an empty message if there is none."""
    if not 0 <= card.index < MAX_CARDS:
        return f"CardOutOfBounds: card index {card.index} is not between 0 and {MAX_CARDS - 1}"
    if card.index in found or card.uuid in uuids:
        return f"CardDuplicate: card {card.index} ({card.uuid or 'no uuid'}) is listed twice"
    if card.uuid is not None and len(card.uuid) > MAX_CARD_UUID:
        return f"CardOutOfBounds: the uuid of card {card.index} has more than {MAX_CARD_UUID} characters"
    if card.mig_devices:
        return f"CardSplit: card {card.index} is not a whole card: it has {len(card.mig_devices)} MIG devices"
    return ""


def _card(card: MachineCard) -> GpuCard:
    links = {link.to: link for link in card.links if link.kind in LINK_KINDS and 0 <= link.to < MAX_CARDS}
    links.pop(card.index, None)
    model = (card.model or "")[:MOST_TEXT]
    return GpuCard(
        index=card.index,
        uuid=card.uuid or None,
        model=model or None,
        vendor=card.vendor[:MOST_TEXT].lower() or vendor_of(model),
        memory_mib=_bounded(card.memory_mib, 2**40),
        cores=_bounded(card.cores, 2**31),
        fp32_tflops=_bounded(card.fp32_tflops, 1e9),
        bandwidth_gbs=_bounded(card.bandwidth_gbs, 1e9),
        clock_mhz=_bounded(card.clock_mhz, 2**31),
        numa_zone=None if card.zone is None or card.zone < 0 else zone_name(card.zone),
        healthy=card.healthy is not False,
        links=tuple(CardLink(to, links[to].kind, _bounded(links[to].bandwidth_gbs, 1e6)) for to in sorted(links)),
    )


# -- load --------------------------------------------------------------------------------------------------------------


def usage_facts(usage: MachineUsage | None, problems: Problems) -> Usage | None:
    """Return measured usage, or None if nothing was measured."""
    if usage is None or not usage.amounts:
        return None
    wrong = [resource for resource, amount in usage.amounts.items() if _bounded(amount, INT64_MAX) is None]
    problems.extend(
        f"UsageOutOfBounds: the usage of {resource[:80]!r} is out of range: {usage.amounts[resource]}"
        for resource in sorted(wrong)
    )
    amounts = {
        resource: amount
        for resource, amount in list(usage.amounts.items())[:MOST_NAMED]
        if resource not in wrong and len(resource) <= MOST_TEXT
    }
    return Usage(amounts, usage.observed_at[:MOST_TEXT]) if amounts else None


def _allocatable(report: AgentReport, numa: NumaReport | None) -> dict[str, int]:
    found: dict[str, int] = {}
    if numa is not None and numa.zones and all(zone.cpus is not None for zone in numa.zones):
        found[CPU] = sum(zone.allocatable.get(CPU, 0) for zone in numa.zones)
    memory = _bounded(report.memory_mib, INT64_MAX // MIB)
    if memory is not None:
        found[MEMORY] = memory * MIB
    elif numa is not None and numa.zones and all(MEMORY in zone.capacity for zone in numa.zones):
        found[MEMORY] = sum(zone.capacity[MEMORY] for zone in numa.zones)
    capacity = report.usage.capacity if report.usage is not None else {}
    for resource in (NETWORK_MBPS, DISK_MBPS):
        amount = _bounded(capacity.get(resource), INT64_MAX)
        if amount is not None:
            found[resource] = amount
    return found


# -- checks ------------------------------------------------------------------------------------------------------------


def _bounded(number: Number | None, most: float) -> Number | None:
    return number if number is not None and 0 <= number <= most else None


def _cpuset(text: str | None, whose: str, problems: Problems) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return parse_cpuset(text)
    except InputError as error:
        problems.append(f"{error.code}: {whose}: {error.message}")
        return None


def _word(text: str | None, known: frozenset[str], what: str, problems: Problems) -> str | None:
    if text is None or text.lower() in known:
        return text and text.lower()
    problems.append(f"KubeletUnknown: unknown {what} {text[:40]!r}")
    return None
