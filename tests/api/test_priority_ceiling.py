"""Tokens limited to namespaces have priority ceiling 0 by default: they do not evict other teams' pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.access.models import Token
from hetsched.access.tokens import create_token
from hetsched.contracts.objects.cluster import PriorityClass
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import Hold, Pod, SubmittedObject, Workload
from workers.schedule import run

from .conftest import Api

YAML = "application/yaml"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  containers:
  - {name: main, image: example.com/x, resources: {requests: {cpu: "7", memory: 1Gi}}}
"""
CLASS = """\
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
"""


def pod(name: str = "p", namespace: str = "team", **spec: Any) -> str:
    return POD % (name, namespace) + "".join(f"  {key}: {value}\n" for key, value in spec.items())


def limited(role: str = "submitter", **bounds: Any) -> Api:
    return Api(create_token(role=role, name="ci", namespaces=["team"], **bounds)[1])


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


REFUSED = (403, "PriorityNotAllowed")


@pytest.mark.parametrize(
    "body",
    [
        {"manifest": pod(priority=1)},
        {"manifest": pod(priority=2**31 - 1)},
        {"manifest": pod(), "priority": 1},
        {"manifest": pod(priorityClassName="urgent") + CLASS},
        {"manifest": pod(priorityClassName="system-node-critical")},
        {"manifest": pod(priorityClassName="nowhere")},
    ],
    ids=["spec", "highest", "request", "class", "system-class", "unknown-class"],
)
@pytest.mark.parametrize("address", ["workloads/", "what-if/", "submissions/"])
def test_priority_above_zero_is_rejected_by_every_endpoint(
    cluster: Cluster, body: dict[str, Any], address: str
) -> None:
    sent = {"items": [body]} if address == "submissions/" else body
    answer = limited()("POST", address, sent)
    if address == "submissions/":
        (item,) = answer.json()["items"]
        assert (item["status"], item["problem"]["code"]) == REFUSED
    else:
        assert code(answer) == REFUSED
    assert not Workload.objects.exists()


def test_plans_and_atomic_batches_are_rejected_too(cluster: Cluster) -> None:
    body = {"manifest": pod(priority=5)}
    assert code(limited()("POST", "what-if/", {**body, "plan": True})) == REFUSED
    assert code(limited()("POST", "submissions/", {"items": [body], "allOrNothing": True})) == (422, "BatchRefused")
    assert not Workload.objects.exists()


def test_hold_above_the_ceiling_is_rejected(cluster: Cluster) -> None:
    assert code(limited()("POST", "holds/", {"manifest": pod(priority=5)})) == REFUSED
    assert not Hold.objects.exists()
    limited()("POST", "holds/", {"manifest": pod()}, status=201)


def test_default_priority_class_is_checked(cluster: Cluster) -> None:
    cluster.definitions.priority_classes["normal"] = PriorityClass(100, default=True)
    cluster.save()
    assert code(limited()("POST", "workloads/", pod(), kind=YAML)) == REFUSED
    limited()("POST", "workloads/", pod(priority=0), kind=YAML, status=202)


def test_zero_and_less_are_accepted(cluster: Cluster) -> None:
    limited()("POST", "workloads/", pod("a", priority=-5), kind=YAML, status=202)
    limited()("POST", "workloads/", pod("b"), kind=YAML, status=202)


def test_ceiling_of_the_creation_applies(cluster: Cluster) -> None:
    limited(most_priority=10)("POST", "workloads/", pod("a", priority=10), kind=YAML, status=202)
    assert code(limited(most_priority=10)("POST", "workloads/", pod("b", priority=11), kind=YAML)) == REFUSED
    limited(most_priority=2**31 - 1)("POST", "workloads/", pod("c", priority=2**31 - 1), kind=YAML, status=202)


def test_tokens_without_namespaces_have_no_ceiling(cluster: Cluster, operator: Api) -> None:
    operator("POST", "workloads/", pod(priority=1000), kind=YAML, status=202)


