"""Nodes on which decisions and the rows of the ledger disagree again and again.

Problem: whoever decides sees room where the rows see none; without an end to it the same node is tried for ever.
Rule: a placement that the rows alone refused is noted with its node. `MOST` of them `WITHIN` five minutes put the node
out of use: it is cordoned, audited with the reason, and an operator looks and uncordons it, whereupon it is counted
anew. Bindings that an API server refuses are no such disagreement: they are about the pod.
Source: HashiCorp Nomad's plan rejection tracker (Nomad#13421).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.utils import timezone

from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import CommitRefusal

MOST = 20
WITHIN = timedelta(minutes=5)


def note_disagreement(cluster_id: int, node_ids: Iterable[int]) -> list[str]:
    """Note that the rows refused placements on these nodes; return the names of those that are out of use by now."""
    now, found = timezone.now(), sorted(set(node_ids))
    CommitRefusal.objects.filter(cluster_id=cluster_id, created_at__lt=now - WITHIN).delete()
    rows = [CommitRefusal(cluster_id=cluster_id, node_id=node_id, created_at=now) for node_id in found]
    CommitRefusal.objects.bulk_create(rows)
    cordoned = []
    for node in Node.objects.filter(pk__in=found, cordoned_by_operator=False).defer("report"):
        refusals = CommitRefusal.objects.filter(node=node)
        if refusals.count() >= MOST:
            minutes = int(WITHIN.total_seconds() // 60)
            reason = f"quarantined: the ledger refused {MOST} placements on it within {minutes} minutes"
            cordon(Cluster.objects.get(pk=cluster_id), node.name, actor=SYSTEM, reason=reason)
            refusals.delete()
            cordoned.append(node.name)
    return cordoned
