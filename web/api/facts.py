"""What is known about a node, each fact with who said it and when.

Rule: a fact nobody stated is null, never 0 and never "no". Amounts are Kubernetes quantities. `source` names who said
it; `observedAt` is when, the time of the import where the source gives none; `ageSeconds` counts from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hetsched.contracts.cards import cards_of
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.facts import FactInQuarantine, Override, Said, conflicts
from hetsched.contracts.node_report import GpuCard, NumaZone, PowerReport, Taint
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, format_amount
from hetsched.engine.zones import ZoneAtRisk
from hetsched.inventory.facts import AGENT
from hetsched.inventory.hearing import silent_since
from hetsched.inventory.models import Node
from hetsched.inventory.node_facts import NodeFacts
from hetsched.isa import parse
from hetsched.placement.backoffs import kept_off
from hetsched.placement.models import HandedOut, Reservation

from .documents import Document


class Origin(Document, frozen=True):
    """Who stated a group of facts, and when."""

    source: str
    observed_at: str
    age_seconds: float


class IsaFacts(Document, frozen=True):
    """The instruction sets a node offers; where `complete` is false `native` is a lower bound."""

    origin: Origin
    family: str
    native: str | None
    base: str | None
    extensions: list[str]
    emulated: tuple[str, ...]
    cross: tuple[str, ...]
    complete: bool


class HandedCards(Document, frozen=True):
    """What a pod was granted and what its node gave it, by card index; `cards` is null where that is not known.

    `advisory`: another device plugin chooses, so the grant is advice. `problem` says what does not add up.
    """

    advisory: bool
    granted: list[int]
    cards: list[int] | None
    problem: str | None


class CardShare(Document, frozen=True):
    """What one pod holds of a card; `handedOut` is null where no agent tells what was handed out."""

    pod: str
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    handed_out: HandedCards | None = None


class CardFacts(Document, frozen=True):
    """One card and who holds it; `freeMemoryMiB` is null where the card's memory is unknown."""

    card: GpuCard
    free_milli: int
    free_memory_mib: int | None = msgspec.field(name="freeMemoryMiB")
    holders: list[CardShare]


class GpuFacts(Document, frozen=True):
    """The whole cards of a node."""

    origin: Origin
    cards: list[CardFacts]


class ZoneFacts(Document, frozen=True):
    """One NUMA zone; `cpus` is null where the zone is only counted.

    `offlineCapacity` is what online workloads leave of it, null where nobody said. `short` is by how much it has less
    than it granted, null where it does not; then it takes nothing more, and `atRisk` names the pods that hold it.
    """

    name: str
    cpus: str | None
    siblings: str | None
    capacity: dict[str, str]
    allocatable: dict[str, str]
    costs: dict[str, int]
    offline_capacity: str | None
    short: str | None
    at_risk: list[str]
    held: list[dict[str, Any]]


class PinFacts(Document, frozen=True):
    """A container that the agent looks after: the CPUs it was granted and those it has.

    `by` is who pins; `drift` says how the two differ, empty where they do not.
    """

    pod: str
    container: str
    predicted: str
    actual: str | None
    by: str
    drift: str


class NumaFacts(Document, frozen=True):
    """The zones of a node and how its kubelet is set up; null where nobody reported any.

    `lostCpus` were there and are reported no more; `pins` is null where no agent looks after containers.
    """

    origin: Origin
    cpu_manager_policy: str | None
    topology_manager_policy: str | None
    topology_manager_scope: str | None
    reserved_cpus: str | None
    zones: list[ZoneFacts] | None
    lost_cpus: str | None = None
    pins: list[PinFacts] | None = None


class ResourceUse(Document, frozen=True):
    """One resource: `used` is the last sample with what was placed since, or what is requested where there is none.

    `ratio` is used / allocatable, clamped to 0-1.
    """

    allocatable: str
    requested: str
    measured: str | None
    used: str
    ratio: float


class BalanceFacts(Document, frozen=True):
    """How evenly a node is used: `balance` is 1 - population variance of the ratios, 1 with fewer than two.

    `stale`: there is a sample, but it is too old to count, so that requests stand for it.
    """

    origin: Origin
    resources: dict[str, ResourceUse]
    balance: float
    stale: bool = False


class DoubtFacts(Document, frozen=True):
    """A fact that the node's kubelet contradicted: since when, and by refusing which pod.

    `pod` and `message` are null where the asker may not see the pod. The fact counts as it is reported all the same.
    """

    fact: str
    since: str
    pod: str | None
    reason: str
    message: str | None


class BackOff(Document, frozen=True):
    """Pods of one owner that keep off this node because its kubelet refused the last ones, and until when."""

    owner: str
    pods: int
    reason: str
    until: str


class StatedFact(Document, frozen=True):
    """Who says what of a fact, and said before, the latest first; `conflict`: sources contradict each other now."""

    said: list[Said]
    conflict: bool


