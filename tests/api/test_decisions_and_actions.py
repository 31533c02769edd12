"""The ledger keeps decisions with their reasons; actions on workloads require a reason."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import delete_finished_workloads, release, retention
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from web.api.whatif import what_if

from .conftest import POD, Api


def test_placement_has_node_policy_and_snapshot(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    shown = operator.get(f"decisions/{row['id']}/")
    assert {name: shown[name] for name in row} == row
    assert (shown["node"], shown["workload"], shown["policyRule"]) == ("n1", decided, "cluster")
    assert shown["snapshot"]
    assert [node["name"] for node in shown["nodes"]] == ["n1", "n2"]


def test_rejection_has_node_counts_by_filter(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="never-fits")["items"]
    shown = operator.get(f"decisions/{row['id']}/")
    assert [(reason["plugin"], reason["nodes"]) for reason in shown["reasons"]] == [("resource-fit", 2)]
    assert shown["node"] is None


def test_decision_matrix_is_recomputed(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    nodes = operator.get(f"decisions/{row['id']}/", explain="true")["nodes"]
    assert [(node["name"], node["rank"]) for node in nodes] == [("n1", 1), ("n2", 2)]
    assert nodes[0]["total"] == sum(score["weighted"] for score in nodes[0]["scores"]) > 0


@pytest.mark.parametrize("part", ["explain", "nearestFit"])
def test_recomputations_share_the_limit_of_what_ifs(
    operator: Api, decided: str, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    monkeypatch.setattr(what_if, "_running", threading.BoundedSemaphore(1))
    monkeypatch.setattr(what_if, "PATIENCE_SECONDS", 0.01)
    with what_if._running:
        operator("GET", f"decisions/{row['id']}/", status=200)
        refused = operator("GET", f"decisions/{row['id']}/?{part}=true", status=503).json()
    assert refused["code"] == "WhatIfBusy"
    operator("GET", f"decisions/{row['id']}/?{part}=true", status=200)


def test_rejection_has_the_nearest_fit(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="never-fits")["items"]
    assert operator.get(f"decisions/{row['id']}/")["nearestFit"] is None
    (fit,) = operator.get(f"decisions/{row['id']}/", nearestFit="true")["nearestFit"]
    # The other pod holds 500m of n1, so only n2 has all of its 8 CPUs left.
    assert (fit["field"], fit["from"], fit["to"], fit["nodes"]) == ("resources.requests.cpu", "900", "8", ["n2"])


def test_placement_has_the_margin_of_its_node(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    shown = operator.get(f"decisions/{row['id']}/", nearestFit="true", explain="true")
    first, second = shown["nodes"]
    assert (shown["nearestFit"], shown["tipping"]["node"], shown["tipping"]["runnerUp"]) == ([], "n1", "n2")
    assert shown["tipping"]["margin"] == pytest.approx(first["total"] - second["total"])


def test_unavailable_recomputation_is_left_out(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="never-fits")["items"]
    operator("POST", "nodes/n2/actions/", {"action": "cordon", "reason": "x"}, if_match="*", status=200)
    assert operator.get(f"decisions/{row['id']}/", nearestFit="true")["nearestFit"] is None


def test_unavailable_matrix_returns_410_with_the_summary(operator: Api, decided: str) -> None:
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    operator("POST", "nodes/n2/actions/", {"action": "cordon", "reason": "x"}, if_match="*", status=200)
    problem = operator("GET", f"decisions/{row['id']}/?explain=true", status=410).json()
    assert problem["code"] == "DecisionExpired"
    assert row["summary"] in problem["detail"]
    operator("GET", f"decisions/{row['id']}/", status=200)


def test_workload_shows_its_pods_and_state_durations(operator: Api, decided: str) -> None:
    shown = operator.get(f"workloads/{decided}/")
    assert (shown["state"], shown["podCount"], shown["podsNext"]) == ("never-fits", 2, None)
    assert [(pod["pod"], pod["state"], pod["node"]) for pod in shown["pods"]] == [
        ("default/web", "placed", "n1"),
        ("default/big", "never-fits", None),
    ]
    web, big = shown["pods"]
    assert web["message"] is None
    assert big["message"] == operator.get(f"decisions/{big['decision']}/")["summary"]
    assert [span["state"] for span in shown["states"]] == ["pending", "never-fits"]
    assert (shown["states"][0]["seconds"] >= 0, shown["states"][1]["seconds"]) == (True, None)


def test_failed_run_has_a_reason(operator: Api, cluster: Any, decided: str) -> None:
    pod = Pod.objects.get(name="web")
    release(cluster.pk, [pod.pk], to=State.FAILED, reason="exit", message="container main: exit code 3, OOMKilled")
    shown = operator.get(f"workloads/{decided}/")["pods"][0]
    assert (shown["state"], shown["message"]) == ("failed", "container main: exit code 3, OOMKilled")


def test_delete_releases_the_reservation(operator: Api, decided: str) -> None:
    assert operator.get("nodes/n1/")["podCount"] == 1
    gone = operator("DELETE", f"workloads/{decided}/?reason=superseded", status=200).json()
    assert gone["state"] == "cancelled"
    assert operator.get("nodes/n1/")["podCount"] == 0
    assert AuditEntry.objects.get(action="workload.cancel").reason == "superseded"
    again = operator("DELETE", f"workloads/{decided}/", status=200).json()
    assert again["state"] == "cancelled"


def act(caller: Api, workload: str, **body: Any) -> Any:
    return caller("POST", f"workloads/{workload}/actions/", {"reason": "now", **body}, if_match="*")


def test_retry_decides_rejected_pods_again(operator: Api, decided: str) -> None:
    answer = act(operator, decided, action="retry")
    assert {pod["pod"]: pod["state"] for pod in answer.json()["pods"]} == {
        "default/web": "placed",
        "default/big": "pending",
    }


def test_retry_without_failed_pods_is_rejected(operator: Api, cluster: Any) -> None:
    workload = operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()["id"]
    answer = act(operator, workload, action="retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "NothingToRetry")


def test_only_operators_change_the_priority(operator: Api, api: Any, cluster: Any) -> None:
    workload = operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()["id"]
    assert act(api("submitter"), workload, action="priority", priority=9).status_code == 403
    assert act(operator, workload, action="priority").json()["code"] == "ActionIncomplete"
    assert act(operator, workload, action="priority", priority=9).json()["priority"] == 9
    assert Pod.objects.get().priority == 9


def test_submitter_cancels_own_workload(api: Any, decided: str) -> None:
    assert act(api("submitter"), decided, action="cancel").json()["state"] == "cancelled"


@pytest.mark.parametrize("body", [{"action": "explode"}, {}, {"action": "cancel", "reason": ""}, {"action": None}])
def test_unknown_action_is_rejected(operator: Api, decided: str, body: Any) -> None:
    assert act(operator, decided, **body).status_code == 400


def test_permalink_of_an_expired_decision_keeps_its_summary(
    operator: Api, cluster: Any, decided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LATEST", 0)
    (row,) = operator.get("decisions/", verdict="placed")["items"]
    operator("DELETE", f"workloads/{decided}/", if_match="*")
    delete_finished_workloads(cluster.pk, finished_before=timezone.now() + timedelta(seconds=1))
    problem = operator("GET", f"decisions/{row['id']}/", status=410).json()
    assert problem["code"] == "DecisionExpired"
    assert row["summary"] in problem["detail"]
    operator("GET", f"decisions/{row['id'] + 1000}/", status=404)
