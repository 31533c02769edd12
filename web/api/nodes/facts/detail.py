"""The document of one node: its facts, instruction sets, GPUs, balance, use and pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.facts import Maintenance, Override
from hetsched.contracts.objects.node_report import GpuCard, PowerReport, Taint
from hetsched.contracts.units import format_amount
from hetsched.inventory.models import Node
from hetsched.inventory.overrides import parts_in_maintenance
from hetsched.isa import parse
from hetsched.placement.models import DevicePluginAllocation, Reservation

from ...documents import Document
from .fact_conflicts import BackOff, FactConflictDetail, back_offs, conflict_details
from .origin import Origin, origin, quantities, source_of, stated
from .source_reports import AgentFacts, QuarantinedFact, StatedFact, agent_facts, quarantined, stated_fact


class DeviceAllocation(Document, frozen=True):
    """GPUs reserved for a pod (`granted`) and GPUs that its node allocated to it (`cards`), by index; `cards` is null
    if the allocation is unknown.

    `advisory` is true if another device plugin chooses the GPUs. `problem` describes a difference between the two
    lists.
    """

    advisory: bool
    granted: list[int]
    cards: list[int] | None
    problem: str | None


class CardShare(Document, frozen=True):
    """The share of a GPU that one pod holds; `handedOut` is the device allocation of the pod, or null if none is
    reported.
    """

    pod: str
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    handed_out: DeviceAllocation | None = None


class CardFacts(Document, frozen=True):
    """One GPU and its holders; `freeMemoryMiB` is null if the memory of the GPU is unknown."""

    card: GpuCard
    free_milli: int
    free_memory_mib: int | None = msgspec.field(name="freeMemoryMiB")
    holders: list[CardShare]


class GpuFacts(Document, frozen=True):
    """All GPUs of a node, with the source of these facts."""

    origin: Origin
    cards: list[CardFacts]


def gpu_facts(
    node: Node,
    reservations: Iterable[Reservation],
    now: datetime,
    *,
    is_visible: Callable[[str], bool] = lambda namespace: True,
) -> GpuFacts:
    """Return the node's GPUs; pods of namespaces outside the caller's scope are counted but not named."""
    shares: dict[int, list[CardShare]] = {}
    used: dict[int, tuple[int, int]] = {}
    handed = {row.pod_id: device_allocation(row) for row in DevicePluginAllocation.objects.filter(node=node)}
    for reservation in reservations:
        for grant in reservation.allocation.gpus:
            if is_visible(reservation.pod.namespace):
                given = handed.get(reservation.pod_id)
                share = CardShare(reservation.pod.key, grant.milli, grant.memory_mib, given)
                shares.setdefault(grant.index, []).append(share)
            milli, memory = used.get(grant.index, (0, 0))
            used[grant.index] = (milli + grant.milli, memory + grant.memory_mib)
    listed = node.report.gpus is not None
    cards = []
    for card in node.report.gpus if node.report.gpus is not None else cards_of(node.report):
        milli, memory = used.get(card.index, (0, 0))
        cards.append(
            CardFacts(
                card=card,
                free_milli=max(1000 - milli, 0) if card.healthy else 0,
                free_memory_mib=None if card.memory_mib is None else max(card.memory_mib - memory, 0),
                holders=shares.get(card.index, []),
            )
        )
    source = source_of(node, "gpu") if listed else "allocatable and labels"
    return GpuFacts(origin(node, now, source=source), cards)


def device_allocation(row: DevicePluginAllocation) -> DeviceAllocation:
    cards = None if row.cards is None else sorted(row.cards)
    return DeviceAllocation(row.advisory, sorted(grant.index for grant in row.granted), cards, row.problem or None)


class IsaFacts(Document, frozen=True):
    """The instruction sets that a node offers; if `complete` is false, `native` is a lower bound."""

    origin: Origin
    family: str
    native: str | None
    base: str | None
    extensions: list[str]
    emulated: tuple[str, ...]
    cross: tuple[str, ...]
    complete: bool


def isa_facts(node: Node, reservations: Iterable[Reservation], now: datetime) -> IsaFacts:
    stated = node.report.isa
    base, extensions = None, list[str]()
    if stated.native:
        try:
            isa = parse(stated.native, source="node-label")
            base, extensions = isa.base, sorted(isa.extensions)
        except InputError:
            pass  # an invalid ISA string is shown in `native` without a base and extensions
    return IsaFacts(
        origin=origin(node, now, source=stated.source),
        family=node.isa_family,
        native=stated.native,
        base=base,
        extensions=extensions,
        emulated=stated.emulated,
        cross=stated.cross,
        complete=stated.complete,
    )


class ResourceUse(Document, frozen=True):
    """Use of one resource: `used` is the last sample plus the pods placed since then, or the requests if there
    is no sample.

    `ratio` is used / allocatable, clamped to 0-1.
    """

    allocatable: str
    requested: str
    measured: str | None
    used: str
    ratio: float


class BalanceFacts(Document, frozen=True):
    """Balance of a node's resource use: `balance` is 1 minus the population variance of the ratios, or 1 if there
    are fewer than two ratios.

    `stale` is true if requests are used because the sample is too old.
    """

    origin: Origin
    resources: dict[str, ResourceUse]
    balance: float
    stale: bool = False


def balance_facts(
    node: Node, used: dict[str, int], balance: float, now: datetime, *, stale: bool = False
) -> BalanceFacts:
    """Return a node's balance and its use by resource; the engine computed `used`, `balance` and `stale`."""
    usage = node.report.usage
    measured = usage.amounts if usage else {}
    resources = {
        name: ResourceUse(
            allocatable=format_amount(name, whole),
            requested=format_amount(name, node.requested.get(name, 0)),
            measured=format_amount(name, measured[name]) if name in measured else None,
            used=format_amount(name, max(amount, 0)),
            ratio=round(min(max(amount / whole, 0.0), 1.0), 6),
        )
        for name, amount in used.items()
        if (whole := node.allocatable.get(name, 0))
    }
    if usage is None or stale:
        return BalanceFacts(origin(node, now, source="requests"), resources, round(balance, 6), stale)
    sampled = origin(node, now, source=usage.source or "usage", observed_at=usage.observed_at)
    return BalanceFacts(sampled, resources, round(balance, 6))


