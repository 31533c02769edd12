"""The informer publishes pod counts by state at intervals, and publishes nothing for new workloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import OutboxEvent
from hetsched.placement.actions import apply_changes
from hetsched.placement.models import Workload
from hetsched.placement.queries import pod_counts
from hetsched.placement.queries.pod_counts import batch_counts, publish_counts, stop_batching_counts
from hetsched.placement.queries.topics import snapshot
from hetsched.scheduling.leases import Lease, following
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.listener import Listener

pytestmark = pytest.mark.django_db(transaction=True)  # pending counts are published when a transaction ends


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    """Run an informer for a cluster of one node with rare pod counts: here, only on request."""
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").build()]), epoch=lease.epoch)
    monkeypatch.setattr(pod_counts, "COUNT_SECONDS", 3600.0)
    batch_counts(cluster.pk)
    come(lease, "first")
    publish_counts(cluster.pk, at_once=True)
    yield lease
    stop_batching_counts(cluster.pk)


def come(lease: Lease, name: str) -> None:
    spec = a_pod(name).having(uid=name).build()
    seen = ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec)
    apply_changes(lease.cluster_id, Changes(pods=[seen]), epoch=lease.epoch)


def test_new_pending_pod_is_not_published_yet(lease: Lease) -> None:
    before = OutboxEvent.objects.count()
    come(lease, "second")
    assert OutboxEvent.objects.count() == before


def test_unpublished_workload_can_be_read_and_its_changes_are_published(lease: Lease) -> None:
    come(lease, "second")
    workload = Workload.objects.get(name="second")
    client = Listener(f"workload:{workload.pk}")
    assert client.document["pods"]["default/second"]["state"] == "pending"
    apply_changes(lease.cluster_id, Changes(pods_gone=["default/second"]), epoch=lease.epoch)
    client.listen()
    assert client.document == snapshot(client.topic).data
    assert client.document["state"] == "cancelled"


def test_cluster_topic_gets_new_pods_with_the_counts(lease: Lease) -> None:
    client = Listener("cluster:live")
    come(lease, "second")
    client.listen()
    assert client.document["counts"]["pending"] == 1
    assert client.document == snapshot("cluster:live").data  # a new client sees the same document as the others
    publish_counts(lease.cluster_id, at_once=True)
    client.listen()
    assert client.document["counts"]["pending"] == 2
    assert client.document == snapshot("cluster:live").data


def test_counts_are_published_with_each_change(lease: Lease) -> None:
    stop_batching_counts(lease.cluster_id)
    client = Listener("cluster:live")
    come(lease, "second")
    client.listen()
    assert Cluster.objects.get().revision == client.document["revision"]
    assert client.document["counts"]["pending"] == 2
