"""Periodic task that marks expired usage samples of nodes without a newer report; see `freshness`.

One run marks the expired samples (`sample_due_at` has passed) of at most `_MOST` nodes, under the cluster's lock.
Marked nodes are written at the new revision, so that snapshots are refreshed and pending pods requeued, as for a
collector that stopped reporting. Samples of a disabled collector also expire: the collector's usage fact is marked as
stale, so that a sample of another source can replace it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils import timezone

from hetsched.contracts.objects.collected import CollectedFact
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.samples import STALE_SECONDS
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from .actions import cluster_topic, node_topic
from .freshness import SAMPLE_COLUMNS, mark_expired, set_usage
from .models import Cluster, Node
from .models.collectors import Collector
from .models.node_facts import NodeFacts
from .node_loads import advance, write_columns
from .signals import inventory_changed
from .tiles import cluster_head

_MOST = 5000


def expire_samples(cluster_id: int) -> int:
    """Mark the expired samples of a cluster as stale; return their number."""
    now = timezone.now()
    due = Node.objects.filter(cluster_id=cluster_id, sample_due_at__lte=now)
    if not due.exists():
        return 0
    with write_transaction():
        cluster = advance(cluster_id)
        limits = _limits(cluster)
        nodes = list(due.order_by("sample_due_at").only("name", *SAMPLE_COLUMNS)[:_MOST])
        sources: dict[int, str] = {}
        patches: dict[str, dict[str, Any]] = {}
        for node in nodes:
            usage = mark_expired(node.report.usage, now, limits)
            if usage is not None and usage != node.report.usage:
                node.changed_revision = cluster.revision
                sources[node.pk] = usage.source
                patches[node_topic(cluster, node.name)] = {"report": {"usage": {"stale": True}}}
            set_usage(node, usage, now, limits)
        write_columns(nodes, SAMPLE_COLUMNS)
        if sources:
            _mark_collected({pk: source for pk, source in sources.items() if source in limits})
            cluster.inventory_revision = cluster.revision
            cluster.save(update_fields=["inventory_revision"])
            inventory_changed.send(sender=Cluster, cluster=cluster, events=frozenset({Event.NODE_USE}))
            publish_many({cluster_topic(cluster): cluster_head(cluster), **patches})
    return len(sources)


def _limits(cluster: Cluster) -> dict[str, float]:
    """Return the lifetime of each collector's samples in seconds, at least `STALE_SECONDS`."""
    allowed = Collector.objects.filter(cluster=cluster, load=True).values_list("name", "most_age_seconds")
    return {name: max(STALE_SECONDS, age) for name, age in allowed}


def _mark_collected(sources: dict[int, str]) -> None:
    """Mark usage facts as stale; `sources` maps each node id to the collector of the fact."""
    if not sources:
        return
    rows = list(NodeFacts.objects.filter(node__in=list(sources)).only("collected"))
    for row in rows:
        row.collected = tuple(_mark_stale(fact, sources[row.pk]) for fact in row.collected)
    write_columns(rows, ("collected",))


def _mark_stale(fact: CollectedFact, collector: str) -> CollectedFact:
    return msgspec.structs.replace(fact, stale=True) if fact.load and fact.collector == collector else fact
