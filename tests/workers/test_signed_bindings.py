"""Allocations are signed for the agent of the node, and repeated in the responses to its reports."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.objects import keys
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.signatures import verify
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Pod
from hetsched.placement.models.reservations import Reservation
from hetsched.placement.signed_grants import agent_key, signed_allocations_on
from hetsched.scheduling.binding_cycle import binding_requests
from tests.builders import a_node, a_pod

pytestmark = pytest.mark.django_db
SECRET = "a secret that is long enough to be one of these"
HELD = Allocation(
    gpus=(CardGrant(1, 1000, 40960, "GPU-a"),), zones=(ZoneGrant("node-0", "2-3", 2000, 0),), cpu_policy="exclusive"
)


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_GIVEN = SECRET, True


@pytest.fixture
def pod() -> Pod:
    """Return a pod that is placed on node n1 of cluster prod."""
    now = timezone.now()
    cluster = Cluster.objects.create(name="prod", kind="kubernetes")
    node = Node.objects.create(cluster=cluster, name="n1", report=a_node("n1").build(), updated_at=now)
    pod = Pod.objects.create(
        cluster=cluster, namespace="default", name="p", uid="uid-1", origin=Pod.WATCHED, spec=a_pod("p").build(),
        state="binding", queued=False, node=node, allocation=HELD, created_at=now,
    )  # fmt: skip
    Reservation.objects.create(
        pod=pod, node=node, cluster=cluster, allocation=HELD, revision=1, leader_epoch=7, created_at=now
    )
    return pod


def key(cluster: str = "prod", node: str = "n1") -> bytes:
    found = agent_key(cluster, node)
    assert found is not None
    return found


def test_binding_is_signed_for_its_pod_and_node(pod: Pod) -> None:
    (request,) = binding_requests([pod.pk])
    granted = verify(request.annotations[keys.ALLOCATION], key(), uid="uid-1", node="n1")
    assert (granted.epoch, granted.policy, granted.cpus) == (7, "exclusive", "2-3")
    assert [card.uuid for card in granted.gpus] == ["GPU-a"]
    with pytest.raises(InputError, match="not a valid signature of the control plane"):
        verify(request.annotations[keys.ALLOCATION], key(node="n2"), uid="uid-1", node="n1")


def test_agent_gets_the_same_allocation_in_its_response(pod: Pod) -> None:
    granted = signed_allocations_on(pod.cluster_id, "n1")
    assert granted == {"uid-1": binding_requests([pod.pk])[0].annotations[keys.ALLOCATION]}
    assert signed_allocations_on(pod.cluster_id, "n2") == {}


def test_foreign_or_ended_allocations_are_not_signed(pod: Pod) -> None:
    Pod.objects.filter(pk=pod.pk).update(origin=Pod.IMPORTED)
    assert signed_allocations_on(pod.cluster_id, "n1") == {}
    Pod.objects.filter(pk=pod.pk).update(origin=Pod.WATCHED)
    Reservation.objects.update(active=False)
    assert signed_allocations_on(pod.cluster_id, "n1") == {}


def test_changed_secret_changes_the_signature(pod: Pod, settings: Any) -> None:
    before, old = signed_allocations_on(pod.cluster_id, "n1")["uid-1"], key()
    settings.SECRET_KEY = SECRET[::-1]
    assert key() != old
    verify(signed_allocations_on(pod.cluster_id, "n1")["uid-1"], key(), uid="uid-1", node="n1")
    with pytest.raises(InputError, match="not a valid signature of the control plane"):
        verify(before, key(), uid="uid-1", node="n1")


def test_without_a_secret_nothing_is_signed(pod: Pod, settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = False
    assert agent_key("prod", "n1") is None
    with pytest.raises(InputError, match="not signed"):
        verify(signed_allocations_on(pod.cluster_id, "n1")["uid-1"], b"", uid="uid-1", node="n1")
