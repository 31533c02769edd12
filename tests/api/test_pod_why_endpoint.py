"""`pods/{id}/why/`: the duration of each reason, changes between attempts, and what would make the pod fit now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.placement.actions import release
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, recorded, refusing, submitted
from workers.schedule import run

from .conftest import Api
from .test_what_if_endpoint import ask, no_writes


@pytest.fixture
def viewer(api: Callable[..., Api], db: Any) -> Api:
    made = api("viewer")
    made.get("nodes/")  # records the first use of the token
    return made


def why(viewer: Api, pod: Pod, **query: str) -> Any:
    with no_writes():
        return viewer.get(f"pods/{pod.pk}/why/", **query)


def decide(pod: Pod, seconds: int, *reasons: Reason, version: int = 1, node: str = "") -> None:
    Decision.objects.create(
        cluster=pod.cluster, workload=pod.workload, pod=pod, namespace=pod.namespace, pod_name=pod.name,
        verdict=Verdict.PLACED if node else Verdict.NOT_NOW, node_name=node, policy_name="hetsched",
        policy_version=version, snapshot="x", cluster_revision=seconds, inventory_revision=1, summary="s",
        reasons=reasons, created_at=pod.created_at + timedelta(seconds=seconds),
    )  # fmt: skip


def test_reason_durations_sum_up_to_the_waiting_time(viewer: Api) -> None:
    cluster = a_cluster()
    pod = submitted(cluster, a_pod("p")).pods.get()
    isa = Reason("IsaMissing", "isa-match", 3, "lacks v", before=4, after=1)
    full = Reason("InsufficientResource", "resource-fit", 1, "cpu is short", before=1, after=0)
    decide(pod, 5, isa, full)
    decide(pod, 25, full)
    decide(pod, 60, node="n1")
    found = why(viewer, pod)
    # 5 s in the queue, 20 s and 35 s short of CPU: the last filter left no node. Placed since then.
    codes = [(span["code"], span["pending"]) for span in found["spans"]]
    assert codes == [
        ("Queued", True), ("InsufficientResource", True), ("InsufficientResource", True), ("Placed", False),
    ]  # fmt: skip
    assert [span["seconds"] for span in found["spans"][:3]] == [5, 20, 35]
    assert found["pendingSeconds"] == 60
    assert found["spans"][-1]["until"] is None


def test_pending_time_is_charged_to_the_lifted_condition(viewer: Api, policies: None) -> None:
    # Four nodes have no GPU; the only GPU is held, and its release ends the wait.
    cluster = a_cluster(*(a_node(f"plain-{number}") for number in range(4)), a_node("cards").gpus(1))
    submitted(cluster, a_pod("first").gpu(1))
    run(cluster.pk)
    pod = submitted(cluster, a_pod("second").gpu(1)).pods.get()
    run(cluster.pk)
    (_queued, waited) = why(viewer, pod)["spans"]
    reasons = {reason.message: reason for reason in Decision.objects.get(pod=pod).reasons}
    lifted, most = reasons[waited["message"]], max(reasons.values(), key=lambda reason: reason.nodes)
    assert (lifted.candidates, lifted.nodes) == (("cards",), 1)
    assert (most.nodes, most.candidates) == (4, ())
    release(cluster.pk, [Pod.objects.get(name="first").pk], to=State.SUCCEEDED, reason="done")
    Pod.objects.filter(pk=pod.pk).update(queued=True, not_before=None)
    run(cluster.pk)
    assert [span["message"] for span in why(viewer, pod)["spans"][1:]] == [lifted.message, "cards"]


def test_gang_member_time_is_charged_to_the_lifted_condition(viewer: Api, policies: None) -> None:
    # Three reasons exclude more nodes than the held GPUs, whose release ends the wait.
    nodes = [a_node(f"plain-{number}").cpu(8) for number in range(4)]
    nodes += [a_node(f"slow-{number}").cpu(1).gpus(1) for number in range(3)]
    nodes += [a_node(f"other-{number}").cpu(8).gpus(2, model="T4") for number in range(2)]
    cluster = a_cluster(*nodes, a_node("cards").cpu(8).gpus(2, model="A100"))
    submitted(cluster, a_pod("first").gpu(2, model="A100"))
    run(cluster.pk)
    members = [a_pod(f"m{number}").cpu(2).gpu(1, model="A100").gang("team", 2) for number in range(2)]
    pods = list(submitted(cluster, *members).pods.all())
    run(cluster.pk)
    release(cluster.pk, [Pod.objects.get(name="first").pk], to=State.SUCCEEDED, reason="done")
    Pod.objects.filter(pk__in=[pod.pk for pod in pods]).update(queued=True, not_before=None)
    run(cluster.pk)
    for pod in pods:
        assert [span["code"] for span in why(viewer, pod)["spans"]] == ["Queued", "GpuInsufficient", "Placed"]
    refused = Decision.objects.filter(pod=pods[0]).earliest("id")
    assert next(reason.plugin for reason in refused.reasons) == "gang"


def test_placed_pod_has_no_reasons_of_earlier_attempts(viewer: Api) -> None:
    pod = submitted(a_cluster(), a_pod("p")).pods.get()
    decide(pod, 5, Reason("NodeNotReady", "node-ready", 1, "the node is not Ready", before=4))
    decide(pod, 9, node="n1")
    assert why(viewer, pod)["changed"]["reasons"] == []


def test_changes_between_two_attempts_are_listed(viewer: Api) -> None:
    pod = submitted(a_cluster(), a_pod("p")).pods.get()
    decide(pod, 5, Reason("IsaMissing", "isa-match", 3, "lacks v", before=4))
    decide(pod, 9, Reason("IsaMissing", "isa-match", 2, "lacks v", before=3), version=2)
    changed = why(viewer, pod)["changed"]
    assert changed["policies"] == ["hetsched v1", "hetsched v2"]
    assert changed["nodes"] == [4, 3]
    assert (changed["revisions"], changed["inventory"]) == (4, False)
    assert changed["reasons"] == [
        {"plugin": "isa-match", "code": "IsaMissing", "message": "lacks v", "before": 3, "now": 2}
    ]


def test_pending_pod_shows_nearest_fit_and_blockers(viewer: Api) -> None:
    cluster = a_cluster(a_node("n1").cpu(8), a_node("n2").cpu(4))
    placed(cluster, "n1", a_pod("small").cpu("2"), a_pod("large").cpu("3"))
    pod = submitted(cluster, a_pod("p").cpu("6")).pods.get()
    recorded(cluster, refusing(cluster))
    assert why(viewer, pod)["outlook"] is None
    outlook = why(viewer, pod, outlook="true")["outlook"]
    assert outlook["verdict"] == "not-now"
    step = outlook["nextSteps"][0]
    # 4 of n2 are free, 3 of n1.
    assert (step["fit"]["change"], step["fit"]["nodes"]) == ("cpu 6 -> 4", ["n2"])
    assert ask(viewer, step["manifest"])["verdict"] == "placed"
    # 3 are free on n1: without `large` there are 6.
    assert [[item["pod"] for item in node] for node in outlook["blockers"]] == [["default/large"]]


def test_gang_shows_placed_and_total_members(viewer: Api) -> None:
    cluster = a_cluster(a_node("n1").cpu(8))
    members = [a_pod(f"m{number}").cpu("6").gang("team", 2) for number in range(2)]
    workload = submitted(cluster, *members)
    gang = why(viewer, workload.pods.first(), outlook="true")["gang"]
    assert (gang["name"], gang["placed"], gang["needed"], len(gang["members"])) == ("default/team", 0, 2, 2)


def test_pod_outside_the_token_namespaces_is_not_found(viewer: Api, api: Callable[..., Api]) -> None:
    pod = submitted(a_cluster(), a_pod("p")).pods.get()
    limited = api("viewer", "other")
    limited("GET", f"pods/{pod.pk}/why/", status=404)
    limited("GET", "pods/99999/why/", status=404)


def test_blocker_is_hidden_from_a_token_of_other_namespaces(db: Any, api: Callable[..., Api]) -> None:
    cluster = a_cluster(a_node("n1").cpu(8))
    placed(cluster, "n1", a_pod("secret", "rest").cpu("5"))
    pod = submitted(cluster, a_pod("p", "team").cpu("6")).pods.get()
    recorded(cluster, refusing(cluster))
    for space, name in (("team", ""), ("", "rest/secret")):
        client = api("viewer", *([space] if space else []))
        (node,) = client.get(f"pods/{pod.pk}/why/", outlook="true")["outlook"]["blockers"]
        assert [(item["pod"], item["node"], item["priority"]) for item in node] == [(name, "n1", 0)]
