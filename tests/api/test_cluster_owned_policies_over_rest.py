"""Policies owned by a cluster are read-only over REST, and can be taken over with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.contracts.objects.observed import ObservedPolicy
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM, details_of
from hetsched.journal.models import AuditEntry
from hetsched.policies.cluster_policies import apply_policy_objects

from .conftest import Api

DRAFT = {"plugins": [{"name": "resource-fit"}]}


@pytest.fixture
def admin(api: Callable[..., Api]) -> Api:
    """Return a policy admin, with cluster west as owner of the policy mine and an invalid policy from it."""
    west = create_cluster(name="west", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=west, follower_epoch=1)
    for name, plugin in (("mine", "resource-fit"), ("odd", "no-such-plugin")):
        seen = ObservedPolicy(name, f"uid-{name}", 1, PolicySpec(name, (PluginUse(plugin),)))
        apply_policy_objects(west.pk, [seen], epoch=1)
    return api("policy-admin")


def owner(admin: Api, body: dict[str, Any], **more: Any) -> Any:
    return admin("POST", "policies/mine/owner/", body, if_match=admin.tag("policies/mine/"), **more)


def test_policy_shows_its_owner_cluster(admin: Api) -> None:
    found = admin.get("policies/mine/")
    assert (found["keptIn"], found["activeVersion"]) == ("west", 1)
    assert found["objects"]["west"]["accepted"]
    rows = {row["name"]: row["keptIn"] for row in admin.get("policies/")["items"]}
    assert rows == {"mine": "west"}


def test_rejected_policy_object_is_shown_with_its_cluster(admin: Api) -> None:
    (mine, odd) = admin.get("clusters/west/")["connection"]["policies"]
    assert (mine["name"], mine["accepted"], mine["version"]) == ("mine", True, 1)
    assert (odd["accepted"], odd["code"], odd["place"]) == (False, "PolicyPluginUnknown", "spec.plugins[0]")


def test_write_is_rejected_with_the_owner(admin: Api) -> None:
    refused = admin("POST", "policies/mine/versions/", DRAFT, status=409).json()
    assert refused["code"] == "PolicyKeptInCluster"
    assert refused["detail"] == "policy mine is managed by the SchedulingPolicy of this name in cluster west"
    body = {"version": 1, "reason": "again"}
    answer = admin("POST", "policies/mine/activate/", body, if_match=admin.tag("policies/mine/"), status=409)
    assert answer.json()["code"] == "PolicyKeptInCluster"


def test_takeover_requires_a_reason(admin: Api) -> None:
    taken = owner(admin, {"cluster": None, "reason": "west is gone"}, status=200).json()
    assert (taken["keptIn"], taken["activeVersion"], taken["objects"]["west"]["code"]) == (None, 1, "PolicyNameTaken")
    entry = AuditEntry.objects.get(action="policy.keep")
    assert (entry.reason, details_of(entry)) == ("west is gone", {"before": "cluster west", "after": "the database"})
    admin("POST", "policies/mine/versions/", DRAFT, status=201)
    assert owner(admin, {"cluster": "west", "reason": "back"}, status=200).json()["keptIn"] == "west"


def test_takeover_requires_the_right_to_edit_policies(admin: Api, api: Callable[..., Api]) -> None:
    tag = admin.tag("policies/mine/")
    api("operator")("POST", "policies/mine/owner/", {"reason": "x"}, if_match=tag, status=403)
