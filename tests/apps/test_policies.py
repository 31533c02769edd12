"""A policy is drafted, activated with a reason, and rolled back; an invalid one never becomes a revision."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.journal.models import AuditEntry
from hetsched.policies import actions
from hetsched.policies.actions import activate, ensure_builtins, rollback, save_draft
from hetsched.policies.effective import Chooser, active_specs
from hetsched.policies.models import Policy, PolicyRevision
from tests.builders import a_pod
from tests.situations import ALICE, a_cluster

pytestmark = pytest.mark.django_db


def _spec(weight: float = 1.0, name: str = "mine", **params: Any) -> PolicySpec:
    return PolicySpec(name, (PluginUse("resource-fit"), PluginUse("least-allocated", weight, params)))


def _states(name: str = "mine") -> dict[int, str]:
    return dict(PolicyRevision.objects.filter(policy__name=name).order_by("version").values_list("version", "state"))


def test_draft_is_not_used_for_decisions() -> None:
    save_draft(_spec(), actor=ALICE)
    assert _states() == {1: "draft"}
    assert Policy.objects.get(name="mine").active_version == 0
    assert active_specs({"mine"}) == {}


def test_activation_is_recorded_in_the_audit_trail() -> None:
    for weight in (1.0, 2.0):
        save_draft(_spec(weight), actor=ALICE)
    activate("mine", 1, actor=ALICE, reason="first")
    activate("mine", 2, actor=ALICE, reason="spread more")
    assert _states() == {1: "retired", 2: "active"}
    assert active_specs({"mine"})["mine"].plugins[1].weight == 2.0
    entry = AuditEntry.objects.filter(action="policy.activate", object_name="mine").first()
    assert entry is not None
    assert (entry.actor, entry.reason, entry.details) == ("alice", "spread more", {"before": 1, "after": 2})


def test_rollback_restores_the_previous_version_and_back() -> None:
    for weight in (1.0, 2.0, 3.0):
        save_draft(_spec(weight), actor=ALICE)
    activate("mine", 1, actor=ALICE, reason="first")
    activate("mine", 3, actor=ALICE, reason="third")
    assert rollback("mine", actor=ALICE, reason="worse").version == 1
    assert rollback("mine", actor=ALICE, reason="no, better").version == 3
    assert _states() == {1: "retired", 2: "draft", 3: "active"}


def test_concurrent_activation_is_rejected() -> None:
    save_draft(_spec(), actor=ALICE)
    save_draft(_spec(2.0), actor=ALICE)
    activate("mine", 1, actor=ALICE, reason="first")
    with pytest.raises(InputError) as refused:
        activate("mine", 2, actor=ALICE, reason="I saw none active", expected_active=0)
    assert refused.value.code == "PolicyChanged"
    assert _states() == {1: "active", 2: "draft"}


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda: activate("mine", 1, actor=ALICE, reason=" "), "ReasonMissing"),
        (lambda: activate("mine", 9, actor=ALICE, reason="r"), "PolicyVersionUnknown"),
        (lambda: activate("yours", 1, actor=ALICE, reason="r"), "PolicyUnknown"),
        (lambda: rollback("mine", actor=ALICE, reason="r"), "PolicyNothingToRollBack"),
    ],
)
def test_failed_activation_has_a_reason(act: Any, code: str) -> None:
    save_draft(_spec(), actor=ALICE)
    with pytest.raises(InputError) as refused:
        act()
    assert refused.value.code == code


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0, 1000.5, 1e308])
def test_invalid_weights_are_rejected(weight: float) -> None:
    with pytest.raises(InputError) as refused:
        save_draft(_spec(weight), actor=ALICE)
    assert refused.value.code == "PolicyWeightInvalid"
    assert "between 0 and 1000" in str(refused.value)
    assert not Policy.objects.filter(name="mine").exists()


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (_spec(cpu=-1), "PolicyParamInvalid"),
        (_spec(cpu=math.nan), "PolicyParamInvalid"),
        (_spec(no_such=1), "PolicyParamInvalid"),
        (PolicySpec("mine", ()), "PolicyEmpty"),
        (PolicySpec("mine", (PluginUse("no-such"),)), "PolicyPluginUnknown"),
        (PolicySpec("mine", (PluginUse("taints"), PluginUse("taints"))), "PolicyPluginRepeated"),
        (_spec(name="Not A Name"), "PolicyNameInvalid"),
    ],
)
def test_policy_that_cannot_run_is_not_saved(spec: PolicySpec, code: str) -> None:
    with pytest.raises(InputError) as refused:
        save_draft(spec, actor=ALICE)
    assert refused.value.code == code
    assert not PolicyRevision.objects.filter(policy__name=spec.name).exists()


def test_built_in_policies_are_created_once() -> None:
    ensure_builtins()
    assert set(Policy.objects.values_list("name", flat=True)) >= set(BUILTIN)
    assert ensure_builtins() == []


def test_release_updates_an_unchanged_built_in_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_builtins()
    changed = msgspec.structs.replace(BUILTIN["spread"], description="better")
    monkeypatch.setattr(actions, "BUILTIN", {"spread": changed})
    assert ensure_builtins() == ["spread"]
    assert _states("spread") == {1: "retired", 2: "active"}


def test_release_keeps_a_changed_built_in_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_builtins()
    own = msgspec.structs.replace(BUILTIN["spread"], description="ours")
    activate("spread", save_draft(own, actor=ALICE).version, actor=ALICE, reason="ours")
    changed = msgspec.structs.replace(BUILTIN["spread"], description="better")
    monkeypatch.setattr(actions, "BUILTIN", {"spread": changed})
    ensure_builtins()
    assert _states("spread") == {1: "retired", 2: "active", 3: "draft"}


# -- selection of a pod's policy --------------------------------------------------------------------------------------


def test_policy_selection_uses_the_most_specific_rule() -> None:
    cluster = a_cluster()
    pod, named = a_pod().build(), a_pod().policy("spread").build()
    chosen = [
        Chooser(cluster).choose(named, "random")[0],
        Chooser(cluster).choose(named)[0],
        Chooser(cluster).choose(pod)[0],
    ]
    assert [(one.name, one.rule) for one in chosen] == [
        ("random", "request"), ("spread", "annotation"), ("hetsched", "cluster"),
    ]  # fmt: skip
    actions.set_namespace_rule(cluster, "default", "first-fit", [], actor=ALICE)
    ruled = Chooser(cluster).choose(pod)[0]
    assert (ruled.name, ruled.rule) == ("first-fit", "namespace")


def test_forbidden_policy_is_rejected() -> None:
    cluster = a_cluster()
    actions.set_namespace_rule(cluster, "default", "", ["hetsched", "spread"], actor=ALICE)
    _, problem = Chooser(cluster).choose(a_pod().policy("random").build())
    assert problem is not None
    assert (problem.code, problem.field) == ("PolicyNotAllowed", "hetsched.io/policy")
    with pytest.raises(InputError) as refused:
        Chooser(cluster).choose(a_pod().build(), "random")
    assert refused.value.code == "PolicyNotAllowed"


def test_unknown_policy_name_makes_the_pod_misconfigured() -> None:
    _, problem = Chooser(a_cluster()).choose(a_pod().policy("no-such").build())
    assert problem is not None
    assert problem.code == "PolicyUnknown"


def test_requested_policy_resolves_to_the_active_version() -> None:
    cluster = a_cluster()
    spec = msgspec.structs.replace(BUILTIN["spread"], description="ours")
    version = save_draft(spec, actor=ALICE).version
    activate("spread", version, actor=ALICE, reason="ours")
    chooser = Chooser(cluster)
    requested, _ = chooser.choose(a_pod().build(), "spread")
    assert active_specs({requested.name})["spread"].version == version
    assert chooser.choose(a_pod().build())[0].name == "hetsched"
