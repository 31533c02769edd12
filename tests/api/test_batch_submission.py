"""`submissions/`: many manifests in one request, each with its own response and key, or all or none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.access.tokens import create_token
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import submissions
from hetsched.placement.models import Hold, IdempotencyKey, Pod, Workload
from hetsched.placement.queries.invariants import check_invariants

from .conftest import POD, Api

WRONG = POD.replace("500m", "-1")


def named(pod: str, /, **more: Any) -> dict[str, Any]:
    return {"manifest": POD.replace("web", pod), **more}


def sent(caller: Api, *items: dict[str, Any], status: int = 202, key: str = "", **more: Any) -> Any:
    headers = {"idempotency_key": key} if key else {}
    return caller("POST", "submissions/", {"items": items, **more}, status=status, **headers).json()


def test_each_item_creates_a_workload(operator: Api, cluster: Cluster) -> None:
    answer = sent(operator, named("a"), named("b", name="second"), priority=7)
    assert (answer["accepted"], answer["refused"]) == (2, 0)
    assert [(item["index"], item["status"], item["state"]) for item in answer["items"]] == [
        (0, 202, "pending"), (1, 202, "pending"),
    ]  # fmt: skip
    rows = {row.pk: row for row in Workload.objects.all()}
    first, second = (rows[item["id"]] for item in answer["items"])
    assert (first.name, second.name, first.priority, second.priority) == ("a", "second", 7, 7)
    assert AuditEntry.objects.filter(action="workload.submit").count() == 2


def test_invalid_item_does_not_stop_the_others(operator: Api, cluster: Cluster) -> None:
    answer = sent(operator, named("a"), {"manifest": WRONG}, named("a"), named("c"), status=207)
    assert (answer["accepted"], answer["refused"]) == (2, 2)
    assert [item["status"] for item in answer["items"]] == [202, 400, 409, 202]
    assert answer["items"][2]["problem"]["code"] == "PodExists"
    assert sorted(Workload.objects.values_list("name", flat=True)) == ["a", "c"]


def test_atomic_batch_with_invalid_items_writes_nothing(operator: Api, cluster: Cluster) -> None:
    refused = sent(
        operator, named("a", key="a"), {"manifest": WRONG}, named("a"), named("c"), status=422, allOrNothing=True
    )
    assert (refused["code"], refused["place"]) == ("BatchRefused", "items[1]")
    assert [(item["index"], item["status"]) for item in refused["items"]] == [(1, 400), (2, 409)]
    for rows in (Workload, Pod, IdempotencyKey):
        assert not rows._default_manager.exists()
    assert not AuditEntry.objects.filter(action="workload.submit").exists()


def test_atomic_batch_writes_all_items(operator: Api, cluster: Cluster) -> None:
    assert sent(operator, named("a"), named("b"), allOrNothing=True)["accepted"] == 2
    assert Workload.objects.count() == 2


def test_repeated_batch_with_the_same_key_is_submitted_once(operator: Api, cluster: Cluster) -> None:
    first = sent(operator, named("a"), named("b"), key="night-7")
    again = sent(operator, named("a"), named("b"), key="night-7")
    assert [item["id"] for item in again["items"]] == [item["id"] for item in first["items"]]
    assert [item["replayed"] for item in again["items"]] == [True, True]
    assert Workload.objects.count() == 2
    assert check_invariants() == []


def test_changed_item_with_the_same_key_is_rejected(operator: Api, cluster: Cluster) -> None:
    sent(operator, named("a"), named("b"), key="night-7")
    answer = sent(operator, named("a"), named("other"), named("c"), key="night-7", status=207)
    assert [item["status"] for item in answer["items"]] == [202, 422, 202]
    assert answer["items"][1]["problem"]["code"] == "IdempotencyKeyReused"


def test_interrupted_batch_is_completed_by_a_repetition(
    operator: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    write, written = submissions._insert, []

    def dies(*args: Any) -> Any:
        if len(written) == 1:
            raise OperationalError("the database went away")
        write(*args)
        written.append(True)

    monkeypatch.setattr(submissions, "_insert", dies)
    assert sent(operator, named("a"), named("b"), status=503, key="k")["code"] == "StorageUnavailable"
    assert Workload.objects.count() == 1
    monkeypatch.setattr(submissions, "_insert", write)
    answer = sent(operator, named("a"), named("b"), key="k")
    assert [item.get("replayed", False) for item in answer["items"]] == [True, False]
    assert Workload.objects.count() == 2


def test_item_is_identified_by_its_key_at_any_position(operator: Api, cluster: Cluster) -> None:
    first = sent(operator, named("a", key="a"), named("b", key="b"))
    again = sent(operator, named("b", key="b"), named("c", key="c"), key="other")
    assert again["items"][0]["id"] == first["items"][1]["id"]
    assert again["items"][0]["replayed"] is True
    assert Workload.objects.count() == 3


def test_keys_of_two_tokens_are_distinct(operator: Api, api: Callable[..., Api], cluster: Cluster) -> None:
    sent(operator, named("a", key="k"))
    theirs = sent(api("submitter"), named("b", key="k"))
    assert theirs["items"][0].get("replayed", False) is False


def test_generated_item_keys_cannot_be_sent_by_clients(operator: Api, cluster: Cluster) -> None:
    sent(operator, named("a"), key="k")
    key = IdempotencyKey.objects.get().key
    refused = operator("POST", "workloads/", POD, kind="application/yaml", idempotency_key=key, status=400)
    assert refused.json()["code"] == "IdempotencyKeyInvalid"


@pytest.mark.parametrize("items", [[], [named(f"p{n}") for n in range(501)]])
def test_batch_size_is_limited(operator: Api, cluster: Cluster, items: list[dict[str, Any]]) -> None:
    assert sent(operator, *items, status=400)["code"] == "BatchSize"


def test_atomic_batch_has_a_lower_limit(operator: Api, cluster: Cluster) -> None:
    assert sent(operator, *[named(f"p{n}") for n in range(101)], status=400, allOrNothing=True)["code"] == "BatchSize"


@pytest.mark.parametrize(
    ("items", "key", "place"),
    [
        ((named("a", key="k"), named("b", key="k")), "", "items[1].key"),
        ((named("a", key="with blank"),), "", "items[0].key"),
        ((named("a"),), "x" * 251, "Idempotency-Key"),
    ],
)
def test_keys_are_checked_before_anything_is_written(
    operator: Api, cluster: Cluster, items: tuple[dict[str, Any], ...], key: str, place: str
) -> None:
    refused = sent(operator, *items, status=400, key=key)
    assert (refused["code"], refused["place"]) == ("IdempotencyKeyInvalid", place)
    assert not Workload.objects.exists()


def test_namespaces_are_checked_item_by_item(api: Callable[..., Api], cluster: Cluster) -> None:
    own = POD.replace("{name: web}", "{name: web, namespace: lab}")
    answer = sent(api("submitter", "lab"), {"manifest": own}, named("foreign"), status=207)
    assert [item["status"] for item in answer["items"]] == [202, 403]
    assert answer["items"][1]["problem"]["code"] == "NamespaceNotAllowed"


def test_items_may_name_holds_and_plans(operator: Api, cluster: Cluster) -> None:
    hold = operator("POST", "holds/", named("a"), status=201).json()["id"]
    plan = operator("POST", "what-if/", {**named("b"), "plan": True}, status=200).json()["plan"]["token"]
    answer = sent(operator, named("a", hold=hold), named("b", plan=plan))
    assert answer["accepted"] == 2
    assert Hold.objects.filter(state="claimed").count() == 2
    refused = sent(operator, named("b", plan=plan), status=400, allOrNothing=True)
    assert (refused["code"], refused["place"]) == ("PlanNotPossible", "items[0].plan")


def test_each_item_counts_to_the_rate_of_its_sender(cluster: Cluster) -> None:
    caller = Api(create_token(role="submitter", name="ci", submits_per_minute=5)[1])
    sent(caller, *[named(f"a{n}") for n in range(4)])
    refused = caller("POST", "submissions/", {"items": [named("b"), named("c")]}, status=429)
    assert (refused.json()["code"], int(refused["Retry-After"]) >= 1) == ("RateLimited", True)
    assert Workload.objects.count() == 4


def test_batch_beyond_the_limit_of_its_sender_is_rejected(cluster: Cluster) -> None:
    caller = Api(create_token(role="submitter", name="ci", submits_per_minute=5)[1])
    refused = caller("POST", "submissions/", {"items": [named(f"a{n}") for n in range(6)]}, status=400).json()
    assert (refused["code"], refused["place"]) == ("BatchSize", "items")
    assert not Workload.objects.exists()
    sent(caller, *[named(f"a{n}") for n in range(5)])
