"""Gangs on a real API server that rejects the binding of one member: all members are bound in the end, or evicted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import PartiallyBoundGang, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.faults import refusal, replies
from tests.kube.scene import an_informer, eventually, make, make_node, pod_of, states
from workers import evict, schedule, sweep

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
GANG = "pod-group.scheduling.sigs.k8s.io"


@pytest.fixture
def placed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node, on which a gang of three is placed and not bound yet."""
    for worker in (binding_cycle, evict):
        monkeypatch.setattr(worker, "api_of", lambda _: api)
    make_node(api, "n1")
    for name in ("g-0", "g-1", "g-2"):
        make_member(api, name)
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1 and len(states()) == 3)
    assert decide(follower) == 3
    yield follower
    follower.ended.set()


def make_member(api: Api, name: str) -> None:
    """Create a member of a gang of three that belongs to a Job."""
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "00000000-0000-0000-0000-000000000001",
        "controller": True,
    }  # fmt: skip
    labels = {f"{GANG}/name": "g", f"{GANG}/min-available": "3"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "schedulerName": "hetsched"}
    make(api, PODS, name, "default", metadata={"labels": labels, "ownerReferences": [owner]}, spec=spec)


def decide(follower: Informer) -> int:
    Pod.objects.filter(state__in=["not-now", "pending"]).update(queued=True, not_before=None)
    follower._write_sync()
    return schedule.run(follower.lease.cluster_id)


def refuse(_: int, __: Any) -> Any:
    raise refusal(422)


def test_rejected_member_is_decided_again_and_the_gang_completes(api: Api, cluster: Cluster, placed: Informer) -> None:
    with replies(api, to="/g-1/binding", respond=refuse):
        assert binding_cycle.run(cluster.pk) == 2
    assert states() == {"g-0": "bound", "g-1": "pending", "g-2": "bound"}
    assert Pod.objects.get(name="g-1").message == "made by a test"
    assert PartiallyBoundGang.objects.count() == 1
    assert decide(placed) == 1
    assert binding_cycle.run(cluster.pk) == 1
    sweep.run()
    assert set(states().values()) == {"bound"}
    assert not PartiallyBoundGang.objects.exists()
    assert check_invariants() == []


def test_permanent_rejection_evicts_the_other_members(api: Api, cluster: Cluster, placed: Informer) -> None:
    with replies(api, to="/g-1/binding", respond=refuse):
        for _ in range(3):
            binding_cycle.run(cluster.pk)
            decide(placed)
        binding_cycle.run(cluster.pk)
        PartiallyBoundGang.objects.update(since=timezone.now() - timedelta(minutes=11))
        sweep.run()
        assert evict.run(cluster.pk) == 2
    assert "deletionTimestamp" in pod_of(api, "g-0")["metadata"]
    assert "nodeName" not in pod_of(api, "g-1")["spec"]
    # They are evicted; their resources are free after their deletion.
    assert Reservation.objects.filter(active=True).count() == 2
    for name in ("g-0", "g-2"):
        api.send("DELETE", PODS.path(namespace="default", name=name), query={"gracePeriodSeconds": "0"})
    eventually(placed, lambda: states()["g-0"] == states()["g-2"] == "cancelled")
    assert "Binding reverted: gang default/g: g-1 could not be bound" in Pod.objects.get(name="g-0").message
    assert not Reservation.objects.filter(active=True).exists()
    # Their Job creates them again, and this time no binding is rejected.
    for name in ("g-3", "g-4"):
        make_member(api, name)
    eventually(placed, lambda: len(states()) == 5)
    assert decide(placed) == 3
    assert binding_cycle.run(cluster.pk) == 3
    assert check_invariants() == []
