"""Plans: submitting a what-if result places the pods as predicted, or submits nothing and returns a new result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.inventory.models import Cluster, Node
from hetsched.placement import actions
from hetsched.placement.actions import holds
from hetsched.placement.models import Hold, Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from web.api.whatif import plan_tokens
from workers.schedule import run

from .conftest import POD, Api

BIG = POD.replace("500m", "5")


def what_if(caller: Api, manifest: str = BIG, **more: Any) -> Any:
    return caller("POST", "what-if/", {"manifest": manifest, "plan": True, **more}, status=200).json()


def planned(caller: Api, manifest: str = BIG, **more: Any) -> str:
    return str(what_if(caller, manifest, **more)["plan"]["token"])


def submitted(caller: Api, plan: str, manifest: str = BIG, status: int = 202, **more: Any) -> Any:
    return caller("POST", "workloads/", {"manifest": manifest, "plan": plan, **more}, status=status).json()


def taken(cluster: Cluster, caller: Api, name: str = "taken") -> None:
    """Submit another pod that takes the predicted node."""
    caller("POST", "workloads/", {"manifest": BIG.replace("web", name)}, status=202)
    run(cluster.pk)


def test_plan_equals_a_what_if_and_writes_no_workload(operator: Api, cluster: Cluster) -> None:
    plain = operator("POST", "what-if/", {"manifest": BIG}, status=200).json()
    with_plan = what_if(operator)
    plan = with_plan.pop("plan")
    assert sorted(plan) == ["expiresAt", "token"]
    for answer in (plain, with_plan):
        del answer["evaluatedAt"]
    assert with_plan == plain
    assert not any(rows._default_manager.exists() for rows in (Hold, Reservation, Workload))


def test_submitted_plan_is_carried_out(operator: Api, cluster: Cluster) -> None:
    answer = what_if(operator)
    accepted = submitted(operator, answer["plan"]["token"])
    # The capacity is reserved in the response, before any decision.
    assert Reservation.objects.get(active=True).node.name == answer["placements"][0]["node"]
    run(cluster.pk)
    (pod,) = operator.get(f"workloads/{accepted['id']}/")["pods"]
    assert (pod["state"], pod["node"]) == ("placed", answer["placements"][0]["node"])
    assert Reservation.objects.filter(active=True).count() == 1
    assert check_invariants() == []


def test_planned_gpus_are_the_assigned_ones(operator: Api, cluster: Cluster) -> None:
    manifest = POD.replace("cpu: 500m", "cpu: 500m, nvidia.com/gpu: 1")
    answer = what_if(operator, manifest)
    accepted = submitted(operator, answer["plan"]["token"], manifest)
    run(cluster.pk)
    (pod,) = operator.get(f"workloads/{accepted['id']}/")["pods"]
    assert [card["index"] for card in pod["gpus"]] == [card["index"] for card in answer["placements"][0]["gpus"]]


def test_plan_stays_valid_after_an_irrelevant_change(operator: Api, cluster: Cluster) -> None:
    answer = what_if(operator)
    node = answer["placements"][0]["node"]
    other = next(name for name in ("n1", "n2") if name != node)
    selector = f"spec:\n  nodeSelector: {{kubernetes.io/hostname: {other}}}"
    small = POD.replace("web", "small").replace("spec:", selector, 1)
    Node.objects.get(name=other)
    operator("POST", "workloads/", {"manifest": small}, status=202)
    run(cluster.pk)
    assert submitted(operator, answer["plan"]["token"])["state"] == "pending"


def test_changed_result_is_rejected_with_a_new_plan(operator: Api, cluster: Cluster) -> None:
    before = what_if(operator)
    taken(cluster, operator)
    refused = submitted(operator, before["plan"]["token"], status=412)
    assert (refused["code"], refused["place"]) == ("PlanStale", "plan")
    fresh = refused["whatIf"]
    assert fresh["placements"][0]["node"] != before["placements"][0]["node"]
    assert Workload.objects.count() == 1  # of the other pod
    assert submitted(operator, fresh["plan"]["token"])["state"] == "pending"


def test_rejection_has_no_new_plan_if_no_pod_fits(operator: Api, cluster: Cluster) -> None:
    plan = planned(operator)
    taken(cluster, operator, "first")
    taken(cluster, operator, "second")
    refused = submitted(operator, plan, status=412)
    assert refused["whatIf"]["verdict"] == "not-now"
    assert "plan" not in refused["whatIf"]


def test_expired_plan_is_rejected_with_a_new_one(operator: Api, cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_PLAN_SECONDS = -1
    late = planned(operator)
    settings.HETSCHED_PLAN_SECONDS = 600
    refused = submitted(operator, late, status=412)
    assert refused["code"] == "PlanExpired"
    assert submitted(operator, refused["whatIf"]["plan"]["token"])["state"] == "pending"


@pytest.mark.parametrize(
    "more",
    [{"manifest": BIG.replace("web", "other")}, {"policy": "spread"}, {"priority": 5}],
    ids=["another manifest", "another policy", "another priority"],
)
def test_plan_is_bound_to_its_request(operator: Api, cluster: Cluster, more: dict[str, Any]) -> None:
    refused = operator("POST", "workloads/", {"manifest": BIG, "plan": planned(operator), **more}, status=422)
    assert refused.json()["code"] == "PlanMismatch"


def test_plan_includes_priority_and_policy(operator: Api, cluster: Cluster) -> None:
    plan = planned(operator, policy="spread", priority=5)
    accepted = submitted(operator, plan, policy="spread", priority=5)
    row = Workload.objects.get(pk=accepted["id"])
    assert (row.policy, row.priority) == ("spread", 5)


@pytest.mark.parametrize(
    "spoil",
    [lambda token: token[:-3] + "AAA", lambda token: "x" + token, lambda token: token + "A" * 3000, lambda _: "é"],
    ids=["sealed otherwise", "said otherwise", "too long", "no token"],
)
def test_forged_plan_is_rejected(operator: Api, cluster: Cluster, spoil: Callable[[str], str]) -> None:
    assert submitted(operator, spoil(planned(operator)), status=400)["code"] == "PlanInvalid"


def test_keys_that_were_rotated_still_count(operator: Api, cluster: Cluster, settings: Any) -> None:
    plan = planned(operator)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key, long enough for a signature"
    assert submitted(operator, plan)["state"] == "pending"


def test_plan_token_reveals_nothing(operator: Api, cluster: Cluster) -> None:
    said = plan_tokens.read(planned(operator))
    assert (said.version, said.cluster, said.preempts) == (1, "lab", True)
    assert not {"web", "default", "n1", "n2"} & {said.request, said.answer}


def test_plan_grants_no_permission(operator: Api, api: Callable[..., Api], cluster: Cluster) -> None:
    plan = planned(operator)
    submitted(api("viewer"), plan, status=403)
    submitted(api("submitter", "lab"), plan, status=403)
    assert not Hold.objects.exists()


def test_viewer_creates_a_plan_that_a_submitter_submits(api: Callable[..., Api], cluster: Cluster) -> None:
    assert submitted(api("submitter"), planned(api("viewer")))["state"] == "pending"


@pytest.mark.parametrize(
    "more",
    [
        {"drain": ["n1"]},
        {"copyNodes": {"n1": 1}},
        {"policyDraft": {"plugins": [{"name": "resource-fit"}]}},
        {"cluster": "kind: List\napiVersion: v1\nitems: []"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_supposed_nodes_cannot_be_planned(operator: Api, cluster: Cluster, more: dict[str, Any]) -> None:
    refused = operator("POST", "what-if/", {"manifest": BIG, "plan": True, **more}, status=400)
    assert refused.json()["code"] == "PlanNotPossible"


def test_placement_that_needs_evictions_is_no_plan(operator: Api, cluster: Cluster) -> None:
    taken(cluster, operator, "first")
    taken(cluster, operator, "second")
    urgent = what_if(operator, priority=1000)
    assert urgent["evictions"]
    assert "plan" not in urgent


def test_retry_with_the_same_key_succeeds_with_a_stale_plan(operator: Api, cluster: Cluster) -> None:
    body = {"manifest": BIG, "plan": planned(operator)}
    first = operator("POST", "workloads/", body, idempotency_key="k", status=202)
    run(cluster.pk)
    again = operator("POST", "workloads/", body, idempotency_key="k", status=202)
    assert (again.json(), again["Idempotency-Replayed"]) == (first.json(), "true")
    assert Workload.objects.count() == 1


def test_concurrent_submission_makes_the_plan_be_decided_again(
    operator: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, reserve, tries = planned(operator), holds._reserve, []

    def slow(*args: Any, **more: Any) -> Hold:
        tries.append(args)
        if len(tries) == 1:
            raise actions.Conflict("somebody booked")
        return reserve(*args, **more)

    monkeypatch.setattr(holds, "_reserve", slow)
    assert submitted(operator, plan)["state"] == "pending"
    assert len(tries) == 2
    assert Pod.objects.filter(origin=Pod.HELD).count() == 1
