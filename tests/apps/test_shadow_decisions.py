"""The informer records another scheduler's bindings; a later comparison uses the state from before each one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes, shadow_decisions
from hetsched.placement.models import Decision, Pod, Reservation, Shadow
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.shadow_report import summary, worst_choices
from hetsched.scheduling.leases import Lease, following
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.builtins import builtin_policies

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_decisions, "_pasts", {})


@pytest.fixture
def lease() -> Lease:
    """Run an informer for a cluster of two nodes in shadow mode; its policy packs, so that scores differ."""
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, policy_name="binpack", actor=SYSTEM)
    Connection.objects.create(cluster=cluster, shadow_of="default-scheduler")
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    take(lease, nodes=[a_node("n1").cpu(8), a_node("n2").cpu(8)])
    return lease


def take(lease: Lease, nodes: list[NodeBuilder] | None = None, **changes: Any) -> None:
    apply_changes(lease.cluster_id, Changes(nodes=[n.build() for n in nodes or ()], **changes), epoch=lease.epoch)


def on(node: str, pod: PodBuilder, scheduler: str = "default-scheduler") -> ObservedPod:
    spec = pod.running_on(node).build()
    spec = msgspec.structs.replace(spec, uid=f"uid-{spec.name}")
    return ObservedPod("default", spec.name, spec.uid, scheduler_name=scheduler, node_name=node, spec=spec)


def bound(lease: Lease, *pods: ObservedPod) -> None:
    take(lease, pods=list(pods), bound={pod.key for pod in pods})


def judge(cluster_id: int) -> int:
    """Compare the waiting pods; the time limit of one call is for a busy worker."""
    return shadow_decisions.compare_pods(cluster_id, seconds=60)


def judged(name: str) -> Shadow:
    return Shadow.objects.get(pod_name=name)


def test_each_is_compared_on_the_state_after_the_previous_ones(lease: Lease) -> None:
    # All are on n1, n2 is empty: for bin packing n1 is first as good as n2, and better from then on.
    bound(lease, on("n1", a_pod("a").cpu(2)), on("n1", a_pod("b").cpu(2)), on("n2", a_pod("c").cpu(2)))
    assert judge(lease.cluster_id) == 3
    assert [judged(name).judgement for name in "abc"] == ["same", "same", "worse"]
    c = judged("c")
    assert (c.chosen, c.node_name, c.rank, c.feasible) == ("n1", "n2", 2, 2)
    assert c.regret is not None
    assert c.regret > 0
    assert c.our_score is not None
    assert c.their_score is not None
    assert round(c.our_score - c.their_score, 6) == c.regret
    assert "n1" in c.summary


@pytest.mark.django_db(transaction=True)
def test_recorded_binding_starts_the_comparison_which_is_counted(
    lease: Lease, woken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_counted", {})
    bound(lease, on("n1", a_pod("a").cpu(2)))
    assert (dispatch.SHADOW, [lease.cluster_id]) in woken
    assert judge(lease.cluster_id) == 1
    counters.flush()
    assert [(sample.labels, sample.value) for sample in counters.samples(metric_names.SHADOWS)] == [
        (("live", "same"), 1)
    ]


def test_later_changes_do_not_alter_the_best_node(lease: Lease) -> None:
    bound(lease, on("n2", a_pod("a").cpu(1)))
    bound(lease, on("n1", a_pod("b").cpu(6)))
    take(lease, pods_gone=["default/b"], stopped={"uid-b"})
    bound(lease, on("n1", a_pod("c").cpu(1)))
    assert judge(lease.cluster_id) == 3
    # a: both are empty, and we choose the first by name; b, c: n2 is fuller, whatever b did in between
    assert [(judged(name).judgement, judged(name).chosen) for name in "abc"] == [
        ("equal", "n1"), ("worse", "n2"), ("worse", "n2"),
    ]  # fmt: skip


def test_node_that_our_filters_reject_has_a_reason(lease: Lease) -> None:
    bound(lease, on("n1", a_pod("big").cpu(7)), on("n1", a_pod("more").cpu(4)))
    judge(lease.cluster_id)
    more = judged("more")
    assert (more.judgement, more.regret, more.chosen) == ("infeasible", None, "n2")
    assert more.refusal is not None
    assert more.refusal.code == "InsufficientResource"


def test_only_pods_seen_pending_are_compared(lease: Lease) -> None:
    take(lease, pods=[on("n1", a_pod("before"))])  # it was there before the informer started
    bound(lease, on("n1", a_pod("others"), scheduler="volcano"))
    bound(lease, on("n1", a_pod("theirs")))
    assert list(Shadow.objects.values_list("pod_name", flat=True)) == ["theirs"]
    assert Reservation.objects.filter(active=True).count() == 3  # all are charged


def test_only_shadow_rows_are_written(lease: Lease) -> None:
    bound(lease, on("n1", a_pod("a")), on("n2", a_pod("b")))
    before = list(Pod.objects.values()), list(Reservation.objects.values()), list(Cluster.objects.values())
    judge(lease.cluster_id)
    assert before == (list(Pod.objects.values()), list(Reservation.objects.values()), list(Cluster.objects.values()))
    assert not Decision.objects.exists()
    assert check_invariants() == []
    assert judge(lease.cluster_id) == 0


def test_excess_and_late_comparisons_are_dropped_and_counted(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(shadow_decisions, "MOST_DUE", 2)
    bound(lease, *(on("n1", a_pod(f"p{number}")) for number in range(5)))
    assert Shadow.objects.count() == 2
    assert Connection.objects.get().shadow_dropped == 3
    names = [f"p{number}" for number in range(5)]
    uids = {f"uid-{name}" for name in names}
    take(lease, nodes_gone=["n1"], pods_gone=[f"default/{name}" for name in names], stopped=uids)
    judge(lease.cluster_id)
    assert Shadow.objects.count() == 0
    assert Connection.objects.get().shadow_dropped == 5


def test_engine_error_drops_only_its_pod(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shadow_decisions.compare

    def failing(scheduler: Any, pod: Any, node: str, **more: Any) -> Any:
        if pod.name == "poison":
            raise RuntimeError("no")
        return real(scheduler, pod, node, **more)

    monkeypatch.setattr(shadow_decisions, "compare", failing)
    bound(lease, on("n1", a_pod("poison")))
    bound(lease, on("n1", a_pod("after")))
    judge(lease.cluster_id)
    judge(lease.cluster_id)
    assert [row.pod_name for row in Shadow.objects.exclude(judged_at=None)] == ["after"]
    assert Connection.objects.get().shadow_dropped == 1


def test_summary_counts_sum_up(lease: Lease) -> None:
    bound(lease, on("n1", a_pod("a").cpu(2)), on("n1", a_pod("b").cpu(2)), on("n2", a_pod("c").cpu(2)))
    bound(lease, on("n1", a_pod("d").cpu(7)))
    judge(lease.cluster_id)
    cluster = Cluster.objects.get(pk=lease.cluster_id)
    found = summary(cluster, Shadow.objects.all())
    assert (found.judged, found.same, found.equal, found.worse, found.infeasible) == (4, 2, 0, 1, 1)
    assert (found.agreement, found.as_good, found.choices) == (0.5, 0.5, 3)
    # d fits no node: n1 has 4 of 8 CPUs left, n2 6
    assert [(one.code, one.pods) for one in found.refused_for] == [("InsufficientResource", 1)]
    assert sum(bucket.pods for bucket in found.regret) == 3
    assert found.regret[0].pods == 2
    assert [row.pod_name for row in worst_choices(Shadow.objects.all())] == ["d", "c"]


def test_pod_changed_in_place_keeps_its_resources_for_the_comparison(lease: Lease) -> None:
    bound(lease, on("n1", a_pod("a").cpu(1)))
    take(lease, pods=[on("n1", a_pod("a").cpu(2)), on("n2", a_pod("b").cpu(4))], bound={"default/b"})
    assert judge(lease.cluster_id) == 2
    assert (judged("b").judgement, judged("b").chosen) == ("worse", "n1")  # n1 is fuller