class NodeDetail(Document, frozen=True):
    """A node with its facts, its load and its pods."""

    name: str
    cluster: str
    uid: str
    ready: bool
    unschedulable: bool
    cordoned_by_operator: bool
    family: str
    isa: str
    pool: str
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: tuple[Taint, ...]
    allocatable: dict[str, str]
    requested: dict[str, str]
    card_count: int
    cards_installed: int
    gpu_milli_used: int
    pod_count: int
    pods: list[str]
    power: PowerReport | None
    problems: tuple[str, ...]
    doubts: list[FactConflictDetail]
    back_offs: list[BackOff]
    origin: Origin
    agent: AgentFacts | None = None
    facts: dict[str, StatedFact] = {}
    quarantined: list[QuarantinedFact] = []
    overrides: list[Override] = []
    maintenance: list[Maintenance] = []


def node_detail(
    node: Node, reservations: Iterable[Reservation], now: datetime, *, is_visible: Callable[[str], bool]
) -> NodeDetail:
    """Return the document of a node; `reservations` are the active reservations that the caller may see."""
    report, row, reservations = node.report, stated(node), list(reservations)
    return NodeDetail(
        name=node.name,
        cluster=node.cluster.name,
        uid=report.uid,
        ready=node.ready,
        unschedulable=node.unschedulable,
        cordoned_by_operator=node.cordoned_by_operator,
        family=node.isa_family,
        isa=report.isa.native or "",
        pool=node.pool,
        labels=report.labels,
        annotations=report.annotations,
        taints=report.taints,
        allocatable=quantities(node.allocatable),
        requested=quantities(node.requested),
        card_count=node.card_count,
        cards_installed=node.cards_installed,
        gpu_milli_used=node.gpu_milli_used,
        pod_count=node.pods,
        pods=sorted(reservation.pod.key for reservation in reservations),
        power=report.power,
        problems=report.problems,
        doubts=conflict_details(node, is_visible),
        back_offs=back_offs(node, now, is_visible),
        origin=origin(node, now),
        agent=agent_facts(row, now),
        facts={} if row is None else {fact: stated_fact(said) for fact, said in sorted(row.claims.items())},
        quarantined=[] if row is None else quarantined(node, row, reservations),
        overrides=[] if row is None else list(row.overrides),
        maintenance=[] if row is None else list(parts_in_maintenance(row.overrides)),
    )
