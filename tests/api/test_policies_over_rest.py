"""Drafts are inactive; an activation needs a reason, applies to the next decision, and can be rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.journal.models import AuditEntry

from .conftest import POD, Api

DRAFT = {"name": "hetsched", "plugins": [{"name": "resource-fit"}, {"name": "binpack", "weight": 2}]}
MANIFEST = """\
apiVersion: hetsched.io/v1alpha1
kind: SchedulingPolicy
metadata: {name: binpack-gpu}
spec:
  plugins:
  - {name: resource-fit}
  - {name: binpack, weight: 2, params: {shape: [[0, 0], [100, 10]], resources: {cpu: 1, nvidia.com/gpu: 1}}}
  ties: {by: name}
"""


@pytest.fixture
def admin(api: Callable[..., Api], cluster: Any) -> Api:
    return api("policy-admin")


def activate(admin: Api, version: int, **more: Any) -> Any:
    body = {"version": version, "reason": "denser"}
    return admin("POST", "policies/hetsched/activate/", body, if_match=admin.tag("policies/hetsched/"), **more)


def test_draft_version_makes_no_decisions(admin: Api) -> None:
    saved = admin("POST", "policies/", DRAFT, status=201)
    assert saved["Location"] == "/api/v1/policies/hetsched/versions/2/"
    assert (saved.json()["version"], saved.json()["state"]) == (2, "draft")
    assert admin.get("policies/hetsched/")["activeVersion"] == 1
    assert admin.get("policies/hetsched/versions/2/") == saved.json()


@pytest.mark.parametrize("address", ["policies/", "policies/binpack-gpu/versions/"])
def test_contract_manifest_creates_a_draft(admin: Api, address: str) -> None:
    if address != "policies/":
        admin("POST", "policies/", {**DRAFT, "name": "binpack-gpu"}, status=201)
    saved = admin("POST", address, MANIFEST, kind="application/yaml", status=201).json()
    assert saved["spec"]["plugins"][1]["params"]["shape"] == [[0, 0], [100, 10]]


def test_version_path_determines_the_policy_name(admin: Api) -> None:
    saved = admin("POST", "policies/spread/versions/", {"plugins": DRAFT["plugins"]}, status=201)
    assert saved.json()["policy"] == "spread"
    other = admin("POST", "policies/spread/versions/", DRAFT, status=400)
    assert other.json()["code"] == "PolicyNameInvalid"


def test_activated_version_decides_the_next_pod(admin: Api, operator: Api, cluster: Any) -> None:
    from workers.schedule import run

    admin("POST", "policies/", DRAFT, status=201)
    answer = activate(admin, 2, status=200)
    assert (answer.json()["activeVersion"], answer["ETag"]) == (2, admin.tag("policies/hetsched/"))
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    run(cluster.pk)
    (decision,) = operator.get("decisions/")["items"]
    assert decision["policy"] == {"name": "hetsched", "version": 2}
    entry = AuditEntry.objects.filter(action="policy.activate").first()
    assert entry is not None
    assert (entry.reason, entry.details) == ("denser", {"before": 1, "after": 2})


def test_rollback_activates_the_previous_version(admin: Api) -> None:
    admin("POST", "policies/", DRAFT, status=201)
    activate(admin, 2, status=200)
    tag = admin.tag("policies/hetsched/")
    answer = admin("POST", "policies/hetsched/rollback/", {"reason": "too dense"}, if_match=tag, status=200)
    assert answer.json()["activeVersion"] == 1


def test_rollback_requires_an_earlier_version(admin: Api) -> None:
    answer = admin("POST", "policies/hetsched/rollback/", {"reason": "x"}, if_match="*", status=409)
    assert answer.json()["code"] == "PolicyNothingToRollBack"


def test_unknown_version_cannot_be_activated(admin: Api) -> None:
    refused = activate(admin, 99, status=400).json()
    assert (refused["code"], refused["place"]) == ("PolicyVersionUnknown", "version")
    assert refused["detail"] == "policy hetsched has no version 99"
    assert refused["hint"] == "GET policies/hetsched/versions/ lists the existing objects"
    admin("GET", "policies/hetsched/versions/", status=200)


def test_second_write_with_the_same_etag_is_rejected(admin: Api) -> None:
    admin("POST", "policies/", DRAFT, status=201)
    tag = admin.tag("policies/hetsched/")
    activate(admin, 2, status=200)
    stale = admin("POST", "policies/hetsched/activate/", {"version": 1, "reason": "x"}, if_match=tag)
    assert stale.status_code == 412


def test_activation_requires_a_reason(admin: Api) -> None:
    for body in ({"version": 1, "reason": ""}, {"version": 1, "reason": " \n"}):
        answer = admin("POST", "policies/hetsched/activate/", body, if_match="*", status=400)
        assert answer.json()["code"] == "ReasonMissing"
    assert admin("POST", "policies/hetsched/activate/", {"version": 1}, if_match="*", status=400)
