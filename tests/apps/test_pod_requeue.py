"""A pending pod is requeued by the events that it registered, by no other event, and independent of timing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.waits import Event, WaitsFor, describe_waits
from hetsched.inventory.actions import cordon, create_cluster, uncordon
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes, cancel, record
from hetsched.placement.models import Decision, Pod
from hetsched.placement.scheduling_queue import unschedulable_pods
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.placement.scheduling_queue.unschedulable_pods import requeue_pods, requeue_timed_out_pods
from hetsched.placement.scheduling_result import Result
from hetsched.scheduling.leases import Lease, following
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import ALICE, a_cluster, placed, recorded, submitted
from tests.sqlite import needs_sqlite, statement_costs
from workers import schedule

pytestmark = pytest.mark.django_db


def refused(cluster: Cluster, *events: Event, verdict: Verdict = Verdict.NOT_NOW) -> None:
    """Reject all due pods with these registered events."""
    waits = (WaitsFor("test", events, "it"),)
    results = [
        Result(pod, verdict, "no", "hetsched", 1, waits_for=waits) for pod in first_active_pods(cluster.pk, None, 500)
    ]
    recorded(cluster, results)


def queued() -> list[str]:
    return sorted(Pod.objects.filter(queued=True).values_list("name", flat=True))


def three_pending_pods(cluster: Cluster) -> None:
    for name, event in (("leave", Event.POD_RELEASED), ("come", Event.POD_PLACED), ("taint", Event.NODE_TAINTS)):
        submitted(cluster, a_pod(name))
        refused(cluster, event)


def test_only_pods_with_a_matching_hint_are_requeued() -> None:
    cluster = a_cluster()
    (running,) = placed(cluster, "n1", a_pod("running"))
    three_pending_pods(cluster)
    assert queued() == []
    assert running.workload is not None
    cancel(running.workload, actor=ALICE, reason="test")
    assert queued() == ["leave"]
    cordon(cluster, "n1", actor=ALICE, reason="test")
    uncordon(cluster, "n1", actor=ALICE, reason="test")
    assert queued() == ["leave", "taint"]
    placed(cluster, "n1", a_pod("another"))
    assert "come" in queued()


def test_never_fitting_pod_is_not_requeued_by_released_pods() -> None:
    cluster = a_cluster()
    (running,) = placed(cluster, "n1", a_pod("running"))
    submitted(cluster, a_pod("huge").cpu("99"))
    schedule.run(cluster.pk)
    assert running.workload is not None
    cancel(running.workload, actor=ALICE, reason="test")
    assert queued() == []
    assert describe_waits(Pod.objects.get(name="huge").waits_for) == "a node with cpu 99, memory 1Gi free"


def test_event_during_a_decision_is_not_missed() -> None:
    cluster = a_cluster()
    (running,) = placed(cluster, "n1", a_pod("running"))
    submitted(cluster, a_pod("leave"), a_pod("taint"))
    revision = Cluster.objects.get().revision
    kinds = {"leave": Event.POD_RELEASED, "taint": Event.NODE_TAINTS}
    results = [
        Result(pod, Verdict.NOT_NOW, "no", "hetsched", 1, waits_for=(WaitsFor("x", (kinds[pod.spec.name],), ""),))
        for pod in first_active_pods(cluster.pk, None, 500)
    ]
    assert running.workload is not None
    # after the state that the decision used, before the decision is written
    cancel(running.workload, actor=ALICE, reason="test")
    epoch = Cluster.objects.get().leader_epoch
    record(cluster.pk, results, revision=revision, epoch=epoch, snapshot="digest")
    assert queued() == ["leave"]


def test_timed_pods_are_requeued_after_a_minute_and_others_after_five() -> None:
    cluster = a_cluster()
    for name, event in (("timed", Event.TIME), ("event", Event.POD_RELEASED)):
        submitted(cluster, a_pod(name))
        refused(cluster, event)
    Pod.objects.update(tried_at=timezone.now() - unschedulable_pods.RETRY_AFTER - timedelta(seconds=1))
    requeue_timed_out_pods(cluster.pk)
    assert queued() == ["timed"]
    Pod.objects.update(tried_at=timezone.now() - unschedulable_pods.FLUSH_AFTER - timedelta(seconds=1))
    requeue_timed_out_pods(cluster.pk)
    assert dict(Pod.objects.values_list("name", "flushed")) == {"timed": False, "event": True}


@pytest.mark.parametrize(("event", "count"), [(Event.QUOTA_CHANGED, 1), (Event.POD_RELEASED, 0)])
def test_pod_placed_after_a_flush_is_counted(event: Event, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_counted", {})
    cluster = a_cluster()
    (running,) = placed(cluster, "n1", a_pod("running"))
    submitted(cluster, a_pod("p"))
    refused(cluster, event)
    Pod.objects.filter(name="p").update(tried_at=timezone.now() - unschedulable_pods.FLUSH_AFTER * 2, not_before=None)
    requeue_timed_out_pods(cluster.pk)
    assert running.workload is not None
    cancel(running.workload, actor=ALICE, reason="test")
    schedule.run(cluster.pk)
    assert Pod.objects.get(name="p").state == "placed"
    counters.flush()
    assert sum(sample.value for sample in counters.samples(metric_names.FLUSHED)) == count


def test_hints_are_stored_with_the_decision_and_renewed() -> None:
    cluster = a_cluster(a_node("n1").cpu(4))
    placed(cluster, "n1", a_pod("running").cpu(3))
    submitted(cluster, a_pod("p").cpu(2))
    schedule.run(cluster.pk)
    pod = Pod.objects.get(name="p")
    assert describe_waits(pod.waits_for) == "a node with cpu 2, memory 1Gi free"
    assert Decision.objects.get(pod=pod).waits_for == pod.waits_for
    before = pod.tried_at
    Pod.objects.filter(pk=pod.pk).update(queued=True, not_before=None)
    schedule.run(cluster.pk)
    pod.refresh_from_db()
    assert pod.tried_at is not None
    assert before is not None
    assert pod.tried_at > before
    assert Decision.objects.filter(pod=pod).count() == 1


@needs_sqlite
def test_cost_of_an_event_is_independent_of_the_running_pods() -> None:
    cluster = a_cluster()
    (pod,) = placed(cluster, "n1", a_pod("p-0"))

    def instructions() -> int:
        return statement_costs(lambda: requeue_pods(Cluster.objects.get(pk=cluster.pk), [Event.POD_RELEASED])).total()

    instructions()  # compiles the statement
    before = instructions()
    pod.refresh_from_db()
    for number in range(1, 200):
        pod.pk, pod.name, pod.uid = None, f"p-{number}", f"u-{number}"
        pod.save(force_insert=True)
    assert instructions() < 1.5 * before


# -- on a live cluster -------------------------------------------------------------------------------------------------


@pytest.fixture
def lease() -> Lease:
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    return lease


def seen(lease: Lease, **changes: Any) -> None:
    apply_changes(lease.cluster_id, Changes(**changes), epoch=lease.epoch)


def test_node_change_requeues_pods_with_that_kind_of_hint(lease: Lease) -> None:
    cluster, node = Cluster.objects.get(), a_node("n1")
    seen(lease, nodes=[node.build()])
    kinds = {
        "capacity": Event.NODE_CAPACITY, "labels": Event.NODE_LABELS, "use": Event.NODE_USE, "added": Event.NODE_ADDED,
        "released": Event.POD_RELEASED,
    }  # fmt: skip
    for name, event in kinds.items():
        spec = a_pod(name).build()
        seen(lease, pods=[ObservedPod("default", name, f"uid-{name}", scheduler_name="hetsched", spec=spec)])
        refused(cluster, event)
    assert queued() == []
    seen(lease, nodes=[node.labelled(disk="ssd").build()])
    assert queued() == ["labels"]
    seen(lease, nodes=[node.cpu(12).build()])
    assert queued() == ["capacity", "labels"]
    seen(lease, nodes=[a_node("n2").build()])
    assert queued() == ["added", "capacity", "labels"]
    other = a_pod("other").running_on("n1").build()
    there = ObservedPod("default", "other", "uid-other", scheduler_name="x", node_name="n1", spec=other)
    seen(lease, pods=[there])
    seen(lease, pods_gone=["default/other"], stopped={"uid-other"})
    assert queued() == ["added", "capacity", "labels", "released"]
    assert Node.objects.count() == 2
