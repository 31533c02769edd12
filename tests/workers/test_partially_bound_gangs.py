"""A gang with one rejected binding: all members are bound in the end, or none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingResult
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.objects.workload import GangMember
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import advance
from hetsched.placement.actions import apply_changes, begin_binding, gangs, progress
from hetsched.placement.actions.evictions import claim_evictions, displace
from hetsched.placement.actions.gangs import settle_incomplete_gangs
from hetsched.placement.models import Eviction, Nomination, PartiallyBoundGang, Pod, Preemption, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster, placing, recorded

pytestmark = pytest.mark.django_db
NO = "a webhook says no"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs; no test calls its API server."""
    from hetsched.placement import dispatch

    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    seen(made, nodes=[a_node("n1").build()])
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def a_member(number: int, least: int, *, controller: str = "Job/train") -> PodBuilder:
    return a_pod(f"g-{number}").gang("g", least).having(controller=controller, uid=f"u{number}")


def placed(cluster: Cluster, *pods: PodBuilder) -> dict[str, int]:
    """Add and place these pods; return their IDs by name."""
    specs = [pod.build() for pod in pods]
    found = [ObservedPod(s.namespace, s.name, s.uid, scheduler_name="hetsched", spec=s) for s in specs]
    seen(cluster, pods=found)
    recorded(cluster, placing(cluster, "n1"))
    return dict(Pod.objects.values_list("name", "id"))


def record_results(cluster: Cluster, ids: dict[str, int], **results: BindingResult) -> None:
    """Begin the bindings of these pods and record these results."""
    named = {name.replace("_", "-"): result for name, result in results.items()}
    begin_binding(cluster.pk, [ids[name] for name in named])
    binding_cycle.record_results(
        cluster,
        [
            BindingOutcome(ids[name], result, NO if result is BindingResult.REFUSED else "")
            for name, result in named.items()
        ],
    )


def states() -> dict[str, str]:
    return dict(Pod.objects.values_list("name", "state"))


def test_unbound_members_are_requeued_with_the_reason(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 3) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED)
    assert states() == {"g-0": "bound", "g-1": "pending", "g-2": "pending"}
    assert Pod.objects.get(name="g-2").message == f"gang default/g: g-1 could not be bound: {NO}"
    assert Pod.objects.filter(queued=True).count() == 2
    assert Reservation.objects.filter(active=True).count() == 1
    assert PartiallyBoundGang.objects.get().least == 3
    assert check_invariants() == []


def grown(pod: PodBuilder, cpu: int) -> ObservedPod:
    spec = pod.cpu(cpu).build()
    return ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec)


def test_member_resized_before_its_binding_requeues_the_gang(cluster: Cluster) -> None:
    """Regression: the displaced member went back alone, and its sibling was bound to wait for it."""
    placed(cluster, *(a_member(number, 2).cpu(4) for number in range(2)))
    seen(cluster, pods=[grown(a_member(0, 2), 5)])
    assert states() == {"g-0": "pending", "g-1": "pending"}
    filled = "n1 was filled by default/g-0 before the pod was bound"
    assert set(Pod.objects.values_list("message", flat=True)) == {
        filled, f"gang default/g: g-1 could not be bound: {filled}"
    }  # fmt: skip
    assert not Reservation.objects.filter(active=True).exists()
    assert Pod.objects.get(name="g-0").spec.shape.request("cpu") == 5000
    assert check_invariants() == []


def test_members_displaced_from_two_nodes_requeue_the_gang(cluster: Cluster) -> None:
    seen(cluster, nodes=[a_node("n2").build()])
    specs = [a_member(number, 3).cpu(4).build() for number in range(3)]
    seen(cluster, pods=[ObservedPod("default", s.name, s.uid, scheduler_name="hetsched", spec=s) for s in specs])
    results = placing(cluster, "n1")
    n2 = Node.objects.get(name="n2")
    recorded(cluster, [msgspec.structs.replace(results[0], node_id=n2.pk, node_name="n2"), *results[1:]])
    theirs = [a_pod(f"theirs-{node}").cpu(6).having(uid=f"t-{node}", node_name=node).build() for node in ("n1", "n2")]
    there = {"scheduler_name": "other", "phase": "Running"}
    seen(cluster, pods=[ObservedPod("default", s.name, s.uid, node_name=s.node_name, spec=s, **there) for s in theirs])
    assert {state for name, state in states().items() if name.startswith("g-")} == {"pending"}
    assert check_invariants() == []