class QuarantinedFact(Document, frozen=True):
    """A fact that does not count as it is told, and the pods that hold something of it.

    `shrunk`: nothing new is placed on what is missing. `grown`: what was known counts until an operator approves it.
    """

    fact: FactInQuarantine
    pods: list[str]


class AgentFacts(Document, frozen=True):
    """The node's agent; `silent`: it was not heard of for three times as long as it is asked to report."""

    version: str
    heard_at: str
    age_seconds: float
    silent: bool


class NodeDetail(Document, frozen=True):
    """A node: the facts, its load and its pods."""

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
    gpu_milli_used: int
    pod_count: int
    pods: list[str]
    power: PowerReport | None
    problems: tuple[str, ...]
    doubts: list[DoubtFacts]
    back_offs: list[BackOff]
    origin: Origin
    agent: AgentFacts | None = None
    facts: dict[str, StatedFact] = {}
    quarantined: list[QuarantinedFact] = []
    overrides: list[Override] = []


def quantities(amounts: dict[str, int]) -> dict[str, str]:
    """Write amounts in base units as quantities, by name."""
    return {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}


def origin(node: Node, now: datetime, *, source: str = "", observed_at: str = "") -> Origin:
    """Return who stated facts of this node; without its own time a fact is as old as the report."""
    at = observed_at or node.report.observed_at or rfc3339(node.updated_at)
    try:
        seen = msgspec.convert(at, type=datetime)
    except msgspec.ValidationError:
        seen, at = node.updated_at, rfc3339(node.updated_at)
    if seen.tzinfo is None:
        seen, at = node.updated_at, rfc3339(node.updated_at)
    age = round(max((now - seen).total_seconds(), 0.0), 1)
    return Origin(source or node.report.source or "file", at, age)


def source_of(node: Node, fact: str) -> str:
    """Return who is believed of a fact, empty where it is whoever reported the node."""
    row = stated(node)
    said = row.claims.get(fact, ()) if row is not None else ()
    return AGENT if any(one.current and one.source == AGENT for one in said) else ""


def doubt_facts(node: Node, sees: Callable[[str], bool]) -> list[DoubtFacts]:
    """Return what is in doubt about a node; pods of namespaces that the asker does not see are not named."""
    told = []
    for one in node.doubts:
        named = sees(_namespace(one.pod))  # kubelets name pods in their messages too
        pod, message = (one.pod, one.message) if named else (None, None)
        told.append(DoubtFacts(one.fact, one.since, pod, one.reason, message))
    return told


def back_offs(node: Node, now: datetime, sees: Callable[[str], bool]) -> list[BackOff]:
    """Return the owners that keep off a node, as far as the asker may see their pods."""
    rows = [row for row in kept_off(node, now) if sees(_namespace(row.pod))]
    counts = Counter(row.owner for row in rows)
    latest = {row.owner: row for row in rows}
    return [
        BackOff(row.controller or row.pod, counts[owner], row.reason, rfc3339(row.until))
        for owner, row in latest.items()
    ]


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def node_detail(node: Node, held: Iterable[Reservation], now: datetime, *, sees: Callable[[str], bool]) -> NodeDetail:
    """Return the node's own page; `held` are the active reservations that the asker may see."""
    report, row, held = node.report, stated(node), list(held)
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
        gpu_milli_used=node.gpu_milli_used,
        pod_count=node.pods,
        pods=sorted(reservation.pod.key for reservation in held),
        power=report.power,
        problems=report.problems,
        doubts=doubt_facts(node, sees),
        back_offs=back_offs(node, now, sees),
        origin=origin(node, now),
        agent=agent_facts(row, now),
        facts={} if row is None else {fact: stated_fact(said) for fact, said in sorted(row.claims.items())},
        quarantined=[] if row is None else quarantined(node, row, held),
        overrides=[] if row is None else list(row.overrides),
    )


def stated(node: Node) -> NodeFacts | None:
    """Return what is said of a node beside its report, None where nothing is."""
    return getattr(node, "facts", None)


def agent_facts(row: NodeFacts | None, now: datetime) -> AgentFacts | None:
    """Return how it stands with a node's agent, None where none ever reported."""
    if row is None or row.heard_at is None:
        return None
    age = round(max((now - row.heard_at).total_seconds(), 0.0), 1)
    return AgentFacts(row.agent, rfc3339(row.heard_at), age, row.heard_at < silent_since(now))


def stated_fact(said: Sequence[Said]) -> StatedFact:
    """Return the words on a fact, and whether they contradict each other."""
    return StatedFact(list(said), conflicts(said))


def quarantined(node: Node, row: NodeFacts, held: Iterable[Reservation]) -> list[QuarantinedFact]:
    """Return what of a node is in quarantine, with the pods among `held` that have something of it."""
    held = list(held)
    return [QuarantinedFact(one, _holders(node, one, held)) for one in row.quarantined]


