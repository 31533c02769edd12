"""A deleted pod is no proof that its containers ended: after a forced deletion its resources stay reserved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from hetsched.adapters.objects.fields import is_dns_subdomain
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.pod_sentences import HIDDEN, PENDING, redacted
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import begin_binding, decisions, follow, terminating_pods
from hetsched.placement.actions.terminating_pods import ANOTHER_MACHINE, end_remnants
from hetsched.placement.actions.transfer import export_cluster
from hetsched.placement.models import Decision, Pod, Reservation, ReservedCard
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of, load_state
from hetsched.scheduling import worker_host
from hetsched.storage.snapshot_read import shared_now
from tests.builders import PodBuilder, a_node, a_pod
from tests.builtins import builtin_policies
from tests.scenes import placing, recorded

pytestmark = pytest.mark.django_db
KEY, REMNANT = "default/p", "p~u1"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs and two GPUs, on which `p` runs with GPU 1."""
    from hetsched.placement import dispatch

    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    seen(made, nodes=[a_node("n1").gpus(2).build()])
    seen(made, pods=[a_seen(a_pod("p").gpu())])
    recorded(made, placing(made, "n1", CardGrant(1, 1000, 0)))
    begin_binding(made.pk, Pod.objects.values_list("id", flat=True))
    seen(made, pods=[a_seen(a_pod("p").gpu(), node_name="n1", phase="Running")])
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    follow(cluster.pk, Changes(**changes), epoch=1)


def a_seen(pod: PodBuilder, *, uid: str = "u1", **more: Any) -> ObservedPod:
    spec = pod.having(uid=uid, node_name=more.get("node_name", "")).build()
    return ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec, **more)


def holders() -> list[str]:
    return list(Reservation.objects.filter(active=True).values_list("pod__name", flat=True))


def later(seconds: int = 121) -> None:
    Pod.objects.filter(origin=Pod.REMNANT).update(not_before=timezone.now() - timedelta(seconds=1))


def test_resources_stay_reserved_for_the_period_and_are_released(cluster: Cluster) -> None:
    with cache_of(cluster.pk).held() as kept:
        assert KEY in kept.state.bookings
    seen(cluster, pods_gone=[KEY])
    assert dict(Pod.objects.values_list("name", "state")) == {"p": "cancelled", REMNANT: "running"}
    assert holders() == [REMNANT]
    assert list(ReservedCard.objects.filter(active=True).values_list("card_index", flat=True)) == [1]
    assert Reservation.objects.get(active=True).allocation == Allocation(gpus=(CardGrant(1, 1000, 0),))
    with cache_of(cluster.pk).held() as kept:
        assert kept.state.digest() == load_state(cluster.pk).state.digest()
    assert end_remnants(cluster.pk) == 0
    assert check_invariants() == []
    later()
    assert end_remnants(cluster.pk) == 1
    assert (holders(), Node.objects.get().pods) == ([], 0)
    assert check_invariants() == []


def test_pod_with_a_reported_end_is_released_at_once(cluster: Cluster) -> None:
    seen(cluster, pods=[a_seen(a_pod("p").gpu(), node_name="n1", phase="Failed", ended="failed")])
    seen(cluster, pods_gone=[KEY])
    assert holders() == []


def test_a_pod_of_which_nothing_ran_at_the_last_is_free_at_once(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY], stopped={"u1"})
    assert holders() == []


def test_a_pod_that_was_never_sent_to_its_node_is_free_at_once(cluster: Cluster) -> None:
    seen(cluster, pods=[a_seen(a_pod("q"), uid="u3")])
    recorded(cluster, placing(cluster, "n1"))
    assert sorted(holders()) == ["p", "q"]
    seen(cluster, pods_gone=["default/q"])
    assert holders() == ["p"]


@pytest.mark.parametrize("phase", ["", "Pending"])
def test_a_pod_that_may_have_begun_to_run_is_kept(cluster: Cluster, phase: str) -> None:
    # Its binding, its start and its deletion happened in one gap of the watch.
    seen(cluster, pods=[a_seen(a_pod("q"), uid="u3")])
    recorded(cluster, placing(cluster, "n1"))
    begin_binding(cluster.pk, Pod.objects.filter(name="q").values_list("id", flat=True))
    if phase:
        seen(cluster, pods=[a_seen(a_pod("q"), uid="u3", node_name="n1", phase=phase)])
    seen(cluster, pods_gone=["default/q"])
    assert sorted(holders()) == ["p", "q~u3"]


def test_one_of_its_name_that_comes_at_once_gets_nothing_of_it(cluster: Cluster) -> None:
    # A StatefulSet creates the pod again before the batch is written: both arrive together.
    seen(cluster, pods=[a_seen(a_pod("p").gpu(), uid="u2")])
    assert holders() == [REMNANT]
    assert sorted(Pod.objects.values_list("name", "state")) == [
        ("p", "cancelled"), ("p", "pending"), (REMNANT, "running"),
    ]  # fmt: skip
    assert check_invariants() == []


