"""Golden placements over REST: creation, checks before an activation, and details in every rejection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.journal.audit import details_of
from hetsched.journal.models import AuditEntry
from hetsched.policies.models import GoldenPlacement
from web.api.policies import goldens

from .conftest import POD, Api

# `n1` has no GPU, `n2` has two; the lowest name wins ties, so a pod that requests only CPU goes to n1.
AGREED = {"name": "small-first", "cluster": "lab", "manifest": POD, "expect": {"nodes": ["n1"]}, "reason": "agreed"}
# The same filters with random ties: on empty nodes n1 and n2 are equal, and this seed selects n2.
OTHER_TIE = {"plugins": [{"name": "resource-fit"}], "ties": {"by": "random", "seed": 3}}


@pytest.fixture
def admin(api: Callable[..., Api], cluster: Any) -> Api:
    return api("policy-admin")


def only_n2(admin: Api) -> int:
    """Save a draft of `spread` that puts the pod on n2; return its version."""
    for seed in range(50):
        body = {**OTHER_TIE, "ties": {"by": "random", "seed": seed}}
        version = int(admin("POST", "policies/spread/versions/", body, status=201).json()["version"])
        asked = {"manifest": POD, "policyDraft": {**body, "name": "spread"}, "cluster": "lab"}
        if admin("POST", "what-if/", asked, status=200).json()["placements"][0]["node"] == "n2":
            return version
    raise AssertionError("no seed selects n2")


def activate(admin: Api, version: int, status: int) -> Any:
    body = {"version": version, "reason": "try it"}
    tag = admin.tag("policies/spread/")
    return admin("POST", "policies/spread/activate/", body, if_match=tag, status=status).json()


def test_placement_is_created_and_shown_with_its_state(admin: Api) -> None:
    made = admin("POST", "golden-placements/", AGREED, status=201)
    assert made["Location"] == "/api/v1/golden-placements/small-first/"
    shown = admin.get("golden-placements/small-first/")
    assert shown == made.json()
    entry = AuditEntry.objects.filter(action="golden.add").get()
    assert (shown["expected"], shown["author"], shown["policy"]) == ("on n1", entry.actor, "")
    assert (entry.reason, details_of(entry)["expects"]) == ("agreed", "on n1")


def test_creation_does_not_replace_a_concurrent_creation(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a decision may take seconds to load; another request creates it in the meantime."""
    parse = goldens._golden_case

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(goldens, "_golden_case", parse)
        admin("POST", "golden-placements/", AGREED, status=201)
        return parse(*arguments)

    monkeypatch.setattr(goldens, "_golden_case", slow)
    refused = admin("POST", "golden-placements/", {**AGREED, "reason": "later"}, status=409).json()
    assert refused["code"] == "GoldenExists"
    assert GoldenPlacement.objects.get().reason == "agreed"


def test_policy_that_breaks_a_golden_placement_is_not_activated(admin: Api) -> None:
    admin("POST", "golden-placements/", {**AGREED, "policy": "spread"}, status=201)
    version = only_n2(admin)
    refused = activate(admin, version, 409)
    assert refused["code"] == "GoldenPlacementBroken"
    assert refused["goldens"] == [
        {"golden": "small-first", "cluster": "lab", "state": "broken", "expected": "on n1", "got": "n2"}
    ]
    assert "small-first (cluster lab): expected on n1, got n2" in refused["detail"]
    assert admin.get("policies/spread/")["activeVersion"] == 1


def test_disabled_or_foreign_golden_placement_does_not_block(admin: Api) -> None:
    admin("POST", "golden-placements/", {**AGREED, "policy": "binpack"}, status=201)
    admin("POST", "golden-placements/", {**AGREED, "name": "off", "enabled": False}, status=201)
    assert admin.get("golden-placements/off/")["state"] == "off"
    activate(admin, only_n2(admin), 200)


def test_version_is_evaluated_without_activation(admin: Api) -> None:
    admin("POST", "golden-placements/", {**AGREED, "policy": "spread"}, status=201)
    version = only_n2(admin)
    found = admin.get(f"policies/spread/versions/{version}/goldens/")
    assert (found["kept"], found["broken"], found["unknown"]) == (0, 1, 0)
    draft = {"policy": "spread", "plugins": [{"name": "resource-fit"}]}
    assert admin("POST", "golden-placements/check/", draft, status=200).json()["kept"] == 1