def test_pods_of_other_teams_are_not_evicted(cluster: Cluster, operator: Api) -> None:
    theirs = "---\n".join(pod(name, "rest") for name in ("one", "two"))
    operator("POST", "workloads/", theirs, kind=YAML, status=202)
    run(cluster.pk)
    assert code(limited()("POST", "workloads/", pod("strong", priority=100_000), kind=YAML)) == REFUSED
    limited()("POST", "workloads/", pod("strong"), kind=YAML, status=202)
    run(cluster.pk)
    assert set(Pod.objects.filter(namespace="rest").values_list("state", flat=True)) == {"placed"}
    assert Pod.objects.get(namespace="team").state == "not-now"


class TestActions:
    @pytest.fixture
    def raised(self, cluster: Cluster, operator: Api) -> str:
        """Submit a workload of the team with a priority above its token's ceiling, and check the rejection."""
        manifest = pod(priority=50).replace('cpu: "7"', 'cpu: "700"')
        found = operator("POST", "workloads/", manifest, kind=YAML, status=202).json()["id"]
        run(cluster.pk)
        return str(found)

    def act(self, caller: Api, workload: str, **action: Any) -> tuple[int, str]:
        return code(caller("POST", f"workloads/{workload}/actions/", {"reason": "r", **action}, if_match="*"))

    def test_retry_above_the_ceiling_is_rejected(self, raised: str) -> None:
        assert self.act(limited(), raised, action="retry") == REFUSED
        assert Pod.objects.get().state == "never-fits"
        assert self.act(limited(most_priority=50), raised, action="retry")[0] == 200

    def test_limited_operator_sets_no_priority_above_the_ceiling(self, raised: str) -> None:
        caller = limited("operator")
        assert self.act(caller, raised, action="priority", priority=1) == REFUSED
        assert Pod.objects.get().priority == 50
        assert self.act(caller, raised, action="priority", priority=0)[0] == 200
        assert Pod.objects.get().priority == 0

    def test_token_cancels_workloads_above_the_ceiling(self, raised: str) -> None:
        assert self.act(limited(), raised, action="cancel")[0] == 200


class TestALiveCluster:
    @pytest.fixture(autouse=True)
    def live(self, policies: None) -> None:
        made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
        Connection.objects.create(cluster=made, enrolled_namespaces=["team"])

    @pytest.mark.parametrize("spec", [{"priorityClassName": "made-a-moment-ago"}, {"priority": 7}])
    def test_unknown_priority_class_is_rejected(self, spec: dict[str, Any]) -> None:
        assert code(limited()("POST", "workloads/", pod(**spec), kind=YAML)) == REFUSED
        assert not SubmittedObject.objects.exists()

    def test_pods_without_a_priority_are_accepted(self) -> None:
        limited()("POST", "workloads/", pod(), kind=YAML, status=202)


class TestResponses:
    @pytest.fixture
    def admin(self, person: Callable[..., Any]) -> Client:
        person("root", superuser=True)
        client = Client()
        client.login(username="root", password="a long enough password")
        return client

    def test_rest_and_the_page_show_the_preemption_limit_of_a_token(self, admin: Client) -> None:
        made = {
            "limited": create_token(role="submitter", name="limited", namespaces=["team"]),
            "stated": create_token(role="submitter", name="stated", namespaces=["team"], most_priority=10),
            "free": create_token(role="operator", name="free"),
            "looks": create_token(role="viewer", name="looks", namespaces=["team"]),
        }
        assert made["limited"][0].most_priority is None
        shown = {item["name"]: item for item in admin.get("/api/v1/tokens/").json()["items"]}
        assert {name: (shown[name]["mostPriority"], shown[name]["priorityCeiling"]) for name in made} == {
            "limited": (None, 0), "stated": (10, 10), "free": (None, None), "looks": (None, None),
        }  # fmt: skip
        assert {name: shown[name]["preempts"] for name in made} == {
            "limited": {"below": 0}, "stated": {"below": 10}, "free": {"below": None}, "looks": None,
        }  # fmt: skip
        page = admin.get("/tokens/").content.decode()
        assert "pods with a priority below 0 in every namespace" in page
        assert "pods with a priority below 10 in every namespace" in page
        assert "pods of lower priority in every namespace" in page

    def test_tokens_without_a_ceiling_have_the_default(self, cluster: Cluster) -> None:
        token, plaintext = create_token(role="submitter", name="old")
        Token.objects.filter(pk=token.pk).update(namespaces=["team"], most_priority=None)
        assert code(Api(plaintext)("POST", "workloads/", pod(priority=1), kind=YAML)) == REFUSED
