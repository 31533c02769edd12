"""A response to an invalid body names the wrong field and the valid fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.situations import a_cluster

from .conftest import Api


@pytest.fixture
def operator(api: Callable[..., Api], db: Any) -> Api:
    a_cluster()
    return api("operator")


@pytest.mark.parametrize("address", ["workloads/", "what-if/"])
def test_missing_manifest_is_named(operator: Api, address: str) -> None:
    problem = operator("POST", address, {"policy": "spread"}, status=400).json()
    assert (problem["code"], problem["place"]) == ("BodyInvalid", "manifest")


def test_unknown_field_is_named_with_the_known_ones(operator: Api) -> None:
    problem = operator("POST", "workloads/", {"manifest": {}, "polcy": "spread"}, status=400).json()
    assert problem["place"] == "polcy"
    assert problem["hint"].startswith("Did you mean policy? Known: manifest, cluster, policy, priority, callbackUrl")


def test_invalid_choice_is_named_with_the_valid_ones(operator: Api) -> None:
    problem = operator(
        "POST", "nodes/n1/actions/", {"action": "explode", "reason": "x"}, status=400, if_match="*"
    ).json()
    assert problem["place"] == "action"
    assert problem["hint"].startswith("Allowed values: approve, cordon")


def test_bare_object_is_the_manifest(operator: Api) -> None:
    problem = operator("POST", "workloads/", {"kind": "Pod"}, status=400).json()
    assert problem["place"].startswith("manifest")


def test_what_if_and_submission_accept_the_same_body(operator: Api) -> None:
    spec = {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    body = {"manifest": pod, "policy": "spread", "priority": 5, "callbackUrl": ""}
    assert operator("POST", "what-if/", body, status=200).json()["verdict"] == "placed"
    operator("POST", "workloads/", body, status=202)


def test_scheduler_name_selects_a_policy_of_the_cluster(operator: Api) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"schedulerName": "hetsched-nope", "containers": [{"name": "main", "image": "i"}]},
    }  # fmt: skip
    (item,) = operator("POST", "what-if/", {"manifest": pod}, status=200).json()["unplaced"]
    assert [reason["field"] for reason in item["reasons"]] == ["spec.schedulerName"]


def test_unknown_verdict_is_rejected(operator: Api) -> None:
    problem = operator("GET", "decisions/?verdict=foo", status=400).json()
    assert (problem["place"], "not-now" in problem["detail"] + problem.get("hint", "")) == ("verdict", True)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_extender_address_returns_a_hint(operator: Api, verb: str) -> None:
    problem = operator("POST", f"/extender/{verb}", {}, status=404).json()
    assert "scheduler --extender" in problem["hint"]
