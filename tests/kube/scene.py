"""Shortcuts to objects on a real API server, and to an informer that a test runs in its own thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Pod
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following
from tests.kube.control_plane import ControlPlane


def empty_cluster(plane: ControlPlane) -> Api:
    """Delete all nodes and pods; return an administrator's API client."""
    for path in ("/api/v1/nodes", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0"):
        plane.call("DELETE", path)
    return Api(from_kubeconfig(plane.kubeconfig()))


def make(api: Api, resource: Resource, name: str, namespace: str = "", **fields: Any) -> None:
    meta = {"name": name, **fields.pop("metadata", {})}
    plain = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **fields}
    api.send("POST", resource.path(namespace=namespace), json.dumps(plain).encode())


def make_node(api: Api, name: str, **labels: str) -> None:
    status = {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    make(api, NODES, name, metadata={"labels": labels}, status=status)


def make_pod(
    api: Api,
    name: str,
    *,
    cpu: str = "1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> None:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    wanted = {"containers": [container], "schedulerName": "hetsched", **spec}
    make(api, PODS, name, "default", metadata={"labels": labels or {}, "annotations": annotations or {}}, spec=wanted)


def pod_of(api: Api, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(api.get(PODS.path(namespace="default", name=name)))
    return found


def an_informer(api: Api, cluster: Cluster) -> Informer:
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    follower = Informer(lease, api, threading.Event())
    follower.start()
    return follower


@contextmanager
def deciding_informer(api: Api, cluster: Cluster) -> Iterator[Informer]:
    """Run an informer that decides the pods of its cluster and binds them."""
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    host = InformerHost(cluster, api)
    follower = Informer(lease, api, threading.Event(), host=host)
    try:
        follower.start()
        yield follower
    finally:
        follower.ended.set()
        host.close()


def eventually(follower: Informer, holds: Callable[[], bool], seconds: float = 30) -> None:
    """Run the informer in this thread until a condition is true."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"the condition is still false: {states()}"
        follower.iterate()


def states() -> dict[str, str]:
    """Return the latest state of every pod, by name."""
    return dict(Pod.objects.order_by("id").values_list("name", "state"))
