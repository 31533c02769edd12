"""Believe a node's word that part of it is gone for good, once nobody holds anything of it."""

from __future__ import annotations

from hetsched.contracts.cards import cards_of
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.node_report import NodeReport
from hetsched.inventory import fact_review
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import Actor
from hetsched.placement.models import ReservedCard, ReservedCpu


def approve_fact(cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str) -> Node:
    """Let what is told of a quarantined fact count.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, or `FactStillHeld` where pods hold what would go.
    """
    return fact_review.approve(cluster, node_name, fact, actor=actor, reason=reason, check=_check_free)


def cpus_of(report: NodeReport) -> frozenset[int]:
    """Return the CPUs that a report names, those that were lost included."""
    if report.numa is None:
        return frozenset()
    named = (parse_cpuset(zone.cpus or "") for zone in report.numa.zones)
    return frozenset(parse_cpuset(report.numa.lost_cpus or "")).union(*named)


def _check_free(node: Node, _known: NodeReport) -> None:
    there = {card.index for card in node.report.gpus or cards_of(node.report)}
    cpus = cpus_of(node.report)
    held = [
        (row.reservation.pod.key, f"CPU {format_cpuset([row.cpu])}")
        for row in ReservedCpu.objects.filter(node=node, active=True).select_related("reservation__pod")
        if row.cpu not in cpus
    ]
    held += [
        (row.reservation.pod.key, f"card {row.card_index}")
        for row in ReservedCard.objects.filter(node=node, active=True).select_related("reservation__pod")
        if row.card_index not in there
    ]
    if held:
        named = ", ".join(f"{pod} ({what})" for pod, what in sorted(held)[:10])
        raise InputError(
            "FactStillHeld", f"pods hold what would go: {named}"[:400], place="fact",
            hint="Let them end or delete them first; until then nothing new is placed there",
        )  # fmt: skip
