"""A growing back-off for pods of a controller that a kubelet keeps rejecting.

The test controls the clock: hours pass in a loop. There is no API server here; the test creates its events.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.observed import Changes, ContainerWait, NodeRefusal, ObservedPod
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.avoided_nodes import AvoidedNodes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes, begin_binding
from hetsched.placement.actions.kubelet_rejections import prune_rejections, requeue_after_backoff, trust_node
from hetsched.placement.models import Decision, Pod, Rejection
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.node_backoffs import avoided, node_backoff, owner_backoff
from hetsched.scheduling import worker_host
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies

pytestmark = pytest.mark.django_db
MISFIT = NodeRefusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality", ("numa",))


class Clock:
    def __init__(self) -> None:
        self.start = self.now = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)

    def advance(self, **more: float) -> None:
        self.now += timedelta(**more)

    @property
    def minute(self) -> int:
        return int((self.now - self.start).total_seconds() // 60)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timezone, "now", lambda: made.now)
    return made


@pytest.fixture
def cluster(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs, with an informer in sync under epoch 1."""
    monkeypatch.setattr(worker_host, "is_synced", lambda _: True)
    monkeypatch.setattr(dispatch, "wake", lambda *_: None)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    seen(made, nodes=[a_node("n1").build()])
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def spec(name: str, owner: str = "red") -> PodSpec:
    return a_pod(name).cpu(1).having(uid=f"uid-{name}", controller="Job/red", controller_uid=owner).build()


def waiting(cluster: Cluster, name: str, owner: str = "red") -> None:
    pod = spec(name, owner)
    seen(cluster, pods=[ObservedPod("default", name, pod.uid, scheduler_name="hetsched", spec=pod)])


def report_phase(cluster: Cluster, name: str, phase: str, owner: str = "red", **more: Any) -> None:
    """Report the kubelet's result for a pod on its node."""
    node = Pod.objects.get(name=name).node
    assert node is not None
    pod = spec(name, owner)
    ended = "failed" if phase == "Failed" else ""
    facts = {"scheduler_name": "hetsched", "node_name": node.name, "phase": phase, "ended": ended, **more}
    seen(cluster, pods=[ObservedPod("default", name, pod.uid, spec=None if ended else pod, **facts)])


def tried(cluster: Cluster, clock: Clock) -> list[str]:
    """Run the sweep and the scheduler; return the newly assigned pods."""
    requeue_after_backoff(cluster.pk, clock.now)
    clock.advance(seconds=11)  # a pod that did not fit backs off for up to 10 s
    worker_host.run(cluster.pk)
    placed = list(Pod.objects.filter(state="placed").order_by("id"))
    begin_binding(cluster.pk, [pod.pk for pod in placed])
    return [pod.name for pod in placed]


def refused(cluster: Cluster, clock: Clock, name: str, owner: str = "red") -> None:
    waiting(cluster, name, owner)
    assert tried(cluster, clock) == [name]
    report_phase(cluster, name, "Failed", owner, refusal=MISFIT, reason=MISFIT.reason, message=MISFIT.message)


def test_changed_backoffs_are_read_again(cluster: Cluster, clock: Clock, django_assert_num_queries: Any) -> None:
    def backoffs() -> dict[str, AvoidedNodes]:
        with cache_of(cluster.pk).locked_snapshot() as loaded:
            assert loaded.state.avoided == avoided(cluster.pk, clock.now)
            return dict(loaded.state.avoided)

    refused(cluster, clock, "p0")
    assert backoffs()["red"].nodes["n1"].backs_off
    with django_assert_num_queries(1), cache_of(cluster.pk).locked_snapshot():
        pass  # only the revision
    clock.advance(seconds=58)
    assert backoffs()["red"].nodes["n1"].backs_off
    clock.advance(seconds=2)  # a minute after the rejection
    assert not backoffs()["red"].nodes["n1"].backs_off
    waiting(cluster, "p1")
    assert tried(cluster, clock) == ["p1"]
    report_phase(cluster, "p1", "Running")
    assert backoffs() == {}


