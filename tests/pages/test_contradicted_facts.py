"""Facts contradicted by a kubelet are shown with the node, the decision, REST and a what-if."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Decision, Pod, Rejection
from tests.builders import a_pod
from tests.pages.test_node_facts import words
from tests.situations import placed, recorded, refusing, submitted

DOUBT = FactConflict("numa", "2026-11-21T10:00:00Z", "default/p", "TopologyAffinityError", "no <b>locality</b>", "red")


@pytest.fixture
def doubted(cluster: Cluster) -> Node:
    """Mark the zones of n1 as contradicted, and put an owner into back-off there."""
    node = Node.objects.get(cluster=cluster, name="n1")
    node.doubts = (DOUBT,)
    node.save(update_fields=["doubts"])
    now = datetime.now(UTC)
    Rejection.objects.create(
        cluster=cluster,
        node=node,
        owner="red",
        controller="Job/red",
        pod="default/p",
        uid="u",
        reason="TopologyAffinityError",
        created_at=now,
        until=now + timedelta(minutes=1),
    )
    return node


def test_node_shows_contradicted_facts_and_avoiding_owners(viewer: Client, doubted: Node) -> None:
    shown = words(viewer, "/nodes/n1/")
    assert (
        "Node facts contradicted by the kubelet numa since 2026-11-21T10:00:00Z : default/p, TopologyAffinityError"
        in shown
    )
    assert "no <b>locality</b>" in shown  # as text, not as markup
    assert "Backoffs after rejections by the kubelet Job/red: TopologyAffinityError (1), next attempt at" in shown


def test_rest_returns_the_same_contradictions(viewer: Client, doubted: Node) -> None:
    found = viewer.get("/api/v1/nodes/n1/").json()
    assert found["doubts"] == [
        {
            "fact": "numa",
            "since": "2026-11-21T10:00:00Z",
            "pod": "default/p",
            "reason": "TopologyAffinityError",
            "message": "no <b>locality</b>",
        }
    ]
    assert [(row["owner"], row["pods"], row["reason"]) for row in found["backOffs"]] == [
        ("Job/red", 1, "TopologyAffinityError")
    ]


def test_placement_names_the_contradicted_fact(viewer: Client, cluster: Cluster, doubted: Node) -> None:
    placed(cluster, "n1", a_pod("a"))
    decision = Decision.objects.get()
    assert "Node facts that kubelets contradicted" in words(viewer, f"/decisions/{decision.pk}/")


def test_pod_pending_for_the_node_shows_the_contradiction(viewer: Client, cluster: Cluster, doubted: Node) -> None:
    submitted(cluster, a_pod("b").having(controller_uid="red"))
    (result,) = refusing(cluster, Verdict.NOT_NOW)
    reason = Reason("KubeletRefused", "admission", 1, "kubelet of n1 refused 1 pod of this owner")
    recorded(cluster, [type(result)(result.waiting, result.verdict, "b waits", "hetsched", 1, reasons=(reason,))])
    shown = words(viewer, f"/decisions/{Pod.objects.get(name='b').decision_id}/")
    assert "kubelet of n1 refused 1 pod of this owner" in shown
    assert "n1 : numa since" in shown


def test_what_if_lists_contradicted_facts_of_its_nodes(viewer: Client, cluster: Cluster, doubted: Node) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}]}}
    body = json.dumps({"manifest": pod, "cluster": cluster.name})
    Node.objects.update(doubts=(DOUBT,))
    found = viewer.post("/api/v1/what-if/", body, content_type="application/json").json()
    (placement,) = found["placements"]
    assert found["doubts"] == [
        {"node": placement["node"], "fact": "numa", "since": "2026-11-21T10:00:00Z", "reason": "TopologyAffinityError"}
    ]
    Node.objects.update(doubts=())
    assert "doubts" not in viewer.post("/api/v1/what-if/", body, content_type="application/json").json()
