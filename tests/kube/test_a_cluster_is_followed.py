"""A follower brings a real API server's nodes and pods into the database, and keeps them there as they are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.models import F

from hetsched.adapters.kube.api import Api
from hetsched.adapters.kube.resources import NODES, PODS
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.lease import following
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node, Sync
from hetsched.journal.audit import SYSTEM
from hetsched.placement.invariants import check_invariants
from hetsched.placement.models import Pod
from hetsched.policies.actions import ensure_builtins
from workers.watch import Follower

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


def make(api: Api, resource: Any, name: str, namespace: str = "", **fields: Any) -> None:
    meta = {"name": name, **fields.pop("metadata", {})}
    plain = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **fields}
    api.send("POST", resource.path(namespace=namespace), json.dumps(plain).encode())


def make_node(api: Api, name: str) -> None:
    status = {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    make(api, NODES, name, status=status)


def make_pod(api: Api, name: str, **spec: Any) -> None:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    make(api, PODS, name, "default", spec={"containers": [container], "schedulerName": "hetsched", **spec})


def eventually(follower: Follower, holds: Callable[[], bool], seconds: float = 20) -> None:
    """Let the follower go on, in this thread, until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come to hold"
        follower.turn()


@pytest.fixture
def cluster() -> Cluster:
    ensure_builtins()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made)
    return made


@pytest.fixture
def followed(api: Api, cluster: Cluster) -> Iterator[Follower]:
    """Follow the cluster; the API server has one node and one pod for us."""
    make_node(api, "n1")
    make_pod(api, "early")
    follower = a_follower(api, cluster)
    yield follower
    follower.ended.set()


def a_follower(api: Api, cluster: Cluster) -> Follower:
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    follower = Follower(lease, api, threading.Event())
    follower.start()
    return follower


def pods() -> dict[str, str]:
    return dict(Pod.objects.values_list("name", "state"))


def test_what_is_there_and_what_comes_and_goes(api: Api, followed: Follower) -> None:
    eventually(followed, lambda: pods() == {"early": "pending"})
    assert Node.objects.get().allocatable["cpu"] == 8000
    make_node(api, "n2")
    make_pod(api, "foreign", schedulerName="default-scheduler", nodeName="n1")
    eventually(followed, lambda: pods() == {"early": "pending", "foreign": "running"})
    eventually(followed, lambda: Node.objects.count() == 2)
    api.send("DELETE", PODS.path(namespace="default", name="foreign"), query={"gracePeriodSeconds": "0"})
    api.send("DELETE", NODES.path(name="n2"))
    eventually(followed, lambda: pods() == {"early": "pending", "foreign": "cancelled"})
    eventually(followed, lambda: Node.objects.count() == 1)
    assert check_invariants() == []
    sync = Sync.objects.get(resource="pods")
    assert sync.synced_at is not None
    assert sync.failures == 0


def test_what_went_while_nobody_followed_is_gone(api: Api, cluster: Cluster, followed: Follower) -> None:
    eventually(followed, lambda: pods() == {"early": "pending"})
    followed.ended.set()
    following.give_up(followed.lease)
    api.send("DELETE", PODS.path(namespace="default", name="early"), query={"gracePeriodSeconds": "0"})
    api.send("DELETE", NODES.path(name="n1"))
    another = a_follower(api, cluster)
    eventually(another, lambda: pods() == {"early": "cancelled"})
    assert not Node.objects.exists()
    another.ended.set()


def test_a_follower_whose_lease_was_taken_writes_no_more(api: Api, cluster: Cluster, followed: Follower) -> None:
    eventually(followed, lambda: pods() == {"early": "pending"})
    Connection.objects.update(follower_epoch=F("follower_epoch") + 1)
    make_pod(api, "late")
    for _ in range(20):
        followed.turn()
    assert pods() == {"early": "pending"}