def _holders(node: Node, one: FactInQuarantine, held: Iterable[Reservation]) -> list[str]:
    if one.change != "shrunk":
        return []
    indexes = {card.index for card in node.report.gpus or () if one.item in (card.uuid, f"card {card.index}")}
    numa = node.report.numa
    lost = parse_cpuset(numa.lost_cpus or "") if numa is not None and one.item == "CPUs" else frozenset()
    found = []
    for reservation in held:
        allocation = reservation.allocation
        has_card = one.fact == "gpu" and any(grant.index in indexes for grant in allocation.gpus)
        if has_card or any(lost & parse_cpuset(zone.cpus or "") for zone in allocation.zones):
            found.append(reservation.pod.key)
    return sorted(found)


def isa_facts(node: Node, held: Iterable[Reservation], now: datetime) -> IsaFacts:
    stated = node.report.isa
    base, extensions = None, list[str]()
    if stated.native:
        try:
            isa = parse(stated.native, source="node-label")
            base, extensions = isa.base, sorted(isa.extensions)
        except InputError:
            pass  # an unreadable string is shown as it is
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


def gpu_facts(
    node: Node, held: Iterable[Reservation], now: datetime, *, sees: Callable[[str], bool] = lambda namespace: True
) -> GpuFacts:
    """Return the node's cards; pods of namespaces that the asker does not see take their room without being named."""
    shares: dict[int, list[CardShare]] = {}
    used: dict[int, tuple[int, int]] = {}
    handed = {row.pod_id: handed_cards(row) for row in HandedOut.objects.filter(node=node)}
    for reservation in held:
        for grant in reservation.allocation.gpus:
            if sees(reservation.pod.namespace):
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


def handed_cards(row: HandedOut) -> HandedCards:
    cards = None if row.cards is None else sorted(row.cards)
    return HandedCards(row.advisory, sorted(grant.index for grant in row.granted), cards, row.problem or None)


def numa_facts(
    node: Node, held: Iterable[Reservation], now: datetime, *, at_risk: Iterable[ZoneAtRisk] = ()
) -> NumaFacts:
    """Return the node's zones; `at_risk` are those that granted more than they have.

    Of the pods at risk those are named that are among `held`, which the asker may see.
    """
    held = list(held)
    seen = {reservation.pod.key for reservation in held}
    short = {zone.zone: zone._replace(pods=tuple(pod for pod in zone.pods if pod in seen)) for zone in at_risk}
    numa = node.report.numa
    if numa is None:
        return NumaFacts(origin(node, now), None, None, None, None, None, pins=pins(node, held))
    holders: dict[str, list[dict[str, Any]]] = {}
    for reservation in held:
        for grant in reservation.allocation.zones:
            holders.setdefault(grant.name, []).append({"pod": reservation.pod.key, **msgspec.to_builtins(grant)})
    return NumaFacts(
        origin=origin(node, now, source=source_of(node, "numa")),
        cpu_manager_policy=numa.cpu_manager_policy,
        topology_manager_policy=numa.topology_manager_policy,
        topology_manager_scope=numa.topology_manager_scope,
        reserved_cpus=numa.reserved_cpus,
        zones=[_zone(zone, holders.get(zone.name, []), short.get(zone.name)) for zone in numa.zones],
        lost_cpus=numa.lost_cpus,
        pins=pins(node, held),
    )


def pins(node: Node, held: Iterable[Reservation]) -> list[PinFacts] | None:
    """Return where the containers of the pods among `held` are, None where no agent looks after them."""
    row = stated(node)
    if row is None or row.pinned is None:
        return None
    keys = {reservation.pod.uid: reservation.pod.key for reservation in held}
    return [
        PinFacts(keys[one.pod_uid], one.container, one.predicted, one.actual, one.by, one.drift)
        for one in row.pinned
        if one.pod_uid in keys
    ]


def _zone(zone: NumaZone, held: list[dict[str, Any]], short: ZoneAtRisk | None) -> ZoneFacts:
    offline = zone.offline_capacity_millis
    return ZoneFacts(
        name=zone.name,
        cpus=zone.cpus,
        siblings=zone.siblings,
        capacity=quantities(zone.capacity),
        allocatable=quantities(zone.allocatable),
        costs=zone.costs,
        offline_capacity=None if offline is None else format_amount(CPU, offline),
        short=None if short is None else format_amount(CPU, short.short_millis),
        at_risk=[] if short is None else list(short.pods),
        held=held,
    )


def balance_facts(
    node: Node, used: dict[str, int], balance: float, now: datetime, *, stale: bool = False
) -> BalanceFacts:
    """Return a node's use by resource; `used`, `balance` and `stale` are the engine's."""
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
