"""A draft is validated, compared and shown as text before it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.policies.manifest import manifest_of
from hetsched.policies.models import PolicyRevision

from .conftest import Api

DRAFT = {"plugins": [{"name": "resource-fit"}, {"name": "least-allocated", "weight": 2, "params": {"cpu": 3}}]}


@pytest.fixture
def viewer(api: Callable[..., Api], cluster: Any) -> Api:
    return api("viewer")


def checked(client: Api, draft: Any, query: str = "", **more: Any) -> Any:
    return client("POST", f"policies/spread/check/{query}", draft, status=200, **more).json()


def test_valid_draft_is_returned_as_policy_and_text(viewer: Api) -> None:
    result = checked(viewer, DRAFT)
    assert (result["valid"], result["problem"], result["against"]) == (True, None, 1)
    assert result["spec"]["plugins"][1] == {"name": "least-allocated", "weight": 2.0, "params": {"cpu": 3}}
    assert "    - {name: least-allocated, weight: 2, params: {cpu: 3}}\n" in result["manifest"]


def test_text_equals_the_form(viewer: Api) -> None:
    result = checked(viewer, DRAFT)
    again = checked(viewer, result["manifest"], kind="application/yaml")
    assert again == result


def test_draft_equal_to_the_active_policy_has_no_difference(viewer: Api) -> None:
    result = checked(viewer, manifest_of(BUILTIN["spread"]), kind="application/yaml")
    assert (result["valid"], result["diff"]["same"]) == (True, True)


@pytest.mark.parametrize(
    ("draft", "code", "plugin"),
    [
        ({"plugins": []}, "PolicyEmpty", ""),
        ({"plugins": [{"name": "no-such"}]}, "PolicyPluginUnknown", "no-such"),
        ({"plugins": [{"name": "binpack", "weight": 1001}]}, "BodyInvalid", ""),
        (
            {"plugins": [{"name": "gang"}, {"name": "binpack", "params": {"mode": "x"}}]},
            "PolicyParamInvalid",
            "binpack",
        ),
        ({"plugins": [{"name": "gang-sort"}, {"name": "qos-sort"}]}, "PolicyPointDoubled", ""),
    ],
)
def test_error_names_its_plugin(viewer: Api, draft: Any, code: str, plugin: str) -> None:
    result = checked(viewer, draft)
    assert (result["valid"], result["problem"]["code"], result["problem"]["plugin"]) == (False, code, plugin)
    assert result["problem"]["message"]


def test_broken_yaml_is_a_fault_of_the_draft(viewer: Api) -> None:
    result = checked(viewer, "kind: [", kind="application/yaml")
    assert (result["valid"], result["spec"], result["manifest"]) == (False, None, "")


def test_any_version_can_be_compared_with(api: Callable[..., Api], viewer: Api) -> None:
    api("policy-admin")("POST", "policies/spread/versions/", DRAFT, status=201)
    assert checked(viewer, DRAFT, "?against=2")["diff"]["same"]
    assert not checked(viewer, DRAFT, "?against=1")["diff"]["same"]
    unknown = viewer("POST", "policies/spread/check/?against=9", DRAFT)
    refused = unknown.json()
    assert (refused["code"], refused["place"]) == ("PolicyVersionUnknown", "against")
    assert refused["detail"] == "policy spread has no version 9"
    assert refused["hint"] == "GET policies/spread/versions/ lists the existing objects"


def test_new_policy_can_be_checked(viewer: Api) -> None:
    result = viewer("POST", "policies/brand-new/check/", DRAFT, status=200).json()
    assert (result["valid"], result["against"], result["diff"]) == (True, 0, None)


def test_draft_check_creates_no_revision(viewer: Api) -> None:
    before = PolicyRevision.objects.count()
    checked(viewer, DRAFT)
    assert PolicyRevision.objects.count() == before
