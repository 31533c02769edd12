"""A pod that is no more is no proof that its containers ended: its room, CPUs and cards are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.objects.fields import is_dns_subdomain
from hetsched.contracts.allocation import Allocation, CardGrant
from hetsched.contracts.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import begin_binding, follow
from hetsched.placement.actions.terminating_pods import ANOTHER_MACHINE, end_remnants
from hetsched.placement.actions.transfer import export_cluster
from hetsched.placement.models import Pod, Reservation, ReservedCard
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.snapshot import load_state, warm
from hetsched.policies.actions import ensure_builtins
from tests.builders import PodBuilder, a_node, a_pod
from tests.scenes import placing, recorded

pytestmark = pytest.mark.django_db
KEY, REMNANT = "default/p", "p~u1"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs and two cards, on which `p` runs with card 1."""
    from hetsched.placement import dispatch

    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    ensure_builtins()
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


def test_what_it_held_is_kept_for_a_while_and_then_free(cluster: Cluster) -> None:
    with warm(cluster.pk).held() as kept:
        assert KEY in kept.state.bookings
    seen(cluster, pods_gone=[KEY])
    assert dict(Pod.objects.values_list("name", "state")) == {"p": "cancelled", REMNANT: "running"}
    assert holders() == [REMNANT]
    assert list(ReservedCard.objects.filter(active=True).values_list("card_index", flat=True)) == [1]
    assert Reservation.objects.get(active=True).allocation == Allocation(gpus=(CardGrant(1, 1000, 0),))
    with warm(cluster.pk).held() as kept:
        assert kept.state.digest() == load_state(cluster.pk).state.digest()
    assert end_remnants(cluster.pk) == 0
    assert check_invariants() == []
    later()
    assert end_remnants(cluster.pk) == 1
    assert (holders(), Node.objects.get().pods) == ([], 0)
    assert check_invariants() == []


def test_a_pod_whose_end_was_told_is_free_at_once(cluster: Cluster) -> None:
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
    # Its binding, its start and its deletion all fell into one gap of the watch.
    seen(cluster, pods=[a_seen(a_pod("q"), uid="u3")])
    recorded(cluster, placing(cluster, "n1"))
    begin_binding(cluster.pk, Pod.objects.filter(name="q").values_list("id", flat=True))
    if phase:
        seen(cluster, pods=[a_seen(a_pod("q"), uid="u3", node_name="n1", phase=phase)])
    seen(cluster, pods_gone=["default/q"])
    assert sorted(holders()) == ["p", "q~u3"]


def test_one_of_its_name_that_comes_at_once_gets_nothing_of_it(cluster: Cluster) -> None:
    # A StatefulSet makes the pod again before the batch is written: both come as one.
    seen(cluster, pods=[a_seen(a_pod("p").gpu(), uid="u2")])
    assert holders() == [REMNANT]
    assert sorted(Pod.objects.values_list("name", "state")) == [
        ("p", "cancelled"), ("p", "pending"), (REMNANT, "running"),
    ]  # fmt: skip
    assert check_invariants() == []


def test_where_the_node_is_not_ready_the_time_begins_anew(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY])
    seen(cluster, nodes=[a_node("n1").gpus(2).not_ready().build()])
    later()
    assert end_remnants(cluster.pk) == 0
    moment = Pod.objects.get(name=REMNANT).not_before
    assert moment is not None
    assert moment > timezone.now()
    assert end_remnants(cluster.pk) == 0  # not due, and the node is not ready still
    anew = Pod.objects.get(name=REMNANT).not_before
    assert anew is not None
    assert anew > moment
    seen(cluster, nodes=[a_node("n1").gpus(2).build()])
    assert end_remnants(cluster.pk) == 0  # the kubelet has only just come back
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
    # Whoever may create pods in the namespace could free what it holds, if a pod could have its name.
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


def test_a_process_whose_clock_is_ahead_lets_nothing_go_early(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(cluster, pods_gone=[KEY])
    wrong = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert end_remnants(cluster.pk) == 0
    assert holders() == [REMNANT]


def test_what_a_process_notes_whose_clock_is_behind_is_kept_as_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = timezone.now() - timedelta(minutes=10)
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: wrong)
        seen(cluster, pods_gone=[KEY])
    assert end_remnants(cluster.pk) == 0
    assert holders() == [REMNANT]
