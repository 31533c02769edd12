"""Pods that are expensive to read and to decide do not delay other namespaces, on a real API server."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following
from tests.kube.scene import eventually, make, make_pod

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
NODES_COUNT, HOSTILE_PODS, TERMS = 500, 36, 1_700
MOST_SECONDS = 5.0  # of processor time, because wall-clock time on a busy machine says little


def make_nodes(api: Api) -> None:
    """Create nodes with eight labels that have unique values."""

    def make_one(number: int) -> None:
        labels = {"kubernetes.io/hostname": f"n{number}"} | {f"l{key}": f"v{number}-{key}" for key in range(8)}
        status = {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        make(api, NODES, f"n{number}", metadata={"labels": labels}, status=status)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make_one, range(NODES_COUNT)))


def hostile(number: int) -> dict[str, Any]:
    """Return a node affinity whose terms match no node and occur in no other pod."""
    terms = [
        {
            "matchExpressions": [
                {"key": f"l{term % 8}", "operator": "NotIn", "values": [f"a{number}-{term}"]},
                {"key": f"k{number}-{term}", "operator": "Exists"},
            ]
        }
        for term in range(TERMS)
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_plain_pod_is_not_delayed_by_36_expensive_pods(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, figures: dict[str, object]
) -> None:
    """Regression: 36 such pods took 2.1 s of processor time each on 2,000 nodes, and the plain pod waited for all."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_nodes(api)
    with suppress(ApiFailure):  # it exists already
        api.send("POST", "/api/v1/namespaces", json.dumps({"metadata": {"name": "good"}}).encode())
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    live = InformerHost(cluster, api)
    follower = Informer(lease, api, threading.Event(), host=live)
    follower.start()
    try:
        eventually(follower, lambda: Node.objects.count() == NODES_COUNT, seconds=120)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: make_pod(api, f"h{number}", affinity=hostile(number)), range(HOSTILE_PODS)))
        container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
        spent, began = time.process_time(), time.monotonic()
        make(api, PODS, "plain", "good", spec={"containers": [container], "schedulerName": "hetsched"})
        path = PODS.path(namespace="good", name="plain")
        eventually(follower, lambda: "nodeName" in json.loads(api.get(path))["spec"], seconds=120)
        spent, took = time.process_time() - spent, time.monotonic() - began
        figures["a small pod after 36 pods with 1,700 terms each"] = f"{took:.1f} s, {spent:.1f} s of processor time"
        assert spent < MOST_SECONDS
    finally:
        follower.ended.set()
        live.close()
        api.send("DELETE", PODS.path(namespace="good", name="plain"), query={"gracePeriodSeconds": "0"})
