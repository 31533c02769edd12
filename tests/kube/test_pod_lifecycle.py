"""Lifecycle on a real API server: added, decided, bound with its allocation, run, ended; and rejected with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.pod_events import EVENTS
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.actions import begin_binding, reject
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.kubelet import Kubelet
from tests.kube.scene import an_informer, eventually, make_node, make_pod, pod_of, states
from workers import report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one RISC-V and one amd64 node."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_node(api, "arm", **{"kubernetes.io/arch": "riscv64", "hetsched.io/isa": "rv64gcv"})
    make_node(api, "x86", **{"kubernetes.io/arch": "amd64"})
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 2)
    follower._write_sync()
    yield follower
    follower.ended.set()


def test_pod_is_decided_bound_and_followed_to_its_end(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "vector", labels={"hetsched.io/isa": "rv64gcv"})
    eventually(followed, lambda: states() == {"vector": "pending"})
    followed._write_sync()
    assert schedule.run(cluster.pk) == 1
    assert binding_cycle.run(cluster.pk) == 1
    found = pod_of(api, "vector")
    assert found["spec"]["nodeName"] == "arm"
    allocation = json.loads(found["metadata"]["annotations"]["hetsched.io/allocation"])
    assert allocation["isa"]["mode"] == "native"
    assert allocation["uid"] == found["metadata"]["uid"]
    with Kubelet(api) as kubelet:
        eventually(followed, lambda: states() == {"vector": "running"})
        kubelet.end("default/vector")
        eventually(followed, lambda: states() == {"vector": "succeeded"})
    assert set(Node.objects.values_list("pods", flat=True)) == {0}
    assert check_invariants() == []


def test_unschedulable_pod_has_its_reasons(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "big", cpu="64")
    eventually(followed, lambda: states() == {"big": "pending"})
    followed._write_sync()
    schedule.run(cluster.pk)
    assert states() == {"big": "never-fits"}
    assert [(reason.plugin, reason.nodes) for reason in Decision.objects.get().reasons] == [("resource-fit", 2)]
    assert "nodeName" not in pod_of(api, "big")["spec"]


def test_capacity_used_by_another_scheduler_is_charged(api: Api, cluster: Cluster, followed: Informer) -> None:
    for node in ("arm", "x86"):
        make_pod(api, f"foreign-{node}", cpu="6", schedulerName="default-scheduler", nodeName=node)
    make_pod(api, "late", cpu="4")
    eventually(followed, lambda: len(states()) == 3)
    followed._write_sync()
    schedule.run(cluster.pk)
    assert states()["late"] == "not-now"
    api.send("DELETE", PODS.path(namespace="default", name="foreign-x86"), query={"gracePeriodSeconds": "0"})
    eventually(followed, lambda: states()["foreign-x86"] == "cancelled")
    eventually(followed, lambda: schedule.run(cluster.pk) == 1)  # its back-off has ended
    binding_cycle.run(cluster.pk)
    assert pod_of(api, "late")["spec"]["nodeName"] == "x86"
    assert check_invariants() == []


def test_pod_moves_when_its_node_is_filled_before_the_binding(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_pod(api, "ours", cpu="6")
    eventually(followed, lambda: states() == {"ours": "pending"})
    followed._write_sync()
    assert schedule.run(cluster.pk) == 1
    placed_on = Pod.objects.select_related("node").get().node
    assert placed_on is not None
    make_pod(api, "theirs", cpu="6", schedulerName="default-scheduler", nodeName=placed_on.name)
    eventually(followed, lambda: states() == {"ours": "pending", "theirs": "running"})
    followed._write_sync()
    assert (schedule.run(cluster.pk), binding_cycle.run(cluster.pk)) == (1, 1)
    (other,) = {"arm", "x86"} - {placed_on.name}
    assert pod_of(api, "ours")["spec"]["nodeName"] == other
    assert check_invariants() == []


def events_of(api: Api, name: str) -> list[tuple[str, str]]:
    """Return (reason, note) of a pod's events, the oldest first."""
    items = json.loads(api.get(EVENTS.path(namespace="default")))["items"]
    own = [event for event in items if event["regarding"].get("uid") == pod_of(api, name)["metadata"]["uid"]]
    return [(event["reason"], event["note"]) for event in sorted(own, key=lambda event: event["eventTime"])]


def test_pod_gets_events_for_its_reasons_and_its_node(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "api_of", lambda _: api)
    make_pod(api, "big", cpu="64")
    make_pod(api, "small")
    eventually(followed, lambda: len(states()) == 2)
    followed._write_sync()
    schedule.run(cluster.pk)
    binding_cycle.run(cluster.pk)
    assert report.run(cluster.pk) == 2
    (condition,) = pod_of(api, "big")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    sentence = Decision.objects.get(pod__name="big").summary
    assert condition["message"] == f"NeverFits: {sentence}"
    assert events_of(api, "big") == [("FailedScheduling", sentence)]
    (scheduled,) = events_of(api, "small")
    assert scheduled[0] == "Scheduled"
    node = pod_of(api, "small")["spec"]["nodeName"]
    assert scheduled[1].startswith(f"Successfully assigned default/small to {node} (")
    assert report.run(cluster.pk) == 0


def test_pod_names_the_source_of_a_rejected_binding(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "api_of", lambda _: api)
    make_pod(api, "small")
    eventually(followed, lambda: len(states()) == 1)
    followed._write_sync()
    schedule.run(cluster.pk)
    pod = Pod.objects.get(name="small")
    begin_binding(cluster.pk, [pod.pk])
    reject(cluster.pk, [pod.pk], reason="admission policy 'guard' denied request")
    assert report.run(cluster.pk) == 1
    sentence = f"{Decision.objects.get(pod=pod).summary}, but was not bound: admission policy 'guard' denied request"
    (condition,) = pod_of(api, "small")["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("SchedulerError", f"NotBound: {sentence}")
    assert events_of(api, "small") == [("FailedScheduling", sentence)]
    assert report.run(cluster.pk) == 0
