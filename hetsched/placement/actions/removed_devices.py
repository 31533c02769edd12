"""Approval of reports that remove devices of a node, allowed once no pod holds any of the devices."""

from __future__ import annotations

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.inventory import fact_review
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import Actor
from hetsched.placement.models import ReservedCard, ReservedCpu


def approve_fact(cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str) -> Node:
    """Approve the reported value of a quarantined node fact, so that the value takes effect.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, or `FactStillHeld` if pods hold resources that
    would be removed.
    """
    return fact_review.approve(cluster, node_name, fact, actor=actor, reason=reason, check=_check_free)


def cpus_of(report: NodeReport) -> frozenset[int]:
    """Return the CPUs that a report names in its NUMA zones and in `lost_cpus`."""
    if report.numa is None:
        return frozenset()
    named = (parse_cpuset(zone.cpus or "") for zone in report.numa.zones)
    return frozenset(parse_cpuset(report.numa.lost_cpus or "")).union(*named)


def _check_free(node: Node, _known: NodeReport) -> None:
    there = {card.index for card in node.report.gpus or cards_of(node.report)}
    cpus = cpus_of(node.report)
    held = [
        (row.reservation.pod.key, Message("CPU {cpu}", cpu=row.cpu))
        for row in ReservedCpu.objects.filter(node=node, active=True).select_related("reservation__pod")
        if row.cpu not in cpus
    ]
    held += [
        (row.reservation.pod.key, Message("GPU {card}", card=row.card_index))
        for row in ReservedCard.objects.filter(node=node, active=True).select_related("reservation__pod")
        if row.card_index not in there
    ]
    if held:
        pods = [Message("{pod} ({part})", pod=pod, part=part) for pod, part in sorted(held)[:10]]
        raise InputError(
            "FactStillHeld",
            Message("the change removes resources that are assigned to pods: {pods}", pods=joined(", ", pods)),
            place="fact",
            hint="Wait until these pods end, or delete them; until then the node accepts no new pods",
        )  # fmt: skip
