"""A valid manifest in any of its forms becomes a workload; an invalid one writes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.placement.models import Pod, Workload
from hetsched.policies.models import NamespaceRule

from .conftest import POD, Api

PLAIN = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
}
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nopenb-pod-0,1000,2048,1,500,\n"


def test_bare_manifest_is_accepted(operator: Api, cluster: Any, local_messages: Any) -> None:
    answer = operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    document = answer.json()
    assert document == {
        "id": document["id"],
        "state": "pending",
        "pods": [{"pod": "default/web", "state": "pending"}],
    }
    assert answer["Location"] == f"/api/v1/workloads/{document['id']}/"


@pytest.mark.django_db(transaction=True)
def test_scheduler_wake_up_is_sent_once(operator: Api, cluster: Any, local_messages: list[Any]) -> None:
    local_messages.clear()
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    assert local_messages == [("workers.schedule.run", [cluster.pk])]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (POD, "application/yaml"),
        (POD, "text/yaml; charset=utf-8"),
        (PLAIN, "application/json"),
        ({"apiVersion": "v1", "kind": "List", "items": [PLAIN]}, "application/json"),
        ({"manifest": POD}, "application/json"),
        ({"manifest": PLAIN}, "application/json"),
        ({"manifest": msgspec.json.encode(PLAIN).decode()}, "application/json; charset=utf-8"),
        (b"\xef\xbb\xbf" + POD.encode(), "application/yaml"),
    ],
)
def test_every_form_gives_the_same_pod(operator: Api, cluster: Any, body: Any, kind: str) -> None:
    operator("POST", "workloads/", body, kind=kind, status=202)
    (pod,) = Pod.objects.all()
    assert (pod.key, pod.spec.shape.requests) == ("default/web", (("cpu", 500), ("memory", 2**30), ("pods", 1)))


def test_rows_of_the_openb_trace(operator: Api, cluster: Any) -> None:
    operator("POST", "workloads/", OPENB, kind="text/csv", status=202)
    (pod,) = Pod.objects.all()
    assert pod.spec.shape.gpu is not None
    assert (pod.key, pod.spec.shape.gpu.milli) == ("default/openb-pod-0", 500)


def test_deployment_creates_its_pods(operator: Api, cluster: Any) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "shop"},
        "spec": {"replicas": 3, "template": {"spec": PLAIN["spec"]}},
    }
    document = operator("POST", "workloads/", {"manifest": deployment}, status=202).json()
    assert len(document["pods"]) == 3
    assert operator.get(f"workloads/{document['id']}/")["name"] == "shop"


def test_body_has_policy_priority_name_and_callback(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    extras = {"policy": "spread", "priority": -7, "name": "nightly", "callbackUrl": "https://ci.example/done"}
    wrapped = operator("POST", "workloads/", {"manifest": POD, **extras}, status=202).json()["id"]
    query = "&".join(f"{name}={value}" for name, value in extras.items())
    other = POD.replace("web", "web2")
    bare = operator("POST", f"workloads/?{query}", other, kind="application/yaml", status=202).json()["id"]
    for workload in (wrapped, bare):
        shown = operator.get(f"workloads/{workload}/")
        assert {name: shown[name] for name in extras} == extras
    assert set(Pod.objects.values_list("policy", "policy_rule", "priority")) == {("spread", "request", -7)}


def test_policy_rule_of_the_namespace_chooses_the_policy(operator: Api, cluster: Any) -> None:
    operator("POST", "workloads/?cluster=lab", POD, kind="application/yaml", status=202)
    NamespaceRule.objects.create(cluster=cluster, namespace="default", default_policy="spread")
    second = POD.replace("name: web", "name: second")
    operator("POST", "workloads/?cluster=lab", second, kind="application/yaml", status=202)
    assert dict(Pod.objects.values_list("name", "policy_rule")) == {"web": "cluster", "second": "namespace"}


def test_pod_with_an_invalid_request_is_accepted(operator: Api, cluster: Any) -> None:
    wrong = POD.replace("{name: web}", "{name: web, annotations: {hetsched.io/gpu-milli: '0'}}")
    operator("POST", "workloads/", wrong, kind="application/yaml", status=202)


@pytest.mark.parametrize(
    ("body", "code", "place"),
    [
        ({"manifest": POD, "priority": 2**31}, "PriorityInvalid", "priority"),
        ({"manifest": POD, "priority": "high"}, "BodyInvalid", "priority"),
        ({"manifest": POD, "policy": "none-such"}, "PolicyUnknown", "policy"),
        ({"manifest": POD, "polices": "spread"}, "BodyInvalid", "polices"),
        ({"manifest": 5}, "BodyInvalid", "manifest"),
        ({"manifest": ""}, "ManifestEmpty", "manifest"),
        ({"manifest": "kind: Service\napiVersion: v1\nmetadata: {name: x}"}, "WorkloadEmpty", "manifest"),
        ({"manifest": f"{POD}---\n{POD}"}, "ObjectDuplicate", "manifest#2 metadata.name"),
        ({"manifest": POD.replace("spec:", "spec:\n  nodeName: n1")}, "PodBound", "spec.nodeName"),
        ({"manifest": POD.replace("500m", "-1")}, "QuantityNegative", None),
        ({"manifest": POD, "callbackUrl": "file:///etc/passwd"}, "CallbackUrlInvalid", "callbackUrl"),
        ({"manifest": POD, "callbackUrl": "https://elsewhere.example/"}, "CallbackNotAllowed", "callbackUrl"),
        ({"manifest": POD, "callbackUrl": "http://user:pw@host/"}, "CallbackUrlInvalid", "callbackUrl"),
        ({"manifest": POD, "callbackUrl": "http://[::1/"}, "CallbackUrlInvalid", "callbackUrl"),
        ({"manifest": POD, "name": "x" * 254}, "NameInvalid", "name"),
        (PLAIN | {"kind": 5}, "ManifestMalformed", None),
        ([PLAIN], "ManifestMalformed", None),
    ],
)
def test_invalid_submission_names_error_and_place(
    operator: Api, cluster: Any, body: Any, code: str, place: str | None
) -> None:
    problem = operator("POST", "workloads/", body, status=400).json()
    assert problem["code"] == code
    assert place is None or problem.get("place", "") == place
    assert problem["hint"]
    assert not Workload.objects.exists()


def test_existing_name_is_a_conflict(operator: Api, cluster: Any) -> None:
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    problem = operator("POST", "workloads/", POD, kind="application/yaml", status=409).json()
    assert problem["code"] == "PodExists"


def test_overlong_reason_is_rejected(operator: Api, cluster: Any) -> None:
    workload = operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()["id"]
    problem = operator("DELETE", f"workloads/{workload}/?reason={'x' * 2001}", status=400).json()
    assert (problem["code"], problem["place"]) == ("ReasonTooLong", "reason")
    assert operator.get(f"workloads/{workload}/")["state"] == "pending"
    assert operator("DELETE", f"workloads/{workload}/?reason={'x' * 2000}", status=200).json()["state"] == "cancelled"


def test_unknown_cluster_returns_404(operator: Api, cluster: Any) -> None:
    operator("POST", "workloads/", {"manifest": POD, "cluster": "none"}, status=404)
    operator("POST", "workloads/?cluster=none", POD, kind="application/yaml", status=404)


def test_error_without_any_cluster_has_a_remedy(operator: Api) -> None:
    problem = operator("POST", "workloads/", POD, kind="application/yaml", status=404).json()
    assert problem["hint"]


def test_cluster_is_required_without_a_default(operator: Api, cluster: Any, settings: Any) -> None:
    operator("POST", "clusters/", {"name": "more", "reason": "second"}, status=201)
    problem = operator("POST", "workloads/", POD, kind="application/yaml", status=400).json()
    assert (problem["code"], problem["hint"]) == ("ClusterAmbiguous", "Name one of these clusters: lab, more")
    settings.HETSCHED_DEFAULT_CLUSTER = "more"
    accepted = operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()
    assert operator.get(f"workloads/{accepted['id']}/")["cluster"] == "more"


def test_full_queue_returns_retry_after(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_MOST_WAITING_PODS = 2
    for name in ("a", "b"):
        operator("POST", "workloads/", POD.replace("web", name), kind="application/yaml", status=202)
    refused = operator("POST", "workloads/", POD, kind="application/yaml", status=429)
    assert (refused.json()["code"], refused["Retry-After"]) == ("TooManyWaiting", "30")


def test_accepted_submission_is_answered_again_with_a_full_queue(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_MOST_WAITING_PODS = 1
    sent = {"kind": "application/yaml", "idempotency_key": "k"}
    first = operator("POST", "workloads/", POD, status=202, **sent).json()
    again = operator("POST", "workloads/", POD, status=202, **sent)
    assert (again.json()["id"], again["Idempotency-Replayed"]) == (first["id"], "true")


def test_csv_of_8152_pods_is_one_submission(operator: Api, cluster: Any) -> None:
    rows = "".join(f"openb-pod-{i},{1000 + i % 7},2048,0,0,\n" for i in range(8152))
    document = operator(
        "POST",
        "workloads/",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + rows,
        kind="text/csv",
        status=202,
    ).json()
    assert len(document["pods"]) == 8152
    shown = operator.get(f"workloads/{document['id']}/")
    assert (shown["podCount"], len(shown["pods"])) == (8152, 500)
    second = operator.get(shown["podsNext"].removeprefix("/api/v1/"), limit=1000)
    assert [row["pod"] for row in second["items"][:2]] == ["default/openb-pod-0", "default/openb-pod-1"]
