"""Pods that change between their decision and the first report of their kubelet, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.scene import deciding_informer, eventually, make_node, make_pod, pod_of, states

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
STRATEGIC = "application/strategic-merge-patch+json"
TERM = {"labelSelector": {"matchLabels": {"x": "1"}}, "topologyKey": "kubernetes.io/hostname"}
NEAR: dict[str, Any] = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}}


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of 8 CPUs, and decide for it."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_node(api, "n1", **{"kubernetes.io/hostname": "n1"})
    with deciding_informer(api, cluster) as follower:
        eventually(follower, lambda: Node.objects.count() == 1)
        yield follower


def patch(api: Api, name: str, body: dict[str, Any], part: str = "") -> None:
    path = PODS.path(namespace="default", name=name, part=part)
    api.send("PATCH", path, json.dumps(body).encode(), content=STRATEGIC)


def is_bound(api: Api, name: str) -> bool:
    return "nodeName" in pod_of(api, name)["spec"]


def assert_counts_agree(cluster: Cluster) -> None:
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert check_invariants() == []


def test_label_set_before_the_kubelet_reports_is_stored(api: Api, followed: Informer, cluster: Cluster) -> None:
    make_pod(api, "a")
    eventually(followed, lambda: is_bound(api, "a") and states()["a"] == "bound")
    make_pod(api, "b", **NEAR)
    eventually(followed, lambda: states().get("b") == "not-now")
    patch(api, "a", {"metadata": {"labels": {"x": "1"}}})
    eventually(followed, lambda: is_bound(api, "b"), seconds=10)
    assert_counts_agree(cluster)


def test_resize_before_the_kubelet_reports_is_charged(api: Api, followed: Informer, cluster: Cluster) -> None:
    make_pod(api, "a")
    eventually(followed, lambda: is_bound(api, "a") and states()["a"] == "bound")
    patch(api, "a", {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "6"}}}]}}, "resize")
    eventually(followed, lambda: Node.objects.get().requested["cpu"] == 6000, seconds=10)
    assert_counts_agree(cluster)


def test_label_set_during_the_binding_is_stored(
    api: Api, followed: Informer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pod(api, "b", **NEAR)
    eventually(followed, lambda: states().get("b") == "not-now")
    real = binding_cycle.write

    def write(*arguments: Any, **more: Any) -> Any:
        patch(api, "a", {"metadata": {"labels": {"x": "1"}}})
        return real(*arguments, **more)

    monkeypatch.setattr(binding_cycle, "write", write)
    make_pod(api, "a")
    eventually(followed, lambda: is_bound(api, "a"))
    monkeypatch.setattr(binding_cycle, "write", real)
    eventually(followed, lambda: is_bound(api, "b"), seconds=10)
    assert_counts_agree(cluster)


def test_labels_set_by_the_api_server_with_the_binding_are_stored(
    api: Api, followed: Informer, cluster: Cluster
) -> None:
    zone = "topology.kubernetes.io/zone"
    make_node(api, "n2", **{"kubernetes.io/hostname": "n2", zone: "z1"})
    eventually(followed, lambda: Node.objects.count() == 2)
    make_pod(api, "a", nodeSelector={zone: "z1"})
    eventually(followed, lambda: is_bound(api, "a"))
    assert pod_of(api, "a")["metadata"]["labels"][zone] == "z1"
    term = {"labelSelector": {"matchLabels": {zone: "z1"}}, "topologyKey": "kubernetes.io/hostname"}
    make_pod(api, "b", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    eventually(followed, lambda: is_bound(api, "b"), seconds=10)
    assert_counts_agree(cluster)


def test_labels_set_by_the_api_server_are_expected_after_the_first_binding(
    api: Api, followed: Informer, cluster: Cluster
) -> None:
    zone = "topology.kubernetes.io/zone"
    make_node(api, "n2", **{zone: "z1"})
    eventually(followed, lambda: Node.objects.count() == 2)
    for name in ("a", "b"):
        make_pod(api, name, nodeSelector={zone: "z1"})
        eventually(followed, lambda name=name: is_bound(api, name) and states()[name] == "bound")
        eventually(followed, lambda name=name: reserved_labels()[name] == {zone: "z1"})
    assert Reservation.objects.filter(pod__name="b").count() == 1  # not reserved again
    assert_counts_agree(cluster)


def reserved_labels() -> dict[str, dict[str, str]]:
    found = Reservation.objects.filter(active=True).select_related("pod")
    return {reservation.pod.name: reservation.request.labels for reservation in found}
