"""Reports about a node by source: the state of its agent, contradictions between sources, and quarantined facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.facts import FactInQuarantine, FactStatement, conflicts
from hetsched.contracts.times import rfc3339
from hetsched.inventory.agent_messages import silent_since
from hetsched.inventory.models import Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.placement.models import Reservation
from web.api.documents import Document


class StatedFact(Document, frozen=True):
    """Current and previous reports of a fact by source, the latest first; `conflict` is true if sources contradict each
    other now.
    """

    said: list[FactStatement]
    conflict: bool


class QuarantinedFact(Document, frozen=True):
    """A reported fact in quarantine, and the pods that hold the resources concerned.

    If the fact is `shrunk`, no new pods are placed on the missing resources. If it is `grown`, the previous value stays
    in effect until an operator approves the report. `reported` is the new value; `fact.told` has the same value and is
    deprecated.
    """

    fact: FactInQuarantine
    pods: list[str]
    reported: str


class AgentFacts(Document, frozen=True):
    """The node's agent; `silent` is true if its last report is older than three report intervals."""

    version: str
    heard_at: str
    age_seconds: float
    silent: bool


def agent_facts(row: NodeFacts | None, now: datetime) -> AgentFacts | None:
    """Return the state of a node's agent, or None if no agent has ever reported."""
    if row is None or row.reported_at is None:
        return None
    age = round(max((now - row.reported_at).total_seconds(), 0.0), 1)
    return AgentFacts(row.agent, rfc3339(row.reported_at), age, row.reported_at < silent_since(now))


def stated_fact(statements: Sequence[FactStatement]) -> StatedFact:
    """Return the reports of a fact, and whether they contradict each other."""
    return StatedFact(list(statements), conflicts(statements))


def quarantined(node: Node, row: NodeFacts, reservations: Iterable[Reservation]) -> list[QuarantinedFact]:
    """Return the quarantined facts of a node, with those pods of `reservations` that use them."""
    reservations = list(reservations)
    return [QuarantinedFact(item, _holders(node, item, reservations), item.reported) for item in row.quarantined]


def _holders(node: Node, fact: FactInQuarantine, reservations: Iterable[Reservation]) -> list[str]:
    if fact.change != "shrunk":
        return []
    indexes = {card.index for card in node.report.gpus or () if fact.item in (card.uuid, f"card {card.index}")}
    numa = node.report.numa
    lost = parse_cpuset(numa.lost_cpus or "") if numa is not None and fact.item == "CPUs" else frozenset()
    found = []
    for reservation in reservations:
        allocation = reservation.allocation
        has_card = fact.fact == "gpu" and any(grant.index in indexes for grant in allocation.gpus)
        if has_card or any(lost & parse_cpuset(zone.cpus or "") for zone in allocation.zones):
            found.append(reservation.pod.key)
    return sorted(found)