def test_saving_a_broken_placement_reports_it(admin: Api) -> None:
    wrong = {**AGREED, "name": "wrong", "policy": "spread", "expect": {"nodes": ["n2"]}}
    placement = admin("POST", "golden-placements/", wrong, status=201).json()
    assert (placement["state"], placement["got"]) == ("broken", "n1")
    assert placement["brokenSince"] is not None


def test_change_requires_the_etag_and_a_reason(admin: Api) -> None:
    admin("POST", "golden-placements/", AGREED, status=201)
    address, changed = "golden-placements/small-first/", {**AGREED, "expect": {"selector": {"zone": "a"}}}
    admin("PUT", address, changed, status=428)
    tag = admin.tag(address)
    assert admin("PUT", address, changed, if_match=tag, status=200).json()["expected"] == "a node with zone=a"
    admin("PUT", address, changed, if_match=tag, status=412)
    assert admin("DELETE", address, if_match=admin.tag(address), status=400).json()["code"] == "ReasonMissing"
    admin("DELETE", f"{address}?reason=obsolete", if_match=admin.tag(address), status=204)
    assert not GoldenPlacement.objects.exists()
    assert AuditEntry.objects.filter(action="golden.remove", reason="obsolete").exists()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"expect": {}}, "GoldenExpectationInvalid"),
        ({"expect": {"nodes": ["n1"], "isa": "rv64gc"}}, "GoldenExpectationInvalid"),
        ({"expect": {"isa": "rv64gc_nosuch"}}, None),
        ({"expect": {"verdict": "placed"}}, "BodyInvalid"),
        ({"manifest": "kind: Service"}, None),
        ({"manifest": f"{POD}---\n{POD.replace('web', 'big').replace('500m', '4')}"}, "GoldenPodInvalid"),
        ({"policy": "nosuch"}, "PolicyUnknown"),
        ({"name": "Not A Name"}, "GoldenNameInvalid"),
        ({"name": "check"}, "GoldenNameInvalid"),
        ({"reason": " "}, "ReasonMissing"),
    ],
)
def test_invalid_placement_is_rejected(admin: Api, change: dict[str, Any], code: str | None) -> None:
    refused = admin("POST", "golden-placements/", {**AGREED, **change}, status=400).json()
    assert code is None or refused["code"] == code
    assert not GoldenPlacement.objects.exists()


def test_stale_draft_is_rejected_with_both_edits(admin: Api) -> None:
    tag = admin.tag("policies/spread/")
    theirs = {"plugins": [{"name": "resource-fit"}, {"name": "least-allocated", "weight": 2}]}
    admin("POST", "policies/spread/versions/", theirs, if_match=tag, status=201)
    yours = {"plugins": [{"name": "resource-fit"}, {"name": "least-allocated", "weight": 5}]}
    refused = admin("POST", "policies/spread/versions/", yours, if_match=tag, status=412).json()
    assert refused["yours"]["plugins"][1]["weight"] == 5
    assert (refused["theirs"]["version"], refused["theirs"]["spec"]["plugins"][1]["weight"]) == (2, 2)
    (change,) = refused["diff"]["plugins"]
    assert (change["plugin"], change["weightBefore"], change["weightAfter"]) == ("least-allocated", 2, 5)


def test_two_versions_are_compared(admin: Api) -> None:
    admin("POST", "policies/", {"name": "mine", "plugins": [{"name": "taints"}, {"name": "resource-fit"}]}, status=201)
    admin("POST", "policies/", {"name": "mine", "plugins": [{"name": "resource-fit"}, {"name": "taints"}]}, status=201)
    found = admin.get("policies/mine/versions/1/diff/2/")["diff"]
    (change,) = found["plugins"]  # one of two stays where it is, the other moved past it
    assert (change["change"], change["moved"]) == ("changed", True)
    assert {change["placeBefore"], change["placeAfter"]} == {1, 2}
    assert [plugin["change"] for plugin in admin.get("policies/mine/versions/0/diff/1/")["diff"]["plugins"]] == [
        "added"
    ] * 2
    assert admin.get("policies/mine/versions/2/diff/2/")["diff"]["same"] is True
