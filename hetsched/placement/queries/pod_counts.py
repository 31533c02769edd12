"""Pod counts of a cluster by state, and the rate at which its topic publishes them.

Counting takes longer the more pods there are, and the new counts cannot be derived from a single change. Users accept
counts that are a second old.
By default the counts are published with each change, even if no other part of the cluster's topic has changed.
Processes with frequent writes publish the counts once per `COUNT_SECONDS`, and once more after the last change. The
changes of a transaction become pending at its commit, so that the publication of an earlier count does not mark these
changes as published.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import structlog
from django.db import close_old_connections, transaction
from django.db.models import Count

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import cluster_head
from hetsched.journal.models import OutboxEvent
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from ..lifecycle import LISTED
from ..models import Pod

COUNTED = LISTED
COUNT_SECONDS = 1.0

Document = dict[str, Any]
log = structlog.get_logger(__name__)


def cluster_counts(cluster: Cluster) -> Document:
    """Return a cluster's own metrics and the number of its pods in each state."""
    listed = Pod.objects.filter(cluster=cluster, state__in=COUNTED).order_by()
    counted = dict(listed.values_list("state").annotate(count=Count("id")))
    return {**cluster_head(cluster), "counts": {state: counted.get(state, 0) for state in COUNTED}}


def published_metrics(cluster: Cluster) -> Document:
    """Return a cluster's metrics as last published; pending changes are published later as a delta.

    If the last event has been deleted already, the current values are returned.
    """
    events = (
        OutboxEvent.objects.filter(topic=cluster_topic(cluster)).order_by("-revision").values_list("data", flat=True)
    )
    head = events.filter(data__has_key="revision").first() or {}
    counted = events.filter(data__has_key="counts").first() or cluster_counts(cluster)
    return {name: head.get(name, now) for name, now in cluster_head(cluster).items()} | {"counts": counted["counts"]}


class _PublishingRate:
    """When the counts of a cluster were last published by this process (`at`), and up to which change (`published`)."""

    def __init__(self) -> None:
        self.at = -COUNT_SECONDS
        self.changes = self.published = 0

    @property
    def is_pending(self) -> bool:
        return self.changes != self.published

    def mark_pending(self) -> None:
        """Mark changes as pending once the transaction commits; counts taken before the commit do not include them."""

        def mark() -> None:
            self.changes = next(_numbers)

        transaction.on_commit(mark)


_numbers = itertools.count(1)
_rates: dict[int, _PublishingRate] = {}
_everywhere: list[bool] = []


def _rate_of(cluster_id: int) -> _PublishingRate | None:
    """Return the publishing rate of a cluster's counts, or None if this process publishes them with every change."""
    if _everywhere and cluster_id not in _rates:
        _rates[cluster_id] = _PublishingRate()
    return _rates.get(cluster_id)


def batch_all_counts() -> None:
    """Batch the counts of every cluster until the process ends; start a thread that publishes pending counts."""
    _everywhere.append(True)
    threading.Thread(target=_publish_pending_counts, name="counts", daemon=True).start()


def _publish_pending_counts() -> None:
    while True:
        time.sleep(COUNT_SECONDS)
        for cluster_id in list(_rates):
            try:
                publish_counts(cluster_id)
            except Cluster.DoesNotExist:
                _rates.pop(cluster_id)
            except Exception as error:  # the database is unreachable: retry in the next round
                log.warning("counts not published", cluster=cluster_id, error=repr(error))
        close_old_connections()


def counts_are_due(cluster_id: int) -> bool:
    """Return True if this transaction must publish the counts; otherwise mark them as pending."""
    pace = _rate_of(cluster_id)
    if pace is None:
        return True
    now, changes = time.monotonic(), pace.changes
    if now - pace.at < COUNT_SECONDS:
        pace.mark_pending()
        return False

    def note_published() -> None:
        pace.at, pace.published = now, changes

    transaction.on_commit(note_published)
    return True


def batch_counts(cluster_id: int) -> None:
    """Publish the counts of this cluster once per `COUNT_SECONDS`; the caller must call `publish_counts` regularly."""
    _rates[cluster_id] = _PublishingRate()


def stop_batching_counts(cluster_id: int) -> None:
    """Publish counts with every change again, and publish pending counts immediately."""
    publish_counts(cluster_id, at_once=True)
    _rates.pop(cluster_id, None)


def publish_counts(cluster_id: int, *, at_once: bool = False) -> None:
    """Publish the pending counts of a cluster, at most once per `COUNT_SECONDS` unless `at_once`."""
    pace = _rates.get(cluster_id)
    if pace is None or not pace.is_pending or not (at_once or time.monotonic() - pace.at >= COUNT_SECONDS):
        return
    with write_transaction():
        pace.at = -COUNT_SECONDS
        topic = cluster_topic(Cluster.objects.get(pk=cluster_id))
        publish_many({topic: lambda: cluster_metrics_patch(Cluster.objects.get(pk=cluster_id))})


def cluster_metrics_patch(cluster: Cluster) -> Document:
    """Return the patch to publish after a change to a cluster: its metrics, and the pod counts if they are due."""
    return cluster_counts(cluster) if counts_are_due(cluster.pk) else cluster_head(cluster)
