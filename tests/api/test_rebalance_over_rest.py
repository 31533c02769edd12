"""Rebalancing advice over REST: requested, confirmed, and executed only while the plan is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.adapters.kubernetes.pods.eviction import EvictionResponse, EvictionResult, EvictionTarget
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.models import Cluster, Connection
from hetsched.inventory.node_events import is_synced
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import import_cluster, rebalance_state, rebalances
from hetsched.placement.actions.rebalance_state import prune_plans
from hetsched.placement.actions.rebalances import advance_plan
from hetsched.placement.models import Decision, Eviction, Pod, Rebalance, RebalanceMove, Rejection, Reservation
from hetsched.placement.queries.topics import snapshot
from tests.builders import a_node, a_pod
from tests.listener import Listener
from tests.situations import placed, submitted
from workers import evict
from workers.schedule import run

from ..budget_server import BudgetServer
from .conftest import POD, Api

NEW = POD.replace("web", "new").replace("500m", "'4'")
ASK = {"goal": "room", "manifest": NEW}


@pytest.fixture
def tight(policies: None) -> Cluster:
    """Return a cluster where a has 5 - 4 = 1 CPU left and b 4 - 1 = 3: for 4, right has to move from b to a."""
    nodes = (a_node("a").cpu(5).build(), a_node("b").cpu(4).build())
    cluster = import_cluster(ClusterContent(nodes=nodes), name="lab", actor=SYSTEM)
    placed(cluster, "a", a_pod("left").cpu(4))
    placed(cluster, "b", a_pod("right").cpu(1))
    return cluster


def advice(operator: Api, **more: Any) -> Any:
    return operator("POST", "clusters/lab/advice/", {**ASK, **more}, status=200)


def confirm(operator: Api, tag: str, status: int = 202, **more: Any) -> Any:
    asked = {**ASK, "reason": "make room", **more}
    return operator("POST", "clusters/lab/rebalances/", asked, if_match=tag, status=status).json()


def test_advice_lists_moves_without_writes(tight: Cluster, operator: Api) -> None:
    before = Cluster.objects.get().revision
    found = advice(operator).json()
    (move,) = found["moves"]
    assert [(pod["pod"], pod["from"], pod["to"]) for pod in move["pods"]] == [("default/right", "b", "a")]
    assert (found["verdict"], found["search"]["fewest"], move["pods"][0]["comesBack"]) == ("plan", True, True)
    assert Cluster.objects.get().revision == before
    assert not Rebalance.objects.exists()


def test_confirmed_plan_is_executed_with_decisions_and_audit_entries(tight: Cluster, operator: Api) -> None:
    client = Listener(f"workload:{Pod.objects.get(name='right').workload_id}")
    plan = confirm(operator, advice(operator)["ETag"])
    assert (plan["state"], [move["state"] for move in plan["moves"]]) == ("running", ["waiting"])
    advance_plan(tight.pk)
    shown = operator.get(f"clusters/lab/rebalances/{plan['id']}/")
    assert (shown["state"], shown["moves"][0]["state"], shown["moves"][0]["cameTo"]) == ("done", "moved", "a")
    right = Pod.objects.get(name="right")
    assert right.node is not None
    assert (right.node.name, right.state) == ("a", "placed")
    assert Reservation.objects.filter(pod=right, active=True).count() == 1
    assert "moved from b to a" in Decision.objects.order_by("-id")[0].summary
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions[-3:] == ["rebalance.confirm", "pod.move", "rebalance.done"]
    client.listen()
    assert client.document == snapshot(client.topic).data
    workload = submitted(tight, a_pod("new").cpu(4))
    run(tight.pk)
    assert [pod.node.name for pod in workload.pods.all() if pod.node] == ["b"]


def test_move_wakes_the_scheduler_for_pending_pods(
    tight: Cluster, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm(operator, advice(operator)["ETag"])
    woken: list[tuple[Any, ...]] = []
    monkeypatch.setattr("hetsched.placement.dispatch.wake", lambda *message: woken.append(message))
    advance_plan(tight.pk)
    assert (tight.pk,) in woken


def test_move_decision_can_be_recomputed(tight: Cluster, operator: Api) -> None:
    confirm(operator, advice(operator)["ETag"])
    advance_plan(tight.pk)
    decision = Decision.objects.order_by("-id")[0]
    again = operator.get(f"decisions/{decision.pk}/again/")
    assert (again["same"], again["node"]) == (True, "a")
    nodes = operator.get(f"decisions/{decision.pk}/", explain="true")["nodes"]
    assert {node["name"]: node["feasible"] for node in nodes} == {"a": True, "b": False}  # it moved away from b


def test_advice_frees_capacity_for_a_pending_workload(tight: Cluster, operator: Api) -> None:
    workload = submitted(tight, a_pod("new").cpu(4))
    run(tight.pk)
    body = {"goal": "room", "workload": workload.pk}
    found = operator("POST", "clusters/lab/advice/", body, status=200)
    assert len(found.json()["moves"]) == 1
    body["reason"] = "make room"
    operator("POST", "clusters/lab/rebalances/", body, if_match=found["ETag"], status=202)
    advance_plan(tight.pk)
    run(tight.pk)
    (pod,) = workload.pods.all()
    assert pod.node is not None
    assert pod.node.name == "b"


def test_plan_is_rejected_only_after_relevant_changes(tight: Cluster, operator: Api) -> None:
    tag = advice(operator)["ETag"]
    placed(tight, "a", a_pod("tiny").cpu("100m").memory("1Mi"))
    found = confirm(operator, tag, status=412)  # a has 0.9 CPUs left, so right does not fit there any more
    assert found["code"] == "PreconditionFailed"
    assert confirm(operator, "", status=428)["code"] == "PreconditionRequired"
    placed(tight, "b", a_pod("other").cpu("100m"))
    assert not Rebalance.objects.exists()


def test_plan_stops_at_an_impossible_move(tight: Cluster, operator: Api) -> None:
    plan = confirm(operator, advice(operator)["ETag"])
    placed(tight, "a", a_pod("faster").cpu(1))
    advance_plan(tight.pk)
    shown = operator.get(f"clusters/lab/rebalances/{plan['id']}/")
    assert (shown["state"], shown["moves"][0]["state"]) == ("stopped", "stopped")
    assert "default/right cannot move now" in shown["message"]
    entry = AuditEntry.objects.get(action="rebalance.stop")
    assert (entry.actor, entry.reason) == ("hetsched", shown["message"])
    right = Pod.objects.get(name="right")
    assert right.node is not None
    assert right.node.name == "b"


def test_active_plan_excludes_others_and_can_be_stopped(tight: Cluster, operator: Api) -> None:
    tag = advice(operator)["ETag"]
    plan = confirm(operator, tag)
    assert confirm(operator, tag, status=400)["code"] == "RebalanceRunning"
    address = f"clusters/lab/rebalances/{plan['id']}/"
    body = {"action": "stop", "reason": "not now"}
    stopped = operator("POST", f"{address}actions/", body, if_match=operator.tag(address), status=200).json()
    assert stopped["state"] == "stopped"
    assert advance_plan(tight.pk) == 0
    right = Pod.objects.get(name="right")
    assert right.node is not None
    assert right.node.name == "b"


def test_plans_are_forgotten_some_time_after_their_end(tight: Cluster, operator: Api) -> None:
    confirm(operator, advice(operator)["ETag"])
    now = timezone.now()
    assert prune_plans(tight.pk, before=now) == 0  # in progress
    advance_plan(tight.pk)
    assert prune_plans(tight.pk, before=now) == 0
    assert prune_plans(tight.pk, before=timezone.now() + timedelta(seconds=1)) > 0
    assert not Rebalance.objects.exists()


def test_moves_are_chosen_one_by_one(tight: Cluster, operator: Api) -> None:
    tag = advice(operator)["ETag"]
    assert confirm(operator, tag, status=400, steps=[])["code"] == "NothingToMove"
    assert confirm(operator, tag, status=400, steps=[1])["code"] == "StepUnknown"
    assert len(confirm(operator, tag, steps=[0])["moves"]) == 1


def test_confirmation_requires_a_reason_and_the_operator_role(
    tight: Cluster, operator: Api, api: Callable[..., Api]
) -> None:  # fmt: skip
    tag = advice(operator)["ETag"]
    assert confirm(operator, tag, status=400, reason=" ")["code"] == "ReasonMissing"
    assert confirm(api("submitter"), tag, status=403)["code"] == "PermissionDenied"
    limited = api("operator", "team")
    assert limited("POST", "clusters/lab/advice/", ASK, status=403).json()["code"] == "NamespaceNotAllowed"


@pytest.fixture
def live(tight: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return the cluster marked as live, with right created by a ReplicaSet."""
    for module in ("rebalance_state", "rebalances"):
        monkeypatch.setattr(f"hetsched.placement.actions.{module}.is_synced", lambda cluster: True)
    Cluster.objects.update(kind="kubernetes")
    Pod.objects.update(state="binding")
    Pod.objects.update(state="bound")
    controlled = a_pod("right").cpu(1).having(controller="ReplicaSet/right", controller_uid="rs", uid="u1").build()
    Pod.objects.filter(name="right").update(spec=controlled, uid="u1")
    return tight


