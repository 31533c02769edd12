"""`generateName`: new names for each submission, the same ones for a repeated key, the predicted ones for a plan."""

from __future__ import annotations

from typing import Any

from hetsched.inventory.models import Cluster
from hetsched.placement.models import IdempotencyKey, Pod, Workload

from .conftest import POD, Api

MADE = POD.replace("name: web", "generateName: ci-")
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {generateName: run-}
spec: {parallelism: 2, template: {spec: {containers: [{name: main, image: "job:1"}]}}}
"""


def submitted(caller: Api, manifest: str = MADE, key: str = "", **more: Any) -> list[str]:
    headers = {"idempotency_key": key} if key else {}
    answer = caller("POST", "workloads/", {"manifest": manifest, **more}, status=202, **headers).json()
    return [pod["pod"] for pod in answer["pods"]]


def test_repeated_manifest_gets_new_names(operator: Api, cluster: Cluster) -> None:
    (first,), (second,) = submitted(operator), submitted(operator)
    assert first != second
    assert all(name.startswith("default/ci-") and len(name) == len("default/ci-") + 8 for name in (first, second))


def test_two_submissions_of_one_manifest_have_different_names(operator: Api, cluster: Cluster) -> None:
    assert len(set(submitted(operator, f"{MADE}---\n{MADE}"))) == 2


def test_pods_of_a_controller_have_its_generated_name(operator: Api, cluster: Cluster) -> None:
    first, second = submitted(operator, JOB)
    assert (first.rpartition("-")[0], first[-2:], second[-2:]) == (second.rpartition("-")[0], "-0", "-1")
    assert submitted(operator, JOB)[0] != first


def test_names_follow_from_the_key_without_stored_state(operator: Api, cluster: Cluster) -> None:
    first = submitted(operator, key="build-17")
    assert submitted(operator, key="build-17") == first
    for rows in (IdempotencyKey, Pod, Workload):
        rows._default_manager.all().delete()
    assert submitted(operator, key="build-17") == first
    assert submitted(operator, key="build-18") != first


def test_batch_items_get_distinct_names(operator: Api, cluster: Cluster) -> None:
    for headers in ({}, {"idempotency_key": "night"}):
        body = {"items": [{"manifest": MADE}, {"manifest": MADE}], "allOrNothing": True}
        answer = operator("POST", "submissions/", body, status=202, **headers).json()
        assert len({item["pods"][0]["pod"] for item in answer["items"]}) == 2


def test_planned_names_are_the_submitted_ones(operator: Api, cluster: Cluster) -> None:
    plans = [operator("POST", "what-if/", {"manifest": MADE, "plan": True}, status=200).json() for _ in range(2)]
    planned = [plan["placements"][0]["pod"] for plan in plans]
    assert planned[0] != planned[1]
    assert submitted(operator, plan=plans[0]["plan"]["token"], key="k") == planned[:1]


def test_what_if_names_are_deterministic(operator: Api, cluster: Cluster) -> None:
    answers = [operator("POST", "what-if/", {"manifest": MADE}, status=200).json() for _ in range(2)]
    assert [answer["placements"][0]["pod"] for answer in answers] == ["default/ci-0", "default/ci-0"]