def test_period_restarts_while_the_node_is_not_ready(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    later()
    assert end_remnants(cluster.pk) == 0
    moment = Pod.objects.get(name=REMNANT).not_before
    assert moment is not None
    assert moment > timezone.now()
    assert end_remnants(cluster.pk) == 0  # not due, and the node is not ready yet
    restarted = Pod.objects.get(name=REMNANT).not_before
    assert restarted is not None
    assert restarted > moment
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert end_remnants(cluster.pk) == 0  # the kubelet has only just recovered
    later()
    assert end_remnants(cluster.pk) == 1


@pytest.mark.parametrize("node_first", [True, False])
def test_a_node_that_comes_back_under_its_name_has_it_kept(cluster: Cluster, node_first: bool) -> None:
    gone: list[dict[str, Any]] = [{"nodes_gone": ["n1"]}, {"pods_gone": [KEY]}]
    for change in gone if node_first else reversed(gone):
        seen(cluster, **change)
    later()
    assert end_remnants(cluster.pk) == 0
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert end_remnants(cluster.pk) == 0  # ready again, but not yet for long enough
    assert holders() == [REMNANT]
    assert list(ReservedCard.objects.filter(active=True).values_list("card_index", flat=True)) == [1]
    assert check_invariants() == []
    later()
    assert end_remnants(cluster.pk) == 1
    assert holders() == []


def test_a_node_that_does_not_come_back_is_given_up(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY], nodes_gone=["n1"])
    assert end_remnants(cluster.pk) == 0
    Pod.objects.filter(origin=Pod.REMNANT).update(created_at=timezone.now() - ANOTHER_MACHINE - timedelta(seconds=1))
    assert end_remnants(cluster.pk) == 1
    assert holders() == []


def test_pods_of_other_schedulers_leave_the_same(cluster: Cluster) -> None:
    theirs = a_seen(a_pod("theirs").cpu(2), uid="u9", node_name="n1", phase="Running")
    seen(cluster, pods=[theirs])
    seen(cluster, pods_gone=["default/theirs"])
    assert sorted(holders()) == ["p", "theirs~u9"]


def test_a_pod_that_is_named_like_it_gets_nothing_of_it(cluster: Cluster) -> None:
    # A user who may create pods in the namespace could release the resources if a pod could have this name.
    seen(cluster, pods_gone=[KEY])
    alike = [a_seen(a_pod(name), uid=name) for name in ("p.u1", "p-u1")]
    seen(cluster, pods=alike)
    seen(cluster, pods_gone=["default/p.u1", "default/p-u1"])
    assert holders() == [REMNANT]
    assert not is_dns_subdomain(REMNANT)


def test_a_copy_of_the_cluster_has_its_room_taken_by_a_plain_pod(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    (pod,) = export_cluster(cluster).running
    assert (pod.name, pod.node_name, pod.allocation) == ("p.u1", "n1", Allocation(gpus=(CardGrant(1, 1000, 0),)))


def test_fast_clock_of_a_process_releases_nothing_early(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods_gone=[KEY])
    wrong = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert end_remnants(cluster.pk) == 0
    assert holders() == [REMNANT]


def test_note_of_a_process_with_a_slow_clock_is_kept_as_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = timezone.now() - timedelta(minutes=10)
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: wrong)
        seen(cluster, pods_gone=[KEY])
    assert end_remnants(cluster.pk) == 0
    assert holders() == [REMNANT]


def test_the_hold_lasts_as_long_as_the_pods_own_grace_period_and_the_cap(cluster: Cluster, settings: Any) -> None:
    for grace, cap, held in ((5, 120, 5), (300, 120, 120)):
        settings.HETSCHED_FORCED_HOLD_SECONDS = cap
        name, uid = f"q{grace}", f"g{grace}"
        pod = a_pod(name).having(grace_seconds=grace)
        seen(cluster, pods=[a_seen(pod, uid=uid, node_name="n1", phase="Running")])
        before = shared_now()
        seen(cluster, pods_gone=[f"default/{name}"])
        until = Pod.objects.get(name=f"{name}~{uid}").not_before
        assert until is not None
        assert before + timedelta(seconds=held) <= until <= shared_now() + timedelta(seconds=held)
        assert end_remnants(cluster.pk) == 0


def test_a_pod_without_a_grace_period_is_free_at_once_on_a_ready_node_alone(cluster: Cluster) -> None:
    pod = a_pod("q").having(grace_seconds=0)
    seen(cluster, pods=[a_seen(pod, uid="u3", node_name="n1", phase="Running")])
    seen(cluster, pods_gone=["default/q"])
    assert holders() == ["p"]
    seen(cluster, pods=[a_seen(pod, uid="u4", node_name="n1", phase="Running")])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    seen(cluster, pods_gone=["default/q"])
    assert sorted(holders()) == ["p", "q~u4"]
    assert end_remnants(cluster.pk) == 0
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert end_remnants(cluster.pk) == 1


