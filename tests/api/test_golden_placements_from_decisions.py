"""A golden placement created from a decision is evaluated on the state of that decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import Decision, Pod
from hetsched.policies import golden_states
from hetsched.policies.goldens import recheck_goldens
from hetsched.policies.manifest import pod_text
from hetsched.policies.models import AgreedState, GoldenPlacement
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, submitted
from workers.schedule import run

from .conftest import Api


@pytest.fixture
def admin(api: Callable[..., Api], policies: None) -> Api:
    return api("policy-admin")


@pytest.fixture
def decided(policies: None) -> Decision:
    """Return a placement on n2 that differs on empty nodes: n1 was full, and the lowest name wins ties."""
    cluster = a_cluster(a_node("n1").cpu(8), a_node("n2").cpu(8))
    submitted(cluster, a_pod("first").cpu(6))
    run(cluster.pk)
    submitted(cluster, a_pod("second").cpu(6))
    run(cluster.pk)
    assert Pod.objects.get(name="first").node.name == "n1"  # type: ignore[union-attr]
    return Decision.objects.select_related("pod", "cluster").get(pod_name="second", node_name="n2")


def agreed(of: Decision, **more: Any) -> dict[str, Any]:
    manifest = pod_text(of.pod.spec)
    expect = {"nodes": [of.node_name]}
    return {
        "name": "second", "cluster": "fleet", "manifest": manifest, "expect": expect, "reason": "agreed",
        "policy": of.policy_name, **more,
    }  # fmt: skip


def test_placement_from_a_decision_holds_at_creation(admin: Api, decided: Decision) -> None:
    placement = admin("POST", "golden-placements/", agreed(decided, decision=decided.pk), status=201).json()
    assert (placement["state"], placement["got"], placement["decision"]) == ("kept", "n2", decided.pk)
    assert admin("POST", "golden-placements/", agreed(decided, name="empty"), status=201).json()["state"] == "broken"


def test_later_changes_of_the_cluster_do_not_matter(admin: Api, decided: Decision) -> None:
    admin("POST", "golden-placements/", agreed(decided, decision=decided.pk), status=201)
    cordon(decided.cluster, "n2", actor=SYSTEM, reason="repair")
    Cluster.objects.get().nodes.filter(name="n1").update(unschedulable=True)
    golden_states._state_of.cache_clear()
    recheck_goldens(timezone.now())
    assert GoldenPlacement.objects.get().state == "kept"
    tag = admin.tag("golden-placements/second/")
    # A change without a decision, or with the same one, keeps the state even if it cannot be recomputed any more.
    for more in ({}, {"decision": decided.pk}):
        body = {**agreed(decided, expect={"nodes": ["n1"]}), **more}
        placement = admin("PUT", "golden-placements/second/", body, if_match=tag, status=200).json()
        assert (placement["state"], placement["got"], placement["decision"]) == ("broken", "n2", decided.pk)
        tag = admin.tag("golden-placements/second/")
    placement = admin(
        "PUT", "golden-placements/second/", agreed(decided, decision=None), if_match=tag, status=200
    ).json()
    assert placement["decision"] is None
    assert not AgreedState.objects.exists()


def test_policy_with_another_node_breaks_the_placement(admin: Api, decided: Decision) -> None:
    admin("POST", "golden-placements/", agreed(decided, decision=decided.pk, policy=""), status=201)
    asked = {"policy": decided.policy_name, "plugins": [{"name": "node-ready"}]}
    (found,) = admin("POST", "golden-placements/check/", asked, status=200).json()["results"]
    assert (found["state"], found["got"]) == ("broken", "n1")


def test_unknown_decision_is_rejected(admin: Api, decided: Decision) -> None:
    refused = admin("POST", "golden-placements/", agreed(decided, decision=10**6), status=400).json()
    assert (refused["code"], refused["place"]) == ("DecisionUnknown", "decision")
    name = decided.cluster.name
    assert refused["detail"] == f"cluster {name} has no decision 1000000"
    assert refused["hint"] == f"GET decisions/?cluster={name} lists the existing objects"
    admin("GET", f"decisions/?cluster={name}", status=200)


def test_states_have_a_bound(admin: Api, decided: Decision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_states, "MOST_BYTES", 10)
    refused = admin("POST", "golden-placements/", agreed(decided, decision=decided.pk), status=400).json()
    assert refused["code"] == "GoldenStateTooLarge"
    assert not GoldenPlacement.objects.exists()
