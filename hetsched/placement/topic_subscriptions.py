"""Open the live topics of nodes and workloads for their first subscribers."""

from __future__ import annotations

from typing import Any

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
    with write_transaction():
        if kind == "workload":
            cluster_id = Workload.objects.filter(pk=name).values_list("cluster_id", flat=True).first()
            is_locked = _lock(pk=cluster_id) and Workload.objects.filter(pk=name).exists()
        else:
            is_locked = _lock(name=name.partition("/")[0])
        if is_locked:  # otherwise the object was deleted, and nothing would delete the topic
            insert_topic(topic)


def _lock(**cluster: Any) -> bool:
    """Lock the row of a cluster; return False if there is none. Submissions may still refer to it."""
    return bool(Cluster.objects.filter(**cluster).select_for_update(no_key=True).values_list("pk", flat=True))
