"""A misconfigured pod gets one event, and is read again when the object that it names was added."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.models import Pod
from hetsched.scheduling.informer import Informer
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from workers import report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    monkeypatch.setattr(report, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    yield follower
    follower.ended.set()


def test_our_event_does_not_requeue_the_pod(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "wrong", labels={"hetsched.io/isa": "z80"})
    eventually(followed, lambda: states() == {"wrong": "pending"})
    followed._write_sync()
    schedule.run(cluster.pk)
    assert report.run(cluster.pk) == 1
    assert pod_of(api, "wrong")["status"]["conditions"]
    make_pod(api, "after")  # every write to the first pod is seen before this one
    eventually(followed, lambda: "after" in states())
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        followed.iterate()
    assert list(Pod.objects.order_by("id").values_list("name", "state")) == [
        ("wrong", "misconfigured"),
        ("after", "pending"),
    ]
    api.send("DELETE", PODS.path(namespace="default", name="wrong"), query={"gracePeriodSeconds": "0"})
    eventually(followed, lambda: states()["wrong"] == "cancelled")