def test_rejecting_kubelet_is_tried_at_most_three_times_an_hour(cluster: Cluster, clock: Clock) -> None:
    tries: list[int] = []
    waiting(cluster, "p0")
    while clock.minute < 160:
        for name in tried(cluster, clock):
            tries.append(clock.minute)
            report_phase(cluster, name, "Failed", refusal=MISFIT, reason=MISFIT.reason)
            waiting(cluster, f"p{len(tries)}")  # as its controller does, immediately
        clock.advance(seconds=49)
    # Rejected 11 s after the check at 0; retried at the first check that is 1, 30, 60, 60 minutes after each rejection.
    assert tries == [0, 1, 32, 93, 154]
    assert max(sum(at <= other < at + 60 for other in tries) for at in tries) == 3
    assert Node.objects.get().pods == 0
    assert check_invariants() == []


def test_failure_and_backoff_are_published_together_once(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    pod = Pod.objects.get(name="a")
    assert (pod.state, pod.message) == ("failed", f"{MISFIT.reason}: {MISFIT.message}")
    became_again = ObservedPod("default", "a", "uid-a", node_name="n1", phase="Failed", ended="failed", refusal=MISFIT)
    seen(cluster, pods=[became_again])
    row = Rejection.objects.get()
    assert (row.owner, row.controller, row.pod, row.step) == ("red", "Job/red", "default/a", 1)
    assert row.until - row.created_at == timedelta(minutes=1)


def test_rejections_are_counted_after_the_commit(
    cluster: Cluster, clock: Clock, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(counters, "add", lambda *what, **_: counted.append(what))
    with django_capture_on_commit_callbacks(execute=True):
        refused(cluster, clock, "a")
    assert counted.count((metric_names.KUBELET_REFUSALS, "live", "TopologyAffinityError")) == 1


def test_next_pod_backs_off_and_other_owners_use_the_node(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    waiting(cluster, "b")
    waiting(cluster, "other", owner="blue")
    assert tried(cluster, clock) == ["other"]
    decision = Decision.objects.get(pod__name="b")
    assert decision.verdict == "not-now"
    assert (decision.reasons[0].plugin, decision.reasons[0].code) == ("admission", "KubeletRefused")
    message = "kubelet of n1 rejected 1 pod of this owner: TopologyAffinityError; the next attempt is at 10:01 UTC"
    assert message in decision.summary


def test_next_pod_of_the_owner_is_placed_on_another_node(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    seen(cluster, nodes=[a_node("n2").build()])
    waiting(cluster, "b")
    assert tried(cluster, clock) == ["b"]
    assert Pod.objects.get(name="b").node == Node.objects.get(name="n2")


def test_one_pod_is_tried_after_the_backoff_and_the_rest_follows(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    waiting(cluster, "b")
    waiting(cluster, "c")
    assert tried(cluster, clock) == []
    clock.advance(minutes=1)
    assert tried(cluster, clock) == ["b"]
    report_phase(cluster, "b", "Pending")
    assert tried(cluster, clock) == []
    report_phase(cluster, "b", "Running")
    assert tried(cluster, clock) == ["c"]
    assert Rejection.objects.get().cleared_at is not None
    assert Node.objects.get().doubts == ()


def test_pods_without_a_controller_share_a_backoff_by_request(cluster: Cluster, clock: Clock) -> None:
    def bare(name: str, image: str = "busybox") -> PodSpec:
        return a_pod(name).cpu(1).having(uid=f"uid-{name}", images=(image,)).build()

    def comes(pod: PodSpec) -> None:
        seen(cluster, pods=[ObservedPod("default", pod.name, pod.uid, scheduler_name="hetsched", spec=pod)])

    comes(bare("a"))
    assert tried(cluster, clock) == ["a"]
    report_phase(cluster, "a", "Failed", refusal=MISFIT, reason=MISFIT.reason)
    comes(bare("b"))
    comes(bare("c", image="alpine"))
    assert tried(cluster, clock) == ["c"]
    assert "rejected 1 pod of this owner" in Decision.objects.get(pod__name="b").summary


def test_owner_rejected_on_every_node_backs_off(cluster: Cluster, clock: Clock) -> None:
    seen(cluster, nodes=[a_node(f"n{i}").build() for i in range(2, 6)])
    for name in ("a", "b", "c"):
        refused(cluster, clock, name)
    assert Pod.objects.filter(node=None).count() == 0
    waiting(cluster, "d")
    assert tried(cluster, clock) == []
    assert "kubelets of the cluster rejected 3 pods of this owner" in Decision.objects.latest("id").summary
    clock.advance(minutes=1)
    assert tried(cluster, clock) == ["d"]


def test_image_for_another_machine_counts_once_and_is_reported(cluster: Cluster, clock: Clock) -> None:
    waiting(cluster, "a")
    assert tried(cluster, clock) == ["a"]
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        wait = ContainerWait("main", reason, "no match for platform in manifest")
        report_phase(cluster, "a", "Pending", wait=wait, refusal=NodeRefusal(reason, wait.message, ("isa",)))
    pod = Pod.objects.get()
    assert (pod.state, pod.message) == (
        "bound",
        "container main is waiting: ErrImagePull: no match for platform in manifest",
    )
    assert Rejection.objects.count() == 1
    assert [doubt.fact for doubt in Node.objects.get().doubts] == ["isa"]
    waiting(cluster, "b")
    assert tried(cluster, clock) == []
    report_phase(cluster, "a", "Running")
    assert Pod.objects.get(name="a").message == ""


def test_contradiction_changes_no_capacity_and_ends_with_another_report(cluster: Cluster, clock: Clock) -> None:
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        before = loaded.state.digest()
    refused(cluster, clock, "a")
    (doubt,) = Node.objects.get().doubts
    assert (doubt.fact, doubt.pod, doubt.reason) == ("numa", "default/a", "TopologyAffinityError")
    assert doubt.since == "2026-11-21T10:00:11Z"
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == before
    seen(cluster, nodes=[a_node("n1").not_ready().build()])
    assert len(Node.objects.get().doubts) == 1
    seen(cluster, nodes=[a_node("n1").zone("node-0", "0-3").zone("node-1", "4-7").build()])
    assert Node.objects.get().doubts == ()


def test_operator_resets_the_contradiction(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    trust_node(cluster, "n1", actor=SYSTEM, reason="new BIOS")
    assert Node.objects.get().doubts == ()
    assert list(
        AuditEntry.objects.filter(action__startswith="node.").order_by("id").values_list("action", flat=True)
    ) == [
        "node.doubt",
        "node.trust",
    ]
    waiting(cluster, "b")
    assert tried(cluster, clock) == ["b"]
    with pytest.raises(InputError, match="NothingInDoubt"):
        trust_node(cluster, "n1", actor=SYSTEM, reason="again")


def test_day_without_a_rejection_resets_the_backoff(cluster: Cluster, clock: Clock) -> None:
    refused(cluster, clock, "a")
    clock.advance(minutes=1)
    refused(cluster, clock, "b")
    clock.advance(hours=25)
    refused(cluster, clock, "c")
    assert list(Rejection.objects.order_by("id").values_list("step", flat=True)) == [1, 2, 1]
    assert prune_rejections(cluster.pk, before=clock.now) == 2


def test_placements_of_other_schedulers_are_not_counted(cluster: Cluster) -> None:
    theirs = ObservedPod(
        "default", "t", "uid-t", scheduler_name="theirs", node_name="n1", phase="Pending", spec=spec("t")
    )
    seen(cluster, pods=[theirs])
    report_phase(cluster, "t", "Failed", refusal=MISFIT, reason=MISFIT.reason)
    assert Pod.objects.get().state == "failed"
    assert not Rejection.objects.exists()
    assert Node.objects.get().doubts == ()


def test_backoff_grows_to_a_maximum() -> None:
    assert [node_backoff(step).total_seconds() / 60 for step in (1, 2, 3, 4)] == [1, 30, 60, 60]
    rests = [owner_backoff(nodes) for nodes in (1, 2, 3, 4, 5, 6, 7, 100)]
    assert [rest and rest.total_seconds() / 60 for rest in rests] == [None, None, 1, 2, 4, 8, 10, 10]
