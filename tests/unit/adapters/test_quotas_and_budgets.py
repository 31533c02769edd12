"""ElasticQuota, PodDisruptionBudget and preemptionPolicy as facts for the engine."""

from __future__ import annotations

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent, ElasticQuota

GIB = 2**30
QUOTA = """
apiVersion: {group}/v1alpha1
kind: ElasticQuota
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{min: {{cpu: 4, memory: 8Gi}}, max: {{cpu: "6"}}}}
---
"""
PODS = "".join(
    f"""
apiVersion: v1
kind: Pod
metadata: {{name: web-{number}, namespace: shop, labels: {{app: web}}}}
spec: {{containers: [{{name: c, image: i}}], nodeName: n}}
---
"""
    for number in range(5)
)


def read(text: str) -> ClusterContent:
    return read_content(load_documents(text.encode(), name="f"), workload=False)


def budget(spec: str, status: str = "{}") -> int:
    text = f"""
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: b, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: web}}}}, {spec}}}
status: {status}
"""
    (found,) = read(PODS + text).budgets
    return found.desired_healthy


@pytest.mark.parametrize("group", ["scheduling.x-k8s.io", "scheduling.sigs.k8s.io"])
def test_quota_of_either_api_group_is_read(group: str) -> None:
    content = read(QUOTA.format(group=group, name="q", namespace="team"))
    assert content.quotas == (
        ElasticQuota("team", "q", (("cpu", 4000), ("memory", 8 * GIB)), (("cpu", 6000),)),
    )  # fmt: skip
    assert read(write_cluster(content).decode()) == content


def test_second_quota_of_a_namespace_is_rejected() -> None:
    text = "".join(QUOTA.format(group="scheduling.x-k8s.io", name=name, namespace="team") for name in "ab")
    with pytest.raises(InputError, match="already has a quota") as caught:
        read(text)
    assert caught.value.code == "QuotaDuplicate"


@pytest.mark.parametrize(
    ("spec", "desired"),
    [
        ("minAvailable: 2", 2),
        # ceil(50 % of 5) = 3; ceil(30 % of 5) = 2 may go, 3 stay; 5 - 1 = 4
        ("minAvailable: 50%", 3),
        ("maxUnavailable: 30%", 3),
        ("maxUnavailable: 1", 4),
        ("maxUnavailable: 7", 0),
    ],
)
def test_budget_gives_the_number_of_required_pods(spec: str, desired: int) -> None:
    assert budget(spec) == desired


def test_status_of_a_budget_precedes_its_spec() -> None:
    assert budget("minAvailable: 1", "{desiredHealthy: 4}") == 4


@pytest.mark.parametrize("spec", ["minAvailable: half", "minAvailable: 101%", "minAvailable: 1, maxUnavailable: 1"])
def test_invalid_budget_is_rejected(spec: str) -> None:
    with pytest.raises(InputError):
        budget(spec)


def test_budget_export_round_trip() -> None:
    content = read(PODS + "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b, namespace: shop}\n"
                   "spec: {minAvailable: 50%, selector: {matchLabels: {app: web}}}\n")  # fmt: skip
    assert read(write_cluster(content).decode()) == content


def test_preemption_policy_of_the_pod_precedes_its_class() -> None:
    text = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: patient}
value: 10
preemptionPolicy: Never
"""
    pods = {"of-class": "", "says-so": "preemptionPolicy: PreemptLowerPriority, ", "never": "preemptionPolicy: Never, "}
    for name, said in pods.items():
        cls = "" if name == "never" else "priorityClassName: patient, "
        text += f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{{cls}{said}containers: [{{name: c, image: i}}]}}
"""
    content = read(text)
    assert {pod.name: pod.preempts for pod in content.pending} == {"of-class": False, "says-so": True, "never": False}
    assert read(write_cluster(content).decode()) == content


def test_static_pod_cannot_be_evicted() -> None:
    text = """
apiVersion: v1
kind: Pod
metadata: {name: proxy, annotations: {kubernetes.io/config.mirror: abc}}
spec: {nodeName: n, containers: [{name: c, image: i}]}
"""
    content = read(text)
    assert [pod.preemptible for pod in content.running] == [False]
    assert read(write_cluster(content).decode()) == content