def test_member_displaced_by_another_scheduler_requeues_the_gang(cluster: Cluster) -> None:
    placed(cluster, *(a_member(number, 2).cpu(3) for number in range(2)))
    spec = a_pod("theirs").cpu(4).having(uid="t", node_name="n1").build()
    theirs = ObservedPod("default", "theirs", "t", scheduler_name="other", node_name="n1", phase="Running", spec=spec)
    seen(cluster, pods=[theirs])
    assert states() == {"g-0": "pending", "g-1": "pending", "theirs": "running"}
    assert check_invariants() == []


def test_member_deleted_before_its_binding_requeues_the_gang(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 3) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.BOUND)
    seen(cluster, pods_gone=["default/g-1"])
    assert states() == {"g-0": "bound", "g-1": "cancelled", "g-2": "pending"}
    assert PartiallyBoundGang.objects.get().least == 3
    assert check_invariants() == []


def test_deleted_running_member_keeps_the_gang(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 2) for number in range(2)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.BOUND)
    seen(cluster, pods_gone=["default/g-1"], stopped={"u1"})
    assert states() == {"g-0": "bound", "g-1": "cancelled"}
    assert not PartiallyBoundGang.objects.exists()


def evicted(cluster: Cluster, *names: str) -> None:
    """Request the eviction of these pods and process it as the eviction worker does."""
    for name in names:
        Eviction.objects.create(cluster=cluster, victim=Pod.objects.get(name=name), reason="Moved by alice: balance")
    for (eviction,) in claim_evictions(cluster.pk, 10):
        displace(cluster.pk, eviction)


def test_evicted_placed_member_requeues_the_gang(cluster: Cluster) -> None:
    """Regression: of a gang of two one member went back, and the other was bound to wait for it."""
    placed(cluster, *(a_member(number, 2) for number in range(2)))
    evicted(cluster, "g-0")
    assert states() == {"g-0": "pending", "g-1": "pending"}
    assert Eviction.objects.get().state == Eviction.ASKED
    assert Pod.objects.get(name="g-1").message == (
        "gang default/g: g-0 could not be bound: Moved by alice: balance"
    )  # fmt: skip
    assert not Reservation.objects.filter(active=True).exists()
    assert check_invariants() == []


def test_evicted_member_leaves_a_gang_with_enough_members_placed(cluster: Cluster) -> None:
    placed(cluster, *(a_member(number, 2) for number in range(3)))
    evicted(cluster, "g-0")
    assert states() == {"g-0": "pending", "g-1": "placed", "g-2": "placed"}
    assert check_invariants() == []


def test_placed_victims_of_one_nomination_are_requeued_together(cluster: Cluster) -> None:
    placed(cluster, *(a_member(number, 2) for number in range(2)))
    seen(
        cluster, pods=[ObservedPod("default", "urgent", "u9", scheduler_name="hetsched", spec=a_pod("urgent").build())]
    )
    node, urgent = Node.objects.get(), Pod.objects.get(name="urgent")
    nomination = Nomination.objects.create(
        cluster=cluster, pod=urgent, node=node, allocation=EMPTY, revision=1, created_at=timezone.now()
    )
    for victim in Pod.objects.filter(gang="g"):
        Eviction.objects.create(cluster=cluster, victim=victim, nomination=nomination)
    (group,) = claim_evictions(cluster.pk, 10)
    assert [displace(cluster.pk, eviction) for eviction in group] == [2, 0]
    assert states() == {"g-0": "pending", "g-1": "pending", "urgent": "pending"}
    assert set(Eviction.objects.values_list("state", flat=True)) == {Eviction.ASKED}
    assert set(Preemption.objects.values_list("victim__name", flat=True)) == {"g-0", "g-1"}


