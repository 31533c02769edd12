"""Pages and API report since when and why the data of a live cluster is too old."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.inventory import staleness
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Sync
from hetsched.inventory.staleness import current_staleness, report_staleness
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import OutboxEvent
from hetsched.journal.publish import merge
from hetsched.placement.queries.topics import snapshot
from hetsched.scheduling.leases import following
from tests.situations import a_cluster

pytestmark = pytest.mark.django_db
KINDS = ("nodes", "pods")


@pytest.fixture
def cluster(db: None) -> Cluster:
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    assert following.take(cluster.pk, "test") is not None
    return cluster


def store_watch_state(cluster: Cluster, ago: timedelta = timedelta(), **columns: Any) -> datetime:
    at = timezone.now() - ago
    epoch = Connection.objects.get(cluster=cluster).follower_epoch
    values = {"epoch": epoch, "synced_at": at, "alive_at": at, "required": True, "reason": "", "failures": 0}
    for kind in KINDS:
        Sync.objects.update_or_create(cluster=cluster, resource=kind, defaults={**values, **columns})
    return at


def now(cluster: Cluster) -> staleness.Staleness:
    return current_staleness(Connection.objects.select_related("cluster").get(cluster=cluster))


def test_fresh_facts_are_not_stale(cluster: Cluster) -> None:
    at = store_watch_state(cluster)
    assert now(cluster) == staleness.Staleness(at)


def test_facts_are_stale_since_their_last_report(cluster: Cluster) -> None:
    at = store_watch_state(cluster, timedelta(minutes=3))
    assert now(cluster) == staleness.Staleness(at, at, "the watch has received no events")


def test_failing_watch_is_reported_before_decisions_stop(cluster: Cluster) -> None:
    at = store_watch_state(cluster, timedelta(seconds=20), failures=3, reason="connection refused")
    assert now(cluster) == staleness.Staleness(at, at, "connection refused")


def test_short_failure_is_not_reported(cluster: Cluster) -> None:
    store_watch_state(cluster, timedelta(seconds=1), failures=1, reason="reset")
    assert now(cluster).stale_since is None


def test_broken_connection_is_reported(cluster: Cluster) -> None:
    store_watch_state(cluster)
    Connection.objects.update(failure="the token was refused")
    assert now(cluster).reason == "the token was refused"


def test_missing_first_list_or_informer_is_reported(cluster: Cluster) -> None:
    assert now(cluster).reason == "the initial list of the cluster's objects is in progress"
    Connection.objects.update(follower_until=None)
    assert now(cluster).reason == "no process watches the cluster"


def test_snapshot_and_deltas_agree_and_only_changes_are_published(cluster: Cluster) -> None:
    topic = "watch:live"
    before = snapshot(topic).data
    at = store_watch_state(cluster, timedelta(minutes=3))
    assert report_staleness(cluster.pk)
    assert not report_staleness(cluster.pk)
    stale = snapshot(topic).data
    assert (stale["reason"], stale["staleSince"]) == ("the watch has received no events", stale["factsAt"])
    assert at.isoformat()[:19] == stale["factsAt"][:19]
    store_watch_state(cluster)
    assert report_staleness(cluster.pk)
    assert not report_staleness(cluster.pk)
    document: Any = before
    for event in OutboxEvent.objects.filter(topic=topic).order_by("revision"):
        document = merge(document, event.data)
    assert document == snapshot(topic).data
    assert set(document) == {"factsAt"}


def test_file_clusters_are_never_stale() -> None:
    offline = a_cluster()
    assert not report_staleness(offline.pk)
