"""Limits that a token puts on its submissions: a quota and a maximum priority; and the namespace limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.placement.models import Charge, Pod, Workload

from .conftest import POD, Api

YAML = "application/yaml"


def pods(prefix: str, count: int, **more: str) -> str:
    text = (
        POD if not more else POD.replace("metadata: {", "metadata: {" + "".join(f"{k}: {v}, " for k, v in more.items()))
    )
    return "---\n".join(text.replace("name: web", f"name: {prefix}{number}") for number in range(count))


def bounded(**bounds: Any) -> Api:
    return Api(create_token(role="submitter", name="ci", **bounds)[1])


def test_pod_quota_is_used_until_workloads_end(cluster: Any) -> None:
    ci = bounded(quota={"pods": "3"})
    first = ci("POST", "workloads/", pods("a", 2), kind=YAML, status=202).json()["id"]
    refused = ci("POST", "workloads/", pods("b", 2), kind=YAML, status=429)
    assert (refused.json()["code"], refused.json()["place"], refused["Retry-After"]) == ("QuotaExceeded", "pods", "30")
    assert "pods: 2 requested, 2 in use" in refused.json()["detail"]
    ci("DELETE", f"workloads/{first}/", status=200)
    ci("POST", "workloads/", pods("b", 2), kind=YAML, status=202)


def test_request_above_the_quota_never_fits(cluster: Any) -> None:
    answer = bounded(quota={"pods": "3"})("POST", "workloads/", pods("a", 4), kind=YAML, status=403)
    assert answer.json()["code"] == "QuotaTooSmall"
    assert "Retry-After" not in answer
    assert not Workload.objects.exists()
    assert not Charge.objects.exists()


# Each pod of POD requests 500m and 1Gi: two are 1 CPU and 2Gi.
@pytest.mark.parametrize(("quota", "fits"), [({"cpu": "1"}, 2), ({"memory": "2.5Gi"}, 2), ({"cpu": "400m"}, 0)])
def test_resource_quota(cluster: Any, quota: dict[str, str], fits: int) -> None:
    ci = bounded(quota=quota)
    answers = [ci("POST", "workloads/", pods(f"p{number}-", 1), kind=YAML).status_code for number in range(3)]
    assert answers.count(202) == fits


def test_gpu_quota_counts_shares(cluster: Any) -> None:
    # 600 thousandths of a card each: two would be 1200 of 1000.
    shared = "{hetsched.io/gpu-milli: '600'}"
    ci = bounded(quota={"hetsched.io/gpu-milli": "1000"})
    answers = [ci("POST", "workloads/", pods(f"p{number}-", 1, annotations=shared), kind=YAML) for number in range(2)]
    assert [answer.status_code for answer in answers] == [202, 429]


def test_repeated_submission_succeeds_with_a_full_quota(cluster: Any) -> None:
    ci = bounded(quota={"pods": "1"})
    answers = [ci("POST", "workloads/", POD, kind=YAML, idempotency_key="k") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]


def test_two_tokens_have_two_quotas(cluster: Any) -> None:
    for name in ("a", "b"):
        bounded(quota={"pods": "1"})("POST", "workloads/", pods(name, 1), kind=YAML, status=202)


def test_priority_above_the_ceiling_is_rejected(cluster: Any) -> None:
    ci = bounded(most_priority=10)
    wrapped = {"manifest": POD, "priority": 11}
    assert ci("POST", "workloads/", wrapped, status=403).json()["code"] == "PriorityNotAllowed"
    ci("POST", "workloads/", wrapped | {"priority": 10}, status=202)


def test_priority_in_the_pod_spec_is_checked_too(cluster: Any) -> None:
    urgent = POD.replace("spec:", "spec:\n  priority: 1000")
    assert bounded(most_priority=10)("POST", "workloads/", urgent, kind=YAML, status=403)
    bounded()("POST", "workloads/", urgent, kind=YAML, status=202)


def test_namespace_limit_keeps_capacity_for_others(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE = 2
    operator("POST", "workloads/", pods("a", 2), kind=YAML, status=202)
    full = operator("POST", "workloads/", pods("b", 1), kind=YAML, status=429)
    assert (full.json()["code"], full["Retry-After"]) == ("NamespaceFull", "30")
    operator("POST", "workloads/", pods("c", 2, namespace="other"), kind=YAML, status=202)
    assert Pod.objects.count() == 4


def root(person: Callable[..., Any]) -> Client:
    person("root", superuser=True)
    client = Client()
    client.login(username="root", password="a long enough password")
    return client


def test_limits_are_set_and_returned_over_rest(person: Callable[..., Any]) -> None:
    client = root(person)
    bounds = {"mostPriority": 5, "submitsPerMinute": 30, "quota": {"cpu": "1500m", "pods": 20}}
    body = {"name": "ci", "role": "submitter", "reason": "x", **bounds}
    made = client.post("/api/v1/tokens/", body, content_type="application/json")
    assert made.status_code == 201, made.content
    (shown,) = client.get("/api/v1/tokens/").json()["items"]
    assert {name: shown[name] for name in bounds} == bounds | {"quota": {"cpu": "1500m", "pods": "20"}}


def test_limits_accept_the_notation_of_the_form(person: Callable[..., Any]) -> None:
    body = {"name": "ci", "role": "submitter", "reason": "x", "mostPriority": "", "submitsPerMinute": "30"}
    body["quota"] = "pods=20, memory=4Gi"
    made = root(person).post("/api/v1/tokens/", body, content_type="application/json").json()
    assert (made["mostPriority"], made["submitsPerMinute"]) == (None, 30)
    assert made["quota"] == {"memory": "4Gi", "pods": "20"}


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ({"quota": {"cpu": "much"}}, "QuotaInvalid"),
        ({"quota": {"pods": "-1"}}, "QuotaInvalid"),
        ({"quota": {"": "1"}}, "QuotaInvalid"),
        ({"quota": "pods"}, "QuotaInvalid"),
        ({"quota": {f"r{number}": "1" for number in range(33)}}, "QuotaInvalid"),
        ({"mostPriority": 2**31}, "TokenBoundInvalid"),
        ({"mostPriority": "high"}, "TokenBoundInvalid"),
        ({"submitsPerMinute": -1}, "TokenBoundInvalid"),
        ({"role": "viewer", "mostPriority": 1}, "TokenBoundInvalid"),
    ],
)
def test_wrong_bounds_are_refused(person: Callable[..., Any], bounds: dict[str, Any], code: str) -> None:
    body = {"name": "ci", "role": "submitter", "reason": "x", **bounds}
    made = root(person).post("/api/v1/tokens/", body, content_type="application/json")
    assert (made.status_code, made.json()["code"]) == (400, code)
