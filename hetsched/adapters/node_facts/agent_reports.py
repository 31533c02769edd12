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

from collections.abc import Iterable

from hetsched.adapters.objects.node_isa import valid_isa
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    IsaSource,
    MachineCard,
    MachineIsa,
    MachineUsage,
)
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.objects.node_report import (
    LINK_KINDS,
    CardLink,
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    Usage,
    zone_name,
)
from hetsched.contracts.units import CPU, DISK_MBPS, INT64_MAX, MEMORY, MIB, NETWORK_MBPS

from .agent_zones import numa_facts
from .checked_values import MOST_NAMED, MOST_TEXT, Problems, within

MOST_PROBLEMS = 200
SOURCE = "agent"


def node_facts(report: AgentReport, *, observed_at: str = "", kubelet_version: str = "") -> NodeReport:
    """Return all facts in an agent's report, for the merge with the facts from the API server.

    `kubelet_version` is the version of the node's kubelet in the API server, empty if unknown.
    `allocatable` contains CPU and memory, derived from the hardware, and the known bandwidths. Agents do not report
    labels and taints.
    """
    problems = [f"{problem.code}: {problem.message}" for problem in report.problems]
    numa = numa_facts(report, problems, kubelet_version)
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
        memory_mib=within(card.memory_mib, 2**40),
        cores=within(card.cores, 2**31),
        fp32_tflops=within(card.fp32_tflops, 1e9),
        bandwidth_gbs=within(card.bandwidth_gbs, 1e9),
        clock_mhz=within(card.clock_mhz, 2**31),
        numa_zone=None if card.zone is None or card.zone < 0 else zone_name(card.zone),
        healthy=card.healthy is not False,
        links=tuple(CardLink(to, links[to].kind, within(links[to].bandwidth_gbs, 1e6)) for to in sorted(links)),
    )


# -- load --------------------------------------------------------------------------------------------------------------


def usage_facts(usage: MachineUsage | None, problems: Problems) -> Usage | None:
    """Return measured usage, or None if nothing was measured."""
    if usage is None or not usage.amounts:
        return None
    wrong = [resource for resource, amount in usage.amounts.items() if within(amount, INT64_MAX) is None]
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
    memory = within(report.memory_mib, INT64_MAX // MIB)
    if memory is not None:
        found[MEMORY] = memory * MIB
    elif numa is not None and numa.zones and all(MEMORY in zone.capacity for zone in numa.zones):
        found[MEMORY] = sum(zone.capacity[MEMORY] for zone in numa.zones)
    capacity = report.usage.capacity if report.usage is not None else {}
    for resource in (NETWORK_MBPS, DISK_MBPS):
        amount = within(capacity.get(resource), INT64_MAX)
        if amount is not None:
            found[resource] = amount
    return found
