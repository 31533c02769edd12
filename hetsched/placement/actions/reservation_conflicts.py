"""Quarantine of nodes on which reservations repeatedly fail at commit.

The scheduler cache can show free capacity on a node where the reservation rows show none. Without a limit the scheduler
would choose the same node forever.
A placement that is valid in the cache but fails against the rows at commit is recorded as a conflict of its node.
After `MOST` conflicts within `WITHIN`, the node is cordoned and an audit entry with the reason is written. An operator
inspects the node and uncordons it, which restarts the count.
Bindings that the API server rejects are not counted: they concern the pod, not the node.
Source: HashiCorp Nomad's plan rejection tracker (Nomad#13421).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.utils import timezone

from hetsched.contracts.message import Message
from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import RejectedCommit

MOST = 20
WITHIN = timedelta(minutes=5)


def record_reservation_conflicts(cluster_id: int, node_ids: Iterable[int]) -> list[str]:
    """Record one conflict for each of these nodes; return the names of the nodes that are now cordoned."""
    now, found = timezone.now(), sorted(set(node_ids))
    RejectedCommit.objects.filter(cluster_id=cluster_id, created_at__lt=now - WITHIN).delete()
    rows = [RejectedCommit(cluster_id=cluster_id, node_id=node_id, created_at=now) for node_id in found]
    RejectedCommit.objects.bulk_create(rows)
    cordoned = []
    for node in Node.objects.filter(pk__in=found, cordoned_by_operator=False).defer("report"):
        refusals = RejectedCommit.objects.filter(node=node)
        if refusals.count() >= MOST:
            minutes = int(WITHIN.total_seconds() // 60)
            reason = Message(
                "cordoned: {n} reservations on the node failed with a conflict within {m} minutes", n=MOST, m=minutes
            )
            cordon(Cluster.objects.get(pk=cluster_id), node.name, actor=SYSTEM, reason=reason)
            refusals.delete()
            cordoned.append(node.name)
    return cordoned
