"""Holds expire once, and leave no rows behind, even without any message."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from django.db.models.functions import Now
from django.utils import timezone

from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.contracts.objects.workload import ClaimUse
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import Conflict
from hetsched.placement.actions import (
    HoldPart,
    create_hold,
    delete_ended_foreign_pods,
    end_holds,
    holds,
    prune_holds,
    submit,
)
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Hold, IdempotencyKey, Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(a_node("n1"), a_node("n2"))


def held(cluster: Cluster, *names: str, node: str = "n1", revision: int | None = None, **more: object) -> Hold:
    parts = [HoldPart(a_pod(name).build(), node, EMPTY) for name in names or ("p",)]
    at = Cluster.objects.get(pk=cluster.pk).revision if revision is None else revision
    wish = {"policy": PolicyRef("hetsched", 1), "seconds": 60, "actor": ALICE, "owner": "me", **more}
    return Hold.objects.get(pk=create_hold(cluster.pk, parts, revision=at, **wish).hold_id)  # type: ignore[arg-type]


def active() -> int:
    return Reservation.objects.filter(active=True).count()


def over(row: Hold) -> None:
    Hold.objects.filter(pk=row.pk).update(expires_at=Now() - timedelta(seconds=1))


def test_decision_on_an_older_state_is_not_recorded(cluster: Cluster) -> None:
    before = Cluster.objects.get(pk=cluster.pk).revision
    held(cluster)
    with pytest.raises(Conflict):
        held(cluster, "q", revision=before)
    assert (Hold.objects.count(), active()) == (1, 1)


def test_engine_sees_the_pod_of_the_hold(cluster: Cluster) -> None:
    row = held(cluster)
    (placed,) = load_state(cluster.pk).state.placed_pods.values()
    assert (placed.pod.name, placed.pod.shape, placed.pod.preemptible) == (
        f"p~{row.pk}", a_pod("p").build().shape, False,
    )  # fmt: skip


def test_hold_expires_once_with_any_number_of_sweeps(cluster: Cluster) -> None:
    row = held(cluster, "a", "b")
    assert end_holds(cluster.pk) == 0
    over(row)
    assert [end_holds(cluster.pk) for _ in range(3)] == [1, 0, 0]
    assert (Hold.objects.get().state, active()) == ("expired", 0)
    assert Node.objects.get(name="n1").requested["cpu"] == 0
    assert check_invariants() == []


def test_claimed_hold_waits_for_its_pods(cluster: Cluster) -> None:
    row = held(cluster)
    submit(cluster, [a_pod("p").build()], actor=ALICE, hold=row.pk)
    claimed = Hold.objects.get()
    # The hold lasts a minute; its submission extends it to ten.
    assert claimed.expires_at - timezone.now() > timedelta(minutes=9)
    assert end_holds(cluster.pk) == 0
    over(row)
    assert end_holds(cluster.pk) == 1
    assert (Hold.objects.get().state, active()) == ("used", 0)
    assert Workload.objects.get().state == "pending"  # it is decided like any other pod


def test_rejected_submission_leaves_the_hold_unchanged(cluster: Cluster) -> None:
    row = held(cluster)
    submit(cluster, [a_pod("taken").build()], actor=ALICE)
    with pytest.raises(InputError):
        submit(cluster, [a_pod("taken").build()], actor=ALICE, hold=row.pk)
    assert (Hold.objects.get().state, Hold.objects.get().workload_id) == ("held", None)


def test_hold_is_lost_with_its_node(cluster: Cluster) -> None:
    held(cluster, "a")
    held(cluster, "b", node="n2")
    Node.objects.filter(name="n2").update(gone=True)
    assert end_holds(cluster.pk) == 1
    assert sorted(Hold.objects.values_list("state", flat=True)) == ["held", "lost"]
    assert active() == 1


def test_rows_of_an_ended_hold_are_deleted(cluster: Cluster) -> None:
    row = held(cluster, idempotency_key="k", body_hash="h")
    over(row)
    end_holds(cluster.pk)
    later = timezone.now() + timedelta(hours=1)
    prune_holds(cluster.pk, before=later)
    delete_ended_foreign_pods(cluster.pk, finished_before=later)
    for rows in (Hold, Pod, IdempotencyKey):
        assert not rows._default_manager.exists()
    assert check_invariants() == []


def test_end_of_a_hold_requeues_pods(cluster: Cluster) -> None:
    row = held(cluster)
    Hold.objects.filter(pk=row.pk).update(state="expired")
    assert [(violation.id, violation.message) for violation in check_invariants()] == [
        ("I8", "is reserved capacity of a hold that has ended")
    ]


def test_pod_with_resource_claims_cannot_be_held(cluster: Cluster) -> None:
    pod = a_pod("p").build()
    spec = msgspec.structs.replace(pod, shape=msgspec.structs.replace(pod.shape, claims=(ClaimUse("data"),)))
    with pytest.raises(InputError) as refused:
        holds.check_hold_parts([HoldPart(spec, "n1", EMPTY)])
    assert refused.value.code == "HoldNotPossible"
