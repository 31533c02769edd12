"""A policy is validated before use: every error has a code and a path."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.policy import compile_policy, policy_from_plain
from tests.unit.engine.fleet import REGISTRY, policy_of


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_built_in_policy_compiles(name: str) -> None:
    policy = compile_policy(BUILTIN[name], REGISTRY)
    assert policy.spec.name == name
    assert policy.spec.description
    assert "node-ready" in [plugin.name for plugin in policy.filters]


def test_contract_policies_are_built_in() -> None:
    assert {"hetsched", "default-kube", "first-fit", "best-fit", "spread", "random"} <= set(BUILTIN)
    assert DEFAULT == "hetsched"


@pytest.mark.parametrize(
    ("uses", "code", "place"),
    [
        ([], "PolicyEmpty", "spec.plugins"),
        ([PluginUse("taints"), PluginUse("no-such")], "PolicyPluginUnknown", "spec.plugins[1]"),
        ([PluginUse("taints"), PluginUse("taints")], "PolicyPluginRepeated", "spec.plugins[1]"),
        ([PluginUse("taints", weight=-1.0)], "PolicyWeightInvalid", "spec.plugins[0]"),
        ([PluginUse("taints", weight=1001.0)], "PolicyWeightInvalid", "spec.plugins[0]"),
        ([PluginUse("taints", weight=float("nan"))], "PolicyWeightInvalid", "spec.plugins[0]"),
        ([PluginUse("taints", params={"strict": True})], "PolicyParamInvalid", "spec.plugins[0].params"),
        ([PluginUse("pod-affinity", params={"hard_weight": 101})], "PolicyParamInvalid", "spec.plugins[0].params"),
        ([PluginUse("pod-affinity", params={"hard_weight": "1"})], "PolicyParamInvalid", "spec.plugins[0].params"),
        (
            [PluginUse("tightest-fit", params={"cpu": float("inf")})],
            "PolicyParamInvalid",
            "spec.plugins[0].params",
        ),
    ],
)
def test_errors_have_code_and_place(uses: list[PluginUse], code: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        compile_policy(PolicySpec("mine", tuple(uses)), REGISTRY)
    assert (caught.value.code, caught.value.place) == (code, place)


def test_unknown_plugin_error_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        policy_of("no-such")
    assert "node-ready" in caught.value.hint


def test_policy_object_is_parsed() -> None:
    plain = {
        "plugins": [{"name": "resource-fit"}, {"name": "binpack", "weight": 2, "params": {"mode": "upstream"}}],
        "ties": {"by": "random", "seed": 7},
    }
    spec = policy_from_plain(plain, name="mine")
    assert spec.plugins == (PluginUse("resource-fit"), PluginUse("binpack", 2.0, {"mode": "upstream"}))
    assert (spec.name, spec.ties.by, spec.ties.seed) == ("mine", "random", 7)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"plugins": "taints"},
        {"plugins": [{"weight": 1}]},
        {"plugins": [{"name": "taints", "wieght": 1}]},
        {"plugins": [{"name": "taints"}], "ties": {"by": "luck"}},
    ],
)
def test_malformed_policy_object_is_rejected(plain: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        policy_from_plain(plain, name="mine")
    assert caught.value.code == "PolicyMalformed"


def test_malformed_policy_object_is_rejected_with_path_and_hint() -> None:
    with pytest.raises(InputError) as caught:
        policy_from_plain({"plugins": [{"name": "taints", "weight": -1}]}, name="mine")
    error = caught.value
    assert (error.place, "$" in error.message, bool(error.hint)) == ("spec.plugins[0].weight", False, True)


def test_parameters_belong_to_one_policy() -> None:
    lenient, strict = (policy_of(PluginUse("gpu-fit", params={"check": check})) for check in ("count", "all"))
    assert lenient.plugins[0].instance.params.check == "count"
    assert strict.plugins[0].instance.params.check == "all"


def test_plugins_keep_the_order_of_the_policy() -> None:
    policy = policy_of("taints", "resource-fit", "node-ready")
    assert [plugin.name for plugin in policy.filters] == ["taints", "resource-fit", "node-ready"]
