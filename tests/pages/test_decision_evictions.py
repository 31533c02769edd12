"""The page of a decision lists the pods that were evicted for it."""

from __future__ import annotations

from django.test import Client

from hetsched.contracts.api.decision import Evicted
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision
from tests.situations import a_cluster, placed


def test_evicted_pods_are_listed_with_priority_node_and_budget(db: None, viewer: Client) -> None:
    cluster: Cluster = a_cluster()
    (pod,) = placed(cluster, "n1")
    first = Decision.objects.get(pod=pod)
    evictions = (Evicted("default/low", "n1", 3), Evicted("shop/web", "n1", 0, "shop/keep-two"))
    copy = Decision.objects.create(
        cluster=cluster, pod=pod, namespace="default", pod_name="p", verdict="placed", node_name="n1",
        policy_name="hetsched", policy_version=1, snapshot="d", cluster_revision=1, inventory_revision=1,
        summary="placed", evictions=evictions, created_at=first.created_at,
    )  # fmt: skip
    text = " ".join(viewer.get(f"/decisions/{copy.pk}/").content.decode().split())
    assert "Preempted pods" in text
    assert 'default/low <span class="muted">(priority 3, n1)</span>' in text
    assert "violates the disruption budget shop/keep-two" in text
    assert "Preempted pods" not in viewer.get(f"/decisions/{first.pk}/").content.decode()
