"""A deleted pod is no proof that its containers ended: after a forced deletion its resources stay reserved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.objects.fields import is_dns_subdomain
from hetsched.contracts.message import HIDDEN, Message
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.actions import apply_changes, begin_binding, decisions, terminating_pods
from hetsched.placement.actions.terminating_pods import ANOTHER_MACHINE, release_orphaned_pods
from hetsched.placement.actions.transfer import export_cluster
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod, Reservation, ReservedCard
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.orphaned_pods import orphaned_pods
from hetsched.placement.scheduler_cache import cache_of
from hetsched.scheduling import worker_host
from hetsched.storage.snapshot_read import database_now
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster, placing, recorded
from tests.sqlite import needs_sqlite

pytestmark = pytest.mark.django_db
KEY, REMNANT = "default/p", "p~u1"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs and two GPUs, on which `p` runs with GPU 1."""
    from hetsched.placement import dispatch

    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    seen(made, nodes=[a_node("n1").gpus(2).build()])
    seen(made, pods=[an_observed_pod(a_pod("p").gpu())])
    recorded(made, placing(made, "n1", CardGrant(1, 1000, 0)))
    begin_binding(made.pk, Pod.objects.values_list("id", flat=True))
    seen(made, pods=[an_observed_pod(a_pod("p").gpu(), node_name="n1", phase="Running")])
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def an_observed_pod(pod: PodBuilder, *, uid: str = "u1", **more: Any) -> ObservedPod:
    spec = pod.having(uid=uid, node_name=more.get("node_name", "")).build()
    return ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec, **more)


def holders() -> list[str]:
    return list(Reservation.objects.filter(active=True).values_list("pod__name", flat=True))


def later(seconds: int = 121) -> None:
    Pod.objects.filter(origin=Pod.REMNANT).update(not_before=timezone.now() - timedelta(seconds=1))


def test_resources_stay_reserved_for_the_period_and_are_released(cluster: Cluster) -> None:
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert KEY in snapshot.state.placed_pods
    seen(cluster, pods_gone=[KEY])
    assert dict(Pod.objects.values_list("name", "state")) == {"p": "cancelled", REMNANT: "running"}
    assert holders() == [REMNANT]
    assert list(ReservedCard.objects.filter(active=True).values_list("card_index", flat=True)) == [1]
    assert Reservation.objects.get(active=True).allocation == Allocation(gpus=(CardGrant(1, 1000, 0),))
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert release_orphaned_pods(cluster.pk) == 0
    assert check_invariants() == []
    later()
    assert release_orphaned_pods(cluster.pk) == 1
    assert (holders(), Node.objects.get().pods) == ([], 0)
    assert check_invariants() == []


def test_many_reservations_are_released_in_several_transactions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminating_pods, "RELEASED_AT_ONCE", 2)
    names = ("a", "b")
    seen(cluster, pods=[an_observed_pod(a_pod(name), uid=name, node_name="n1", phase="Running") for name in names])
    seen(cluster, pods_gone=[KEY, "default/a", "default/b"])
    assert len(holders()) == 3
    later()
    assert [release_orphaned_pods(cluster.pk) for _ in range(3)] == [2, 1, 0]
    assert holders() == []


def test_pod_with_a_reported_end_is_released_at_once(cluster: Cluster) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("p").gpu(), node_name="n1", phase="Failed", ended="failed")])
    seen(cluster, pods_gone=[KEY])
    assert holders() == []


def test_pod_without_running_containers_is_released_immediately(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY], stopped={"u1"})
    assert holders() == []


def test_unbound_pod_is_released_immediately(cluster: Cluster) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("q"), uid="u3")])
    recorded(cluster, placing(cluster, "n1"))
    assert sorted(holders()) == ["p", "q"]
    seen(cluster, pods_gone=["default/q"])
    assert holders() == ["p"]


@pytest.mark.parametrize("phase", ["", "Pending"])
def test_possibly_started_pod_stays_reserved(cluster: Cluster, phase: str) -> None:
    # Its binding, its start and its deletion happened in one gap of the watch.
    seen(cluster, pods=[an_observed_pod(a_pod("q"), uid="u3")])
    recorded(cluster, placing(cluster, "n1"))
    begin_binding(cluster.pk, Pod.objects.filter(name="q").values_list("id", flat=True))
    if phase:
        seen(cluster, pods=[an_observed_pod(a_pod("q"), uid="u3", node_name="n1", phase=phase)])
    seen(cluster, pods_gone=["default/q"])
    assert sorted(holders()) == ["p", "q~u3"]