def test_the_hold_counts_from_the_moment_in_which_the_node_is_ready(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is written once a second, and the node becomes ready 0.9 s after that."""
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    began, hold = shared_now() + timedelta(minutes=5), timedelta(seconds=30)

    def released_at(seconds: float) -> int:
        monkeypatch.setattr(terminating_pods, "shared_now", lambda: began + timedelta(seconds=seconds))
        return end_remnants(cluster.pk, rewrite_after=timedelta(seconds=1))

    assert [released_at(at) for at in (0.0, 0.5, 0.9)] == [0, 0, 0]
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert released_at(0.9 + hold.total_seconds() - 0.1) == 0
    assert released_at(1.9 + hold.total_seconds()) == 1


def test_another_boot_of_its_node_is_proof_of_its_end(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    seen(cluster, rebooted={"another"})
    assert holders() == [REMNANT]
    seen(cluster, rebooted={"n1"})
    assert holders() == []
    assert check_invariants() == []


def test_a_pod_that_goes_with_the_news_of_another_boot_is_kept(cluster: Cluster) -> None:
    seen(cluster, rebooted={"n1"}, pods_gone=[KEY])  # it may have started after the reboot
    assert holders() == [REMNANT]


def refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, pod: PodBuilder) -> Decision:
    """Decide a pod that fits no node."""
    monkeypatch.setattr(worker_host.WorkerHost, "may_decide", lambda _: True)
    seen(cluster, pods=[a_seen(pod, uid="u9")])
    worker_host.run(cluster.pk)
    return Decision.objects.latest("id")


def test_pod_pending_for_it_has_its_name_and_the_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods_gone=[KEY])
    until = Pod.objects.get(name=REMNANT).not_before
    assert until is not None
    text = f"held by force-deleted pod default/p until {until:%Y-%m-%dT%H:%M:%SZ}"
    decision = refused(cluster, monkeypatch, a_pod("waits").gpu(2))
    assert (decision.verdict, decision.reasons[-1].code) == ("not-now", "HeldByForceDeletedPod")
    assert decision.reasons[-1].message == text
    assert decision.summary.endswith(text)
    with cache_of(cluster.pk).held() as kept:
        assert kept.state.digest() == load_state(cluster.pk).state.digest()


def test_pod_with_another_reason_does_not_name_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods_gone=[KEY])
    for pod in (a_pod("large").cpu(9), a_pod("away").on_nodes_with(disk="ssd")):
        decision = refused(cluster, monkeypatch, pod)
        assert "HeldByForceDeletedPod" not in {reason.code for reason in decision.reasons}


def test_name_is_hidden_from_pods_of_other_namespaces(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods_gone=[KEY])
    decision = refused(cluster, monkeypatch, a_pod("waits", "theirs").gpu(2))
    assert "held by a force-deleted pod of another namespace until" in decision.summary
    assert "default/p" not in decision.summary  # the pod's own condition repeats this text
    assert "default/p" in decision.reasons[-1].message


def test_a_preemptor_waits_for_its_force_deleted_victim_and_goes_as_soon_as_that_is_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    urgent = a_pod("urgent").gpu(2).priority(1000)
    first = refused(cluster, monkeypatch, urgent)
    assert [one.pod for one in first.evictions] == [KEY]
    seen(cluster, pods_gone=[KEY])
    worker_host.run(cluster.pk)
    waits = Decision.objects.latest("id")
    assert waits.nominated_node == "n1"  # no other pod is evicted
    Pod.objects.filter(name="urgent").update(queued=False, not_before=timezone.now() + timedelta(minutes=1))
    later()
    assert end_remnants(cluster.pk) == 1
    worker_host.run(cluster.pk)
    assert Pod.objects.get(name="urgent").state == "placed"
    assert check_invariants() == []


def test_a_nominated_pod_says_that_its_victim_was_deleted_by_force(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "NEWS_AFTER", timedelta(0))
    first = refused(cluster, monkeypatch, a_pod("urgent").gpu(2).priority(1000))
    seen(cluster, pods_gone=[KEY])
    Pod.objects.filter(name="urgent").update(queued=True, not_before=None)
    worker_host.run(cluster.pk)
    second = Decision.objects.latest("id")
    assert (second.pk > first.pk, second.nominated_node) == (True, "n1")
    assert "once default/p (priority 0) left; held by force-deleted pod default/p until " in second.summary
    assert redacted(second.summary, lambda namespace: False, PENDING).startswith(
        f"default/urgent waits: it gets its place on n1 once {HIDDEN} (priority 0) left; held by "
    )
    rows = Decision.objects.count()
    Pod.objects.filter(name="urgent").update(queued=True, not_before=None)
    worker_host.run(cluster.pk)
    assert Decision.objects.count() == rows
    assert check_invariants() == []


def test_remnants_are_found_by_their_own_index(cluster: Cluster) -> None:
    from hetsched.placement.queries.orphaned_pods import REMNANTS

    assert REMNANTS(cluster=cluster.pk) == []
    if connection.vendor == "sqlite":
        (written,) = REMNANTS._written.values()
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {written.sql}", [cluster.pk])
            plan = " ".join(str(row[-1]) for row in cursor.fetchall())
        assert "placement_pod_remnant" in plan
