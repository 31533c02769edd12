"""PodMetrics and NodeMetrics, as the metrics API serves them."""

from __future__ import annotations

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import PodUsage
from hetsched.contracts.objects.node_report import Usage
from hetsched.contracts.units import CPU, MEMORY
from tests.unit.adapters.reading import content, pod

METRICS = """
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata: {name: web-1, namespace: shop}
timestamp: "2026-11-20T10:00:00Z"
window: 15s
containers:
- {name: main, usage: {cpu: 1500500n, memory: 100Mi}}
- {name: sidecar, usage: {cpu: 10m, memory: 20Mi}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: web-1
  namespace: shop
  labels: {pod-template-hash: 5d8f}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5d8f, controller: true}]
spec: {nodeName: n1, containers: [{name: main}, {name: sidecar}]}
---
"""


def test_use_of_a_pod_is_the_sum_of_its_containers() -> None:
    # 1500500n is 1.5005m, rounded up to 2m; 2m + 10m = 12m
    (found,) = content(METRICS + POD).pod_usages
    assert found.amounts == {CPU: 12, MEMORY: 120 * 2**20}
    assert (found.namespace, found.name, found.observed_at) == ("shop", "web-1", "2026-11-20T10:00:00Z")


def test_use_belongs_to_the_controller_of_the_pod() -> None:
    assert [usage.controller for usage in content(METRICS + POD).pod_usages] == ["Deployment/web"]


@pytest.mark.parametrize(
    ("owner", "labels", "controller"),
    [
        ("{kind: ReplicaSet, name: web-5d8f, controller: true}", {"pod-template-hash": "5d8f"}, "Deployment/web"),
        ("{kind: ReplicaSet, name: web-5d8f, controller: true}", {}, "ReplicaSet/web-5d8f"),
        ("{kind: ReplicaSet, name: web, controller: true}", {"pod-template-hash": "5d8f"}, "ReplicaSet/web"),
        ("{kind: Job, name: train, controller: true}", {}, "Job/train"),
        ("{kind: Job, name: train}", {}, ""),
    ],
)
def test_replica_set_of_a_deployment_counts_as_the_deployment(
    owner: str, labels: dict[str, str], controller: str
) -> None:
    named = ", ".join(f"{key}: {value}" for key, value in labels.items())
    text = f"""
    apiVersion: v1
    kind: Pod
    metadata: {{name: p, labels: {{{named}}}, ownerReferences: [{owner}]}}
    spec: {{containers: [{{name: main}}]}}
    """
    (found,) = content(text).pending
    assert found.controller == controller


def test_use_of_an_unknown_pod_is_dropped() -> None:
    assert content(METRICS).pod_usages == ()
    assert content(METRICS + POD.replace("  ownerReferences", "  ignored")).pod_usages == ()
    assert pod().controller == ""


def test_owner_reference_of_pod_metrics_is_used_without_the_pod() -> None:
    owner = "ownerReferences: [{kind: Job, name: j, controller: true}]"
    owned = METRICS.replace("namespace: shop}", f"namespace: shop, {owner}}}")
    assert [usage.controller for usage in content(owned).pod_usages] == ["Job/j"]


def test_metrics_round_trip() -> None:
    found = content(METRICS + POD, workload=False)
    again = read_content(load_documents(write_cluster(found), name="f"), workload=False)
    assert again == found
    # The pod may be deleted by then; its use is still known.
    alone = type(found)(pod_usages=found.pod_usages)
    assert read_content(load_documents(write_cluster(alone), name="f"), workload=False) == alone


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("cpu: 1500500n", "containers[0].usage.cpu"),
        ("name: web-1", "metadata.name"),
    ],
)
def test_wrong_field_rejects_the_file(wrong: str, place: str) -> None:
    key = wrong.partition(":")[0]
    with pytest.raises(InputError) as caught:
        content(METRICS.replace(wrong, f"{key}: '-*'", 1) + POD)
    assert place in caught.value.place


def test_list_items_need_no_kind() -> None:
    listed = """
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetricsList
items:
- {metadata: {name: web-1, namespace: shop}, containers: [{name: main, usage: {cpu: 1m}}]}
---
"""
    assert content(listed + POD).pod_usages == (PodUsage("shop", "web-1", "Deployment/web", {CPU: 1}),)


NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: metrics.k8s.io/v1beta1
kind: NodeMetrics
metadata: {name: n1}
timestamp: "2026-11-20T10:00:00Z"
usage: {cpu: 250m, memory: 2Gi}
---
"""


def test_node_metrics_are_measured_use() -> None:
    (node,) = content(NODE, workload=False).nodes
    assert node.usage == Usage({CPU: 250, MEMORY: 2 * 2**30}, "2026-11-20T10:00:00Z")


def test_own_object_has_precedence() -> None:
    own = "apiVersion: hetsched.io/v1alpha1\nkind: NodeUsage\nmetadata: {name: n1}\nusage: {cpu: '3'}\n"
    (node,) = content(own + "---" + NODE, workload=False).nodes
    assert node.usage == Usage({CPU: 3000})
