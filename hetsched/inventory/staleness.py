"""How old what is known of a live cluster is, and since when that is too old.

Problem: a screen that shows yesterday's nodes looks like one that shows today's.
Rule: facts are as old as the required kind that was heard of longest ago. They are stale while nothing may be decided
on them (`in_step`), while the cluster is not followed for a reason, and as soon as a required kind fails for `TROUBLE`;
then they are stale since they were last heard of. What is told stands in the connection's row, so that snapshot and
deltas of the topic `watch:<cluster>` are of one mind; whoever follows the cluster, and the sweep where nobody does,
tell it anew (`tell_watched`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from hetsched.contracts.times import rfc3339
from hetsched.journal.publish import publish

from .models import Cluster, Connection, Sync
from .node_events import in_step

TROUBLE = timedelta(seconds=10)
# Facts that are new enough are told no more often than this.
TOLD_EVERY = timedelta(seconds=15)


class Watched(msgspec.Struct, frozen=True):
    """How old the facts are, since when they are stale, and why."""

    facts_at: datetime | None
    stale_since: datetime | None = None
    reason: str = ""


def watch_topic(cluster: Cluster) -> str:
    return f"watch:{cluster.name}"


def watched_now(connection: Connection) -> Watched:
    """Return how it is at this moment."""
    now = timezone.now()
    syncs = list(Sync.objects.filter(cluster_id=connection.cluster_id, required=True).defer("quarantined"))
    heard = [sync.alive_at for sync in syncs]
    facts_at = min((at for at in heard if at is not None), default=None) if None not in heard else None
    failing = next((sync for sync in syncs if sync.failures and sync.reason and _in_trouble(sync, now)), None)
    if not connection.failure and failing is None and in_step(connection.cluster):
        return Watched(facts_at)
    reason = connection.failure or (failing.reason if failing is not None else "")
    if not reason:
        reason = _silent(connection, syncs, now)
    return Watched(facts_at, facts_at or connection.cluster.created_at, reason[:500])


def told(connection: Connection) -> Watched:
    """Return what was told last."""
    return Watched(connection.facts_at, connection.stale_since, connection.stale_reason)


def watch_document(connection: Connection) -> dict[str, Any]:
    """Return the document of the topic."""
    said = told(connection)
    return {
        "factsAt": rfc3339(said.facts_at) if said.facts_at else None,
        "staleSince": rfc3339(said.stale_since) if said.stale_since else None,
        "reason": said.reason or None,
    }


def tell_watched(cluster_id: int) -> bool:
    """Tell anew how old the facts are, where that is news; return whether it was."""
    connection = Connection.objects.select_related("cluster").filter(cluster_id=cluster_id).first()
    if connection is None or not _is_news(told(connection), watched_now(connection)):
        return False
    with transaction.atomic():
        connection = Connection.objects.select_for_update(of=("self",)).select_related("cluster").get(pk=cluster_id)
        now = watched_now(connection)
        connection.facts_at, connection.stale_since, connection.stale_reason = now.facts_at, now.stale_since, now.reason
        connection.save(update_fields=["facts_at", "stale_since", "stale_reason"])
        publish(watch_topic(connection.cluster), watch_document(connection))
    return True


def _is_news(before: Watched, now: Watched) -> bool:
    if (before.stale_since is None) != (now.stale_since is None) or before.reason != now.reason:
        return True
    if now.facts_at is None or before.facts_at is None:
        return now.facts_at != before.facts_at
    return now.facts_at - before.facts_at > TOLD_EVERY


def _in_trouble(sync: Sync, now: datetime) -> bool:
    return sync.alive_at is None or now - sync.alive_at > TROUBLE


def _silent(connection: Connection, syncs: list[Sync], now: datetime) -> str:
    if connection.follower_until is None or connection.follower_until < now:
        return "nobody follows it"
    if not syncs or any(sync.synced_at is None or sync.epoch != connection.follower_epoch for sync in syncs):
        return "its objects are being listed"
    return "nothing was heard of it"
