"""Back-off of a controller's pods that a kubelet keeps rejecting, on a real API server.

Real here: etcd and kube-apiserver. Kubelets are simulated (`kubelet`), the test is the controller and sets the
clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.actions.kubelet_rejections import requeue_after_backoff
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.kubelet import RUNS, BoundPod, Kubelet, PodOutcome, ends, refuses, waits
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, states
from workers import schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
IMAGE = "failed to pull and unpack image: no match for platform in manifest: not found"


class Clock:
    """A clock that only the test advances, because real time depends on the speed of the machine."""

    def __init__(self) -> None:
        self._start = timezone.now()
        self.ahead = timedelta()

    def now(self) -> datetime:
        return self._start + self.ahead

    @property
    def minutes(self) -> float:
        return self.ahead.total_seconds() / 60


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timezone, "now", made.now)
    return made


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, Node.objects.exists)
    yield follower
    follower.ended.set()


def outcome_of(pod: BoundPod) -> PodOutcome:
    """Return the result of a pod, by its label."""
    outcomes = {
        "misfit": refuses("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
        "foreign": waits("ErrImagePull", IMAGE),
        "hungry": ends(137, reason="OOMKilled"),
    }
    return outcomes.get(pod.labels.get("kind", ""), RUNS)


def make_owned(api: Api, name: str, owner: str) -> None:
    """Create a pod as the controller with this UID would."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner, "controller": True}
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    meta = {"labels": {"kind": owner}, "ownerReferences": [reference]}
    make(api, PODS, name, "default", metadata=meta, spec={"containers": [container], "schedulerName": "hetsched"})


def newly_placed(cluster: Cluster, follower: Informer) -> set[str]:
    """Decide and bind due pods; return the names of the newly placed ones."""
    before = set(Pod.objects.exclude(node=None).values_list("name", flat=True))
    follower._write_sync()
    schedule.run(cluster.pk)
    binding_cycle.run(cluster.pk)
    return set(Pod.objects.exclude(node=None).values_list("name", flat=True)) - before


def test_rejected_pod_is_tried_at_most_three_times_an_hour(
    api: Api, cluster: Cluster, followed: Informer, clock: Clock
) -> None:
    tries: list[float] = []
    with Kubelet(api, outcome_of) as kubelet:
        make_owned(api, "misfit-0", "misfit")
        while clock.minutes < 100:
            eventually(followed, lambda: f"misfit-{len(tries)}" in states())
            requeue_after_backoff(cluster.pk, clock.now())
            clock.ahead += timedelta(seconds=11)  # its back-off after an attempt without a node
            for name in newly_placed(cluster, followed):
                eventually(followed, lambda name=name: states()[name] == "failed")  # type: ignore[misc]
                tries.append(clock.minutes)
                make_owned(api, f"misfit-{len(tries)}", "misfit")
            clock.ahead += timedelta(seconds=49)
        # rejected at 0, then after 1, 30 and 60 minutes, each time at the next check
        assert [round(at) for at in tries] == [0, 1, 32, 93]
        assert max(sum(at <= other < at + 60 for other in tries) for at in tries) == 3
        assert [pod for pod, _ in kubelet.refused] == [f"default/misfit-{n}" for n in range(4)]
        assert (
            "kubelet of n1 rejected 4 pods of this owner: TopologyAffinityError"
            in Decision.objects.latest("id").summary
        )
        make_pod(api, "other", cpu="2")
        eventually(followed, lambda: "other" in states())
        assert newly_placed(cluster, followed) == {"other"}
        eventually(followed, lambda: states()["other"] == "running")
    assert [doubt.fact for doubt in Node.objects.get().doubts] == ["numa"]
    assert Node.objects.get().pods == 1
    assert check_invariants() == []


def test_failing_containers_are_named(api: Api, cluster: Cluster, followed: Informer) -> None:
    with Kubelet(api, outcome_of):
        make_owned(api, "foreign", "foreign")
        make_owned(api, "hungry", "hungry")
        eventually(followed, lambda: len(states()) == 2)
        assert newly_placed(cluster, followed) == {"foreign", "hungry"}
        eventually(followed, lambda: states()["hungry"] == "failed")
        eventually(followed, lambda: Pod.objects.get(name="foreign").message != "")
    assert Pod.objects.get(name="hungry").message == "container main ended with exit code 137 (OOMKilled)"
    assert Pod.objects.get(name="foreign").message == f"container main is waiting: ErrImagePull: {IMAGE}"
    assert [(doubt.fact, doubt.pod) for doubt in Node.objects.get().doubts] == [("isa", "default/foreign")]


def test_kubelet_renews_leases_and_removes_deleted_pods(api: Api, cluster: Cluster, followed: Informer) -> None:
    with Kubelet(api, outcome_of, beat_seconds=0.1):
        make_pod(api, "p")
        eventually(followed, lambda: "p" in states())
        assert newly_placed(cluster, followed) == {"p"}
        eventually(followed, lambda: states()["p"] == "running")
        api.send("DELETE", PODS.path(namespace="default", name="p"))
        eventually(followed, lambda: states()["p"] == "cancelled")
    assert Node.objects.get().pods == 0
