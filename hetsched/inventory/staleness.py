"""Age of a live cluster's data, and the time since when the data has been stale.

Pages show the age, because users could otherwise mistake yesterday's data for current data. Each required resource has
a last event; the oldest of these determines the age of the data. The data is stale while the cluster is not in sync
(`is_synced`), while a failure prevents watching the cluster, and once a required resource has failed for `TROUBLE`. The
data then counts as stale since that oldest event. The published state is stored in the connection's row, so that the
snapshot and the deltas of the topic `watch:<cluster>` agree. The informer publishes it; if no informer runs, a periodic
task does (`report_staleness`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.utils import timezone

from hetsched.contracts.message import Message, shortened, to_column
from hetsched.contracts.times import rfc3339
from hetsched.journal.publish import publish
from hetsched.storage.write_lock import write_transaction

from .models import Cluster, Connection, Sync
from .node_events import is_synced

TROUBLE = timedelta(seconds=10)
# Minimum interval between updates while the data is fresh.
PUBLISH_EVERY = timedelta(seconds=15)


class Staleness(msgspec.Struct, frozen=True):
    """The time up to which a cluster's data is current and, if the data is stale, the start and the reason."""

    facts_at: datetime | None
    stale_since: datetime | None = None
    reason: str = ""  # a Message, or empty


def watch_topic(cluster: Cluster) -> str:
    return f"watch:{cluster.name}"


def current_staleness(connection: Connection) -> Staleness:
    """Determine the current staleness of the cluster's data from the sync states of its resources."""
    now = timezone.now()
    syncs = list(Sync.objects.filter(cluster_id=connection.cluster_id, required=True).defer("quarantined"))
    alive = [sync.alive_at for sync in syncs]
    facts_at = min((at for at in alive if at is not None), default=None) if None not in alive else None
    failing = next((sync for sync in syncs if sync.failures and sync.reason and _has_no_contact(sync, now)), None)
    if not connection.failure and failing is None and is_synced(connection.cluster):
        return Staleness(facts_at)
    reason = connection.failure or (failing.reason if failing is not None else "")
    if not reason:
        reason = _silence_reason(connection, syncs, now)
    return Staleness(facts_at, facts_at or connection.cluster.created_at, shortened(reason, 500))


def published_staleness(connection: Connection) -> Staleness:
    """Return the staleness that was last published, from the connection's row."""
    return Staleness(connection.facts_at, connection.stale_since, connection.stale_reason)


def watch_document(connection: Connection) -> dict[str, Any]:
    """Return the document of the topic `watch:<cluster>`.

    `reason` is an untranslated message with its parameters, because each socket translates it for its user.
    """
    staleness = published_staleness(connection)
    return {
        "factsAt": rfc3339(staleness.facts_at) if staleness.facts_at else None,
        "staleSince": rfc3339(staleness.stale_since) if staleness.stale_since else None,
        "reason": to_column(staleness.reason) or None,
    }


def report_staleness(cluster_id: int) -> bool:
    """Publish the staleness of a cluster's data if it changed; return whether it changed."""
    connection = Connection.objects.select_related("cluster").filter(cluster_id=cluster_id).first()
    if connection is None or not _has_changed(published_staleness(connection), current_staleness(connection)):
        return False
    with write_transaction():
        connection = Connection.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=cluster_id)
        now = current_staleness(connection)
        connection.facts_at, connection.stale_since, connection.stale_reason = now.facts_at, now.stale_since, now.reason
        connection.save(update_fields=["facts_at", "stale_since", "stale_reason"])
        publish(watch_topic(connection.cluster), watch_document(connection))
    return True


def _has_changed(before: Staleness, now: Staleness) -> bool:
    if (before.stale_since is None) != (now.stale_since is None) or before.reason != now.reason:
        return True
    if now.facts_at is None or before.facts_at is None:
        return now.facts_at != before.facts_at
    return now.facts_at - before.facts_at > PUBLISH_EVERY


def _has_no_contact(sync: Sync, now: datetime) -> bool:
    return sync.alive_at is None or now - sync.alive_at > TROUBLE


def _silence_reason(connection: Connection, syncs: list[Sync], now: datetime) -> Message:
    if connection.follower_until is None or connection.follower_until < now:
        return Message("no process watches the cluster")
    if not syncs or any(sync.synced_at is None or sync.epoch != connection.follower_epoch for sync in syncs):
        return Message("the initial list of the cluster's objects is in progress")
    return Message("the watch has received no events")