def test_gang_with_enough_members_continues(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 2) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED)
    assert states() == {"g-0": "bound", "g-1": "pending", "g-2": "placed"}
    assert not PartiallyBoundGang.objects.exists()


@pytest.mark.parametrize("result", [BindingResult.GONE, BindingResult.LOST])
def test_missing_member_is_counted_as_missing_and_released_by_proof(cluster: Cluster, result: BindingResult) -> None:
    ids = placed(cluster, *(a_member(number, 3) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=result)
    assert states() == {"g-0": "bound", "g-1": "binding", "g-2": "pending"}
    assert Reservation.objects.filter(active=True).count() == 2
    assert PartiallyBoundGang.objects.count() == 1


def test_unbound_gang_leaves_no_reservation(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 3) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.REFUSED)
    assert set(states().values()) == {"pending"}
    assert not PartiallyBoundGang.objects.exists()
    assert not Reservation.objects.filter(active=True).exists()


def test_member_decided_again_completes_the_gang(cluster: Cluster) -> None:
    ids = placed(cluster, a_member(0, 2), a_member(1, 2))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED)
    assert settle_incomplete_gangs(cluster.pk) == 0
    recorded(cluster, placing(cluster, "n1"))
    record_results(cluster, ids, g_1=BindingResult.BOUND)
    assert settle_incomplete_gangs(cluster.pk) == 0
    assert set(states().values()) == {"bound"}
    assert not PartiallyBoundGang.objects.exists()


def test_gang_that_loses_a_member_while_it_is_settled_stays_incomplete(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = placed(cluster, *(a_member(number, 3) for number in range(3)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED)
    recorded(cluster, placing(cluster, "n1"))  # the gang is complete again

    def advance_after_a_deletion(cluster_id: int) -> Cluster:
        monkeypatch.setattr(gangs, "advance", advance)
        seen(cluster, pods_gone=["default/g-1"])
        return advance(cluster_id)

    monkeypatch.setattr(gangs, "advance", advance_after_a_deletion)
    assert settle_incomplete_gangs(cluster.pk) == 0
    assert states()["g-0"] == "bound"
    assert PartiallyBoundGang.objects.get().least == 3


def test_members_with_a_controller_are_evicted_after_the_deadline(cluster: Cluster) -> None:
    ids = placed(cluster, a_member(0, 3), a_member(1, 3), a_member(2, 3, controller=""))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED, g_2=BindingResult.BOUND)
    PartiallyBoundGang.objects.update(since=timezone.now() - timedelta(minutes=11))
    assert settle_incomplete_gangs(cluster.pk) == 1
    eviction = Eviction.objects.get()
    assert (eviction.victim.name, eviction.nomination) == ("g-0", None)
    assert eviction.reason == f"Binding reverted: gang default/g: g-1 could not be bound: {NO}"
    assert "no controller would recreate it" in Pod.objects.get(name="g-2").message
    assert not PartiallyBoundGang.objects.exists()
    assert settle_incomplete_gangs(cluster.pk) == 0


def test_gang_timeout_is_at_least_a_minute(cluster: Cluster) -> None:
    ids = placed(cluster, *(a_member(number, 2).having(gang=GangMember("g", 2, 5)) for number in range(2)))
    record_results(cluster, ids, g_0=BindingResult.BOUND, g_1=BindingResult.REFUSED)
    assert PartiallyBoundGang.objects.get().patience_seconds == 60


def test_repeatedly_rejected_binding_backs_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(progress, "backoff", lambda step: steps.append(step) or timedelta(hours=step))
    ids = placed(cluster, a_pod("p").having(uid="u"))
    record_results(cluster, ids, p=BindingResult.REFUSED)
    assert Pod.objects.get().not_before is None  # the first retry is immediate
    for _ in range(3):
        Pod.objects.update(not_before=None)
        recorded(cluster, placing(cluster, "n1"))
        record_results(cluster, ids, p=BindingResult.REFUSED)
        assert Pod.objects.get().not_before is not None
    assert steps == [1, 2, 3]