def test_recreated_pod_does_not_get_the_orphaned_resources(cluster: Cluster) -> None:
    # A StatefulSet creates the pod again before the batch is written: both arrive together.
    seen(cluster, pods=[an_observed_pod(a_pod("p").gpu(), uid="u2")])
    assert holders() == [REMNANT]
    assert sorted(Pod.objects.values_list("name", "state")) == [
        ("p", "cancelled"), ("p", "pending"), (REMNANT, "running"),
    ]  # fmt: skip
    assert check_invariants() == []


def test_period_restarts_while_the_node_is_not_ready(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    later()
    assert release_orphaned_pods(cluster.pk) == 0
    moment = Pod.objects.get(name=REMNANT).not_before
    assert moment is not None
    assert moment > timezone.now()
    assert release_orphaned_pods(cluster.pk) == 0  # not due, and the node is not ready yet
    restarted = Pod.objects.get(name=REMNANT).not_before
    assert restarted is not None
    assert restarted > moment
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert release_orphaned_pods(cluster.pk) == 0  # the kubelet has only just recovered
    later()
    assert release_orphaned_pods(cluster.pk) == 1


@pytest.mark.parametrize("node_first", [True, False])
def test_recreated_node_keeps_the_reservation(cluster: Cluster, node_first: bool) -> None:
    removed: list[dict[str, Any]] = [{"nodes_gone": ["n1"]}, {"pods_gone": [KEY]}]
    for change in removed if node_first else reversed(removed):
        seen(cluster, **change)
    later()
    assert release_orphaned_pods(cluster.pk) == 0
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert release_orphaned_pods(cluster.pk) == 0  # ready again, but not yet for long enough
    assert holders() == [REMNANT]
    assert list(ReservedCard.objects.filter(active=True).values_list("card_index", flat=True)) == [1]
    assert check_invariants() == []
    later()
    assert release_orphaned_pods(cluster.pk) == 1
    assert holders() == []


def test_reservation_on_a_lost_node_is_released(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY], nodes_gone=["n1"])
    assert release_orphaned_pods(cluster.pk) == 0
    Pod.objects.filter(origin=Pod.REMNANT).update(created_at=timezone.now() - ANOTHER_MACHINE - timedelta(seconds=1))
    assert release_orphaned_pods(cluster.pk) == 0  # the time that was restarted last has not passed
    later()
    assert release_orphaned_pods(cluster.pk) == 1
    assert holders() == []


def test_pods_of_other_schedulers_are_handled_the_same(cluster: Cluster) -> None:
    theirs = an_observed_pod(a_pod("theirs").cpu(2), uid="u9", node_name="n1", phase="Running")
    seen(cluster, pods=[theirs])
    seen(cluster, pods_gone=["default/theirs"])
    assert sorted(holders()) == ["p", "theirs~u9"]


def test_pod_with_the_placeholder_name_gets_no_resources(cluster: Cluster) -> None:
    # A user who may create pods in the namespace could release the resources if a pod could have this name.
    seen(cluster, pods_gone=[KEY])
    alike = [an_observed_pod(a_pod(name), uid=name) for name in ("p.u1", "p-u1")]
    seen(cluster, pods=alike)
    seen(cluster, pods_gone=["default/p.u1", "default/p-u1"])
    assert holders() == [REMNANT]
    assert not is_dns_subdomain(REMNANT)


