"""Open the live topics of nodes and workloads for their first subscribers."""

from __future__ import annotations

from hetsched.inventory.models import Cluster
from hetsched.journal.publish import closed_topics, insert_topic
from hetsched.placement.models import Workload
from hetsched.storage.write_lock import write_transaction


def open_topic(topic: str) -> None:
    """Let a topic have events from now on; call it before the first snapshot is read.

    The transaction locks the cluster of the node or workload. A transaction that has changed this cluster without an
    event for the closed topic has therefore ended before, so the snapshot contains its changes.
    """
    if not closed_topics([topic]):
        return
    kind, _, name = topic.partition(":")
    clusters = Cluster.objects.select_for_update()
    with write_transaction():
        if kind == "workload":
            workload = Workload.objects.filter(pk=name).values_list("cluster_id", flat=True)
            list(clusters.filter(pk__in=list(workload)))
        else:
            list(clusters.filter(name=name.partition("/")[0]))
        insert_topic(topic)
