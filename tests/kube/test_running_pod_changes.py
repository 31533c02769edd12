"""Running pods that are resized, relabelled, force-deleted and created again, on a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.scene import deciding_informer, eventually, make_node, make_pod, pod_of, states

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of 8 CPUs, and decide for it."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_node(api, "n1", **{"kubernetes.io/hostname": "n1"})
    with deciding_informer(api, cluster) as follower:
        eventually(follower, lambda: Node.objects.count() == 1)
        yield follower


def path_of(name: str, part: str = "") -> str:
    return PODS.path(namespace="default", name=name, part=part)


def patch(api: Api, name: str, body: dict[str, Any], part: str = "") -> None:
    api.send("PATCH", path_of(name, part), json.dumps(body).encode(), content=STRATEGIC)


def actuated(api: Api, name: str, cpu: str) -> None:
    """Report the status of a running container with this CPU request, as its kubelet does."""
    have = {"cpu": cpu}
    container = {
        "name": "main", "image": "busybox", "imageID": "x", "ready": True, "restartCount": 0,
        "state": {"running": {}}, "allocatedResources": have, "resources": {"requests": have},
    }  # fmt: skip
    patch(api, name, {"status": {"phase": "Running", "containerStatuses": [container]}}, "status")


def resize(api: Api, name: str, cpu: str) -> None:
    patch(api, name, {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}, "resize")


def delete_by_force(api: Api, name: str) -> None:
    api.send("DELETE", path_of(name), query={"gracePeriodSeconds": "0"})


def running(api: Api, follower: Informer, name: str, **spec: Any) -> None:
    make_pod(api, name, **spec)
    eventually(follower, lambda: "nodeName" in pod_of(api, name)["spec"])
    actuated(api, name, spec.get("cpu", "1"))
    eventually(follower, lambda: states()[name] == "running")


def stays_unbound(api: Api, follower: Informer, name: str, seconds: float = 2.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        follower.iterate()
    return "nodeName" not in pod_of(api, name)["spec"]


def test_in_place_resize_is_charged_until_reverted(api: Api, followed: Informer) -> None:
    running(api, followed, "a", cpu="1")
    resize(api, "a", "6")
    actuated(api, "a", "6")
    eventually(followed, lambda: Node.objects.get().requested["cpu"] == 6000)
    make_pod(api, "b", cpu="4")
    eventually(followed, lambda: states().get("b") == "not-now")
    assert stays_unbound(api, followed, "b")
    resize(api, "a", "2")
    assert stays_unbound(api, followed, "b")  # the kubelet has not released the CPUs yet
    actuated(api, "a", "2")
    eventually(followed, lambda: "nodeName" in pod_of(api, "b")["spec"])
    assert check_invariants() == []


def test_infeasible_resize_counts_the_allocated_resources(api: Api, followed: Informer) -> None:
    running(api, followed, "other", cpu="4")
    running(api, followed, "a", cpu="1")
    resize(api, "a", "8")
    eventually(followed, lambda: Node.objects.get().requested["cpu"] == 12000)  # the kubelet may defer it
    assert check_invariants() == []
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    patch(api, "a", {"status": {"conditions": [pending]}}, "status")
    eventually(followed, lambda: Node.objects.get().requested["cpu"] == 5000)
    make_pod(api, "b", cpu="3")
    eventually(followed, lambda: "nodeName" in pod_of(api, "b")["spec"])


def test_new_label_on_a_running_pod_admits_pods_with_affinity(api: Api, followed: Informer) -> None:
    term = {"labelSelector": {"matchLabels": {"x": "1"}}, "topologyKey": "kubernetes.io/hostname"}
    near = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    running(api, followed, "a")
    make_pod(api, "b", **near)
    eventually(followed, lambda: states().get("b") == "not-now")
    patch(api, "a", {"metadata": {"labels": {"x": "1"}}})
    eventually(followed, lambda: "nodeName" in pod_of(api, "b")["spec"])
    make_pod(api, "c", **near)
    eventually(followed, lambda: "nodeName" in pod_of(api, "c")["spec"])


def test_preemptor_waits_for_the_grace_period_of_a_force_deleted_victim(api: Api, followed: Informer) -> None:
    running(api, followed, "victim", cpu="8", terminationGracePeriodSeconds=2)
    make_pod(api, "urgent", cpu="8", priorityClassName="system-node-critical")
    eventually(followed, lambda: Pod.objects.filter(name="urgent", decision__nominated_node="n1").exists())
    delete_by_force(api, "victim")
    begin = time.monotonic()
    eventually(followed, lambda: "nodeName" in pod_of(api, "urgent")["spec"])
    assert 1.9 < time.monotonic() - begin < 6
    assert check_invariants() == []


def test_recreated_pod_names_the_reservation_of_its_predecessor(api: Api, followed: Informer) -> None:
    port = {"containers": [{"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}
    running(api, followed, "again", terminationGracePeriodSeconds=3, **port)
    delete_by_force(api, "again")
    begin = time.monotonic()
    make_pod(api, "again", **port)
    eventually(followed, lambda: states().get("again") == "not-now")
    assert time.monotonic() - begin < 2.5
    assert "held by force-deleted pod default/again until " in Decision.objects.latest("id").summary
    eventually(followed, lambda: "nodeName" in pod_of(api, "again")["spec"])
    assert 2.9 < time.monotonic() - begin < 8


def test_recreated_pod_is_bound_if_its_predecessor_never_ran(api: Api, followed: Informer) -> None:
    port = {"containers": [{"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}
    for _ in range(3):
        begin = time.monotonic()
        make_pod(api, "again", **port)
        eventually(followed, lambda: "nodeName" in pod_of(api, "again")["spec"])
        assert time.monotonic() - begin < 2.5
        delete_by_force(api, "again")
