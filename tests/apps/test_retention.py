"""Objects that ended long ago are deleted, and nothing that is still needed with them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry, OutboxEvent, Topic
from hetsched.placement.actions import delete_finished_workloads, release, retention
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from hetsched.placement.queries import topics
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import a_pod
from tests.situations import a_cluster, placed

pytestmark = pytest.mark.django_db


def _finished(cluster: Cluster, name: str, hours: float) -> Workload:
    pods = placed(cluster, "n1", a_pod(name))
    release(cluster.pk, [pods[0].pk], to=State.SUCCEEDED, reason="done")
    workload = Workload.objects.get(pods=pods[0])
    Workload.objects.filter(pk=workload.pk).update(finished_at=timezone.now() - timedelta(hours=hours))
    return workload


def _forget(cluster: Cluster) -> int:
    return delete_finished_workloads(cluster.pk, finished_before=timezone.now() - timedelta(hours=1))


def test_old_workloads_are_deleted_without_their_audit_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "LATEST", 1)
    cluster = a_cluster()
    old, new = _finished(cluster, "old", 2), _finished(cluster, "new", 0)
    placed(cluster, "n1", a_pod("runs"))
    assert _forget(cluster) == 1
    assert set(Pod.objects.values_list("name", flat=True)) == {"new", "runs"}
    assert not Decision.objects.filter(workload_id=old.pk).exists()
    assert Reservation.objects.count() == 2
    assert AuditEntry.objects.filter(object_name=old.pk).exists()
    assert Workload.objects.filter(pk=new.pk).exists()
    assert check_invariants() == []


def test_decisions_in_the_feed_are_kept() -> None:
    cluster = a_cluster()
    _finished(cluster, "old", 2)
    before = topics.snapshot("decisions").data
    assert _forget(cluster) == 0
    assert topics.snapshot("decisions").data == before


def test_cache_that_missed_a_deleted_release_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LATEST", 0)
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.placed_pods
    release(cluster.pk, [pods[0].pk], to=State.SUCCEEDED, reason="done")
    Workload.objects.update(finished_at=timezone.now() - timedelta(hours=2))
    assert _forget(cluster) == 1
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.placed_pods == {}
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()


def test_cache_is_rebuilt_when_rows_are_deleted_while_it_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LATEST", 0)
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    copy = cache_of(cluster.pk)
    with copy.locked_snapshot() as snapshot:
        release(cluster.pk, [pods[0].pk], to=State.SUCCEEDED, reason="done")
        revision = Cluster.objects.get().revision  # the cache has read this revision when the row is deleted
        Workload.objects.update(finished_at=timezone.now() - timedelta(hours=2))
        _forget(cluster)
        assert not copy._catch_up(snapshot, revision)


def test_deletion_removes_the_topic_and_updates_the_cluster_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "LATEST", 0)
    cluster = a_cluster()
    old = _finished(cluster, "old", 2)
    before = topics.snapshot("cluster:fleet")
    assert _forget(cluster) == 1
    assert topics.snapshot("cluster:fleet") == before
    assert not Topic.objects.filter(name=topics.workload_topic(old.pk)).exists()
    assert not OutboxEvent.objects.filter(topic=topics.workload_topic(old.pk)).exists()
    assert check_invariants() == []


def test_empty_deletion_keeps_the_clusters_revision() -> None:
    cluster = a_cluster()
    _finished(cluster, "new", 0)
    revision = Cluster.objects.get().revision
    assert _forget(cluster) == 0
    assert Cluster.objects.get().revision == revision
