"""The informer copies a real API server's nodes and pods into the database and keeps them up to date."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import F

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.models import Cluster, Connection, Node, Sync
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import following
from tests.kube.scene import an_informer, eventually, make_node, make_pod, states

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster) -> Iterator[Informer]:
    """Run an informer for the cluster; the API server has one node and one pod with our scheduler name."""
    make_node(api, "n1")
    make_pod(api, "early")
    follower = an_informer(api, cluster)
    yield follower
    follower.ended.set()


def test_existing_added_and_deleted_objects_are_followed(api: Api, followed: Informer) -> None:
    eventually(followed, lambda: states() == {"early": "pending"})
    assert Node.objects.get().allocatable["cpu"] == 8000
    make_node(api, "n2")
    make_pod(api, "foreign", schedulerName="default-scheduler", nodeName="n1")
    eventually(followed, lambda: states() == {"early": "pending", "foreign": "running"})
    eventually(followed, lambda: Node.objects.count() == 2)
    api.send("DELETE", PODS.path(namespace="default", name="foreign"), query={"gracePeriodSeconds": "0"})
    api.send("DELETE", NODES.path(name="n2"))
    eventually(followed, lambda: states() == {"early": "pending", "foreign": "cancelled"})
    eventually(followed, lambda: Node.objects.count() == 1)
    assert check_invariants() == []
    sync = Sync.objects.get(resource="pods")
    assert sync.synced_at is not None
    assert sync.failures == 0


def test_objects_deleted_without_a_running_informer_are_removed(api: Api, cluster: Cluster, followed: Informer) -> None:
    eventually(followed, lambda: states() == {"early": "pending"})
    followed.ended.set()
    following.release(followed.lease)
    api.send("DELETE", PODS.path(namespace="default", name="early"), query={"gracePeriodSeconds": "0"})
    api.send("DELETE", NODES.path(name="n1"))
    another = an_informer(api, cluster)
    eventually(another, lambda: states() == {"early": "cancelled"})
    assert not Node.objects.exists()
    another.ended.set()


def test_informer_without_its_lease_writes_nothing(api: Api, cluster: Cluster, followed: Informer) -> None:
    eventually(followed, lambda: states() == {"early": "pending"})
    Connection.objects.update(follower_epoch=F("follower_epoch") + 1)
    make_pod(api, "late")
    for _ in range(20):
        followed.iterate()
    assert states() == {"early": "pending"}