def test_plan_of_a_cluster_with_stale_data_is_refused(
    live: Cluster, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_state, "is_synced", is_synced)  # no informer has listed the cluster
    problem = confirm(operator, advice(operator)["ETag"], status=400)
    assert problem["code"] == "ClusterNotFollowed"
    assert not Rebalance.objects.exists()


def test_new_pod_of_the_same_name_is_not_moved(live: Cluster, operator: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = confirm(operator, advice(operator)["ETag"])
    tried = rebalances._try_step

    def while_it_is_replaced(*given: Any) -> Any:
        found = tried(*given)
        Pod.objects.filter(name="right").update(uid="u2")
        return found

    monkeypatch.setattr(rebalances, "_try_step", while_it_is_replaced)
    advance_plan(live.pk)
    assert not Eviction.objects.exists()
    shown = operator.get(f"clusters/lab/rebalances/{plan['id']}/")
    assert (shown["state"], shown["message"]) == ("stopped", "step 1: default/right was deleted from b")


def test_live_pod_is_evicted_and_its_owner_avoids_the_node(live: Cluster, operator: Api) -> None:
    plan = confirm(operator, advice(operator)["ETag"])
    advance_plan(live.pk)
    (eviction,) = Eviction.objects.all()
    assert (eviction.state, eviction.victim.name, eviction.nomination) == ("wanted", "right", None)
    assert [(row.node.name, row.reason) for row in Rejection.objects.all()] == [("b", "MovedAway")]
    assert advance_plan(live.pk) == 0  # it waits for its deletion
    assert RebalanceMove.objects.get().state == "leaving"
    Eviction.objects.update(message="the disruption budget web needs it", not_before=None)
    advance_plan(live.pk)
    shown = operator.get(f"clusters/lab/rebalances/{plan['id']}/")
    assert (shown["state"], Eviction.objects.get().state) == ("stopped", "dropped")
    assert "may not be evicted: the disruption budget web needs it" in shown["message"]


def test_plan_ignores_evictions_of_other_actions(live: Cluster, operator: Api) -> None:
    """Regression: a plan stopped for the rejected eviction of a gang's recovery, and dropped that eviction."""
    plan = confirm(operator, advice(operator)["ETag"])
    advance_plan(live.pk)
    (own,) = Eviction.objects.all()
    of_gang = Eviction.objects.create(
        cluster=live, victim=own.victim, reason="Binding reverted", message="the disruption budget web needs it"
    )
    assert advance_plan(live.pk) == 0
    assert Rebalance.objects.get().state == "running"
    address, body = f"clusters/lab/rebalances/{plan['id']}/", {"action": "stop", "reason": "enough"}
    operator("POST", f"{address}actions/", body, if_match=operator.tag(address), status=200)
    assert dict(Eviction.objects.values_list("id", "state")) == {own.pk: "dropped", of_gang.pk: "wanted"}


@pytest.fixture
def live_gang(live: Cluster) -> Cluster:
    """Return the live cluster with two members of a gang, of 500m each, in the place of right."""
    Pod.objects.filter(name="right").delete()
    placed(live, "b", *(a_pod(f"g-{number}").cpu("500m").gang("g", 2).having(uid=f"g{number}") for number in range(2)))
    Pod.objects.filter(gang="g").update(state="binding")
    Pod.objects.filter(gang="g").update(state="bound")
    return live


def test_gang_is_evicted_only_if_all_evictions_are_permitted(
    live_gang: Cluster, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def evict_of(_: Any, victim: EvictionTarget, *, only_ask: bool = False) -> EvictionResponse:
        asked.append((victim.name, only_ask))
        refused = victim.name == "g-1"
        return EvictionResponse(EvictionResult.REFUSED if refused else EvictionResult.ASKED, "the budget needs it")

    for name, value in (("evict", evict_of), ("is_synced", lambda _: True), ("api_of", lambda _: None)):
        monkeypatch.setattr(f"workers.evict.{name}", value)
    Connection.objects.get_or_create(cluster=live_gang)
    confirm(operator, advice(operator)["ETag"])
    advance_plan(live_gang.pk)
    assert Eviction.objects.filter(state="wanted").count() == 2
    evict.run(live_gang.pk)
    assert asked == [("g-0", True), ("g-1", True)]
    advance_plan(live_gang.pk)
    assert Rebalance.objects.get().state == "stopped"
    assert set(Eviction.objects.values_list("state", flat=True)) == {"dropped"}


def test_gang_is_evicted_only_if_budgets_allow_all_members(
    live_gang: Cluster, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def evict_of(_: Any, victim: EvictionTarget, *, only_ask: bool = False) -> EvictionResponse:
        asked.append((victim.name, only_ask))
        return EvictionResponse(EvictionResult.ASKED)

    server = BudgetServer(allowed=1, ready={"g-0": "g0", "g-1": "g1"})
    for name, value in (("evict", evict_of), ("is_synced", lambda _: True), ("api_of", lambda _: server)):
        monkeypatch.setattr(f"workers.evict.{name}", value)
    Connection.objects.get_or_create(cluster=live_gang)
    confirm(operator, advice(operator)["ETag"])
    advance_plan(live_gang.pk)
    evict.run(live_gang.pk)
    assert asked == [("g-0", True), ("g-1", True)]
    advance_plan(live_gang.pk)
    message = "the disruption budget default/guard allows only 1 of the planned evictions"
    assert Rebalance.objects.get().message == f"default/g-1 may not be evicted: {message}"


def test_plan_stops_at_a_changed_gang(live_gang: Cluster, operator: Api) -> None:
    confirm(operator, advice(operator)["ETag"])
    placed(live_gang, "b", a_pod("g-2").cpu("500m").gang("g", 2).having(uid="g2"))
    Pod.objects.filter(name="g-2").update(state="binding")
    Pod.objects.filter(name="g-2").update(state="bound")
    advance_plan(live_gang.pk)
    assert not Eviction.objects.exists()
    assert Rebalance.objects.get().message == (
        "step 1: default/g-2 joined the gang of default/g-0, and a gang moves as a whole"
    )


def test_balance_and_rare_are_answered_too(tight: Cluster, operator: Api) -> None:
    found = operator("POST", "clusters/lab/advice/", {"goal": "balance", "target": 0.5}, status=200).json()
    assert found["verdict"] == "nothing-to-do"
    assert operator("POST", "clusters/lab/advice/", {"goal": "rare"}, status=200).json()["goal"] == "rare"
    assert operator("POST", "clusters/lab/advice/", {"goal": "balance", "target": 2}, status=400).json()["place"]