def test_export_has_a_plain_pod_for_orphaned_resources(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    (pod,) = export_cluster(cluster).running
    assert (pod.name, pod.node_name, pod.allocation) == ("p.u1", "n1", Allocation(gpus=(CardGrant(1, 1000, 0),)))


def test_process_with_a_fast_clock_does_not_release_early(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods_gone=[KEY])
    wrong = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert release_orphaned_pods(cluster.pk) == 0
    assert holders() == [REMNANT]


def test_process_with_a_slow_clock_does_not_shorten_the_hold(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = timezone.now() - timedelta(minutes=10)
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: wrong)
        seen(cluster, pods_gone=[KEY])
    assert release_orphaned_pods(cluster.pk) == 0
    assert holders() == [REMNANT]


def test_reservation_lasts_for_the_grace_period_up_to_the_limit(cluster: Cluster, settings: Any) -> None:
    for grace, cap, held in ((5, 120, 5), (300, 120, 120)):
        settings.HETSCHED_FORCED_HOLD_SECONDS = cap
        name, uid = f"q{grace}", f"g{grace}"
        pod = a_pod(name).having(grace_seconds=grace)
        seen(cluster, pods=[an_observed_pod(pod, uid=uid, node_name="n1", phase="Running")])
        before = database_now()
        seen(cluster, pods_gone=[f"default/{name}"])
        until = Pod.objects.get(name=f"{name}~{uid}").not_before
        assert until is not None
        assert before + timedelta(seconds=held) <= until <= database_now() + timedelta(seconds=held)
        assert release_orphaned_pods(cluster.pk) == 0


def test_zero_grace_period_releases_at_once_on_ready_nodes_only(cluster: Cluster) -> None:
    pod = a_pod("q").having(grace_seconds=0)
    seen(cluster, pods=[an_observed_pod(pod, uid="u3", node_name="n1", phase="Running")])
    seen(cluster, pods_gone=["default/q"])
    assert holders() == ["p"]
    seen(cluster, pods=[an_observed_pod(pod, uid="u4", node_name="n1", phase="Running")])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    seen(cluster, pods_gone=["default/q"])
    assert sorted(holders()) == ["p", "q~u4"]
    assert release_orphaned_pods(cluster.pk) == 0
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert release_orphaned_pods(cluster.pk) == 1


def test_reservation_time_starts_when_the_node_is_ready(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is written once a second, and the node becomes ready 0.9 s after that."""
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    began, hold = database_now() + timedelta(minutes=5), timedelta(seconds=30)

    def released_at(seconds: float) -> int:
        monkeypatch.setattr(terminating_pods, "database_now", lambda: began + timedelta(seconds=seconds))
        return release_orphaned_pods(cluster.pk, rewrite_after=timedelta(seconds=1))

    assert [released_at(at) for at in (0.0, 0.5, 0.9)] == [0, 0, 0]
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert released_at(0.9 + hold.total_seconds() - 0.1) == 0
    assert released_at(1.9 + hold.total_seconds()) == 1


def test_reboot_of_the_node_ends_the_reservation(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    seen(cluster, rebooted={"another"})
    assert holders() == [REMNANT]
    seen(cluster, rebooted={"n1"})
    assert holders() == []
    assert check_invariants() == []


def test_pod_deleted_together_with_a_reboot_stays_reserved(cluster: Cluster) -> None:
    seen(cluster, rebooted={"n1"}, pods_gone=[KEY])  # it may have started after the reboot
    assert holders() == [REMNANT]


def refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, pod: PodBuilder) -> Decision:
    """Decide a pod that fits no node."""
    monkeypatch.setattr(worker_host.WorkerHost, "may_decide", lambda _: True)
    seen(cluster, pods=[an_observed_pod(pod, uid="u9")])
    worker_host.run(cluster.pk)
    return Decision.objects.latest("id")


def test_pending_pod_names_the_force_deleted_pod_and_the_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(cluster, pods_gone=[KEY])
    until = Pod.objects.get(name=REMNANT).not_before
    assert until is not None
    text = f"held by force-deleted pod default/p until {until:%Y-%m-%dT%H:%M:%SZ}"
    decision = refused(cluster, monkeypatch, a_pod("waits").gpu(2))
    assert (decision.verdict, decision.reasons[-1].code) == ("not-now", "HeldByForceDeletedPod")
    assert decision.reasons[-1].message == text
    assert decision.summary.endswith(text)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()


def test_pod_with_another_reason_does_not_name_the_force_deleted_pod(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_preemptor_waits_for_its_force_deleted_victim(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    urgent = a_pod("urgent").gpu(2).priority(1000)
    first = refused(cluster, monkeypatch, urgent)
    assert [eviction.pod for eviction in first.evictions] == [KEY]
    seen(cluster, pods_gone=[KEY])
    worker_host.run(cluster.pk)
    waits = Decision.objects.latest("id")
    assert waits.nominated_node == "n1"  # no other pod is evicted
    Pod.objects.filter(name="urgent").update(queued=False, not_before=timezone.now() + timedelta(minutes=1))
    later()
    assert release_orphaned_pods(cluster.pk) == 1
    worker_host.run(cluster.pk)
    assert Pod.objects.get(name="urgent").state == "placed"
    assert check_invariants() == []


def test_nominated_pod_names_its_force_deleted_victim(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "NEWS_AFTER", timedelta(0))
    first = refused(cluster, monkeypatch, a_pod("urgent").gpu(2).priority(1000))
    seen(cluster, pods_gone=[KEY])
    Pod.objects.filter(name="urgent").update(queued=True, not_before=None)
    worker_host.run(cluster.pk)
    second = Decision.objects.latest("id")
    assert (second.pk > first.pk, second.nominated_node) == (True, "n1")
    assert "after the deletion of default/p (priority 0); held by force-deleted pod default/p until " in second.summary
    assert isinstance(second.summary, Message)
    assert second.summary.redacted(lambda namespace: False).startswith(
        f"{HIDDEN} waits; held by force-deleted pod {HIDDEN} until "
    )
    rows = Decision.objects.count()
    Pod.objects.filter(name="urgent").update(queued=True, not_before=None)
    worker_host.run(cluster.pk)
    assert Decision.objects.count() == rows
    assert check_invariants() == []


@needs_sqlite
def test_orphaned_pods_are_found_by_their_own_index(cluster: Cluster) -> None:
    assert "placement_pod_orphaned" in orphaned_pods(cluster.pk).explain()
