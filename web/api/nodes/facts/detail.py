"""The document of one node: the facts, its load and its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hetsched.contracts.objects.facts import Maintenance, Override
from hetsched.contracts.objects.node_report import PowerReport, Taint
from hetsched.inventory.models import Node
from hetsched.inventory.overrides import in_maintenance
from hetsched.placement.models import Reservation
from web.api.documents import Document

from .doubts import BackOff, DoubtFacts, back_offs, doubt_facts
from .origin import Origin, origin, quantities, stated
from .words import AgentFacts, QuarantinedFact, StatedFact, agent_facts, quarantined, stated_fact


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
    cards_installed: int
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
    maintenance: list[Maintenance] = []


def node_detail(node: Node, held: Iterable[Reservation], now: datetime, *, sees: Callable[[str], bool]) -> NodeDetail:
    """Return the document of a node; `held` are the active reservations that the caller may see."""
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
        cards_installed=node.cards_installed,
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
        maintenance=[] if row is None else list(in_maintenance(row.overrides)),
    )
