"""Webhooks over REST: created, changed, tested and deleted by their owner; secrets are shown once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from hetsched.journal.models import AuditEntry
from hetsched.placement.models import Delivery, SigningSecret, Webhook

from .conftest import POD, Api

WANTED = {"name": "ci", "url": "https://ci.example/done/s3cr3t-path", "reason": "tell the pipeline"}


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example", "other.example"]


@pytest.fixture
def submitter(api: Callable[..., Api]) -> Api:
    return api("submitter")


@pytest.fixture
def made(submitter: Api) -> Any:
    return submitter("POST", "webhooks/", WANTED, status=201)


def delivery_of(submitter: Api, made: Any) -> Any:
    """Test the webhook, and return its delivery."""
    return submitter("POST", f"webhooks/{made.json()['id']}/test/", status=202).json()


def test_secret_is_returned_once_at_creation(submitter: Api, made: Any) -> None:
    secret = made.json()["secret"]
    assert secret.startswith("whsec_")
    assert made["Cache-Control"] == "no-store"
    shown = submitter("GET", made["Location"], status=200)
    listed = submitter("GET", "webhooks/", status=200)
    kept = json.dumps(list(AuditEntry.objects.values("details", "reason", "object_name")))
    assert all(secret not in text for text in (shown.content.decode(), listed.content.decode(), kept))
    assert shown.json() == {name: value for name, value in made.json().items() if name != "secret"}


def test_audit_entry_contains_only_the_host_of_the_url(made: Any) -> None:
    entry = AuditEntry.objects.get(action="webhook.add")
    assert entry.details["host"] == "ci.example"
    assert "s3cr3t" not in json.dumps(entry.details)


def test_change_requires_the_tag_of_the_read(submitter: Api, made: Any) -> None:
    address = made["Location"]
    changed = {**WANTED, "states": ["failed"], "enabled": False}
    submitter("PUT", address, changed, status=428)
    submitter("PUT", address, changed, if_match='"stale"', status=412)
    answer = submitter("PUT", address, changed, if_match=submitter.tag(address.removeprefix("/api/v1/")), status=200)
    assert (answer.json()["states"], answer.json()["enabled"]) == (["failed"], False)
    submitter("PUT", address, changed, if_match=made["ETag"], status=412)


def test_deleted_webhook_loses_its_secret(submitter: Api, made: Any) -> None:
    submitter("DELETE", f"{made['Location']}?reason=over", if_match="*", status=204)
    assert (Webhook.objects.count(), SigningSecret.objects.count()) == (0, 0)
    submitter("GET", made["Location"], status=404)


def test_new_secret_overlaps_with_the_previous_one(submitter: Api, made: Any) -> None:
    address = f"{made['Location']}secret/"
    again = submitter("POST", address, {"reason": "yearly"}, status=200).json()
    assert again["secret"] != made.json()["secret"]
    assert again["beforeUntil"] is not None
    at_once = submitter("POST", address, {"reason": "it leaked", "overlapSeconds": 0}, status=200).json()
    assert at_once["beforeUntil"] is None
    refused = submitter("POST", address, {"reason": "x", "overlapSeconds": 604_801}, status=400).json()
    assert (refused["code"], refused["place"]) == ("OverlapInvalid", "overlapSeconds")


def test_submission_secret_is_created_returned_once_and_revoked(submitter: Api) -> None:
    assert submitter.get("callback-secret/") == {"signed": False, "madeAt": None, "beforeUntil": None}
    made = submitter("POST", "callback-secret/", {"reason": "verify"}, status=200).json()
    assert made["secret"].startswith("whsec_")
    shown = submitter.get("callback-secret/")
    assert (shown["signed"], "secret" in shown) == (True, False)
    submitter("DELETE", "callback-secret/?reason=over", status=204)
    submitter("DELETE", "callback-secret/?reason=over", status=404)


@pytest.mark.parametrize(
    ("changed", "status", "code", "place"),
    [
        ({"url": "https://elsewhere.example/"}, 400, "CallbackNotAllowed", "url"),
        ({"url": "https://169.254.169.254/"}, 400, "CallbackNotAllowed", "url"),
        ({"url": "https://ci.example@evil.example/"}, 400, "CallbackNotAllowed", "url"),
        ({"url": ""}, 400, "CallbackUrlInvalid", "url"),
        ({"url": "https://ci.example/" + "a" * 2000}, 400, "CallbackUrlInvalid", "url"),
        ({"name": " "}, 400, "WebhookNameInvalid", "name"),
        ({"name": "a" * 101}, 400, "WebhookNameInvalid", "name"),
        ({"reason": ""}, 400, "ReasonMissing", "reason"),
        ({"states": ["pending"]}, 400, "StateUnknown", "states"),
        ({"states": ["Placed"]}, 400, "StateUnknown", "states"),
        ({"namespaces": ["../x"]}, 400, "NamespaceInvalid", "namespaces"),
        ({"cluster": "none"}, 404, "NotFound", None),
        ({"secret": "mine"}, 400, "BodyInvalid", None),
        ({"states": 5}, 400, "BodyInvalid", "states"),
    ],
)
def test_error_names_its_place(
    submitter: Api, changed: dict[str, Any], status: int, code: str, place: str | None
) -> None:
    problem = submitter("POST", "webhooks/", {**WANTED, **changed}, status=status).json()
    assert problem["code"] == code
    assert place is None or problem["place"] == place
    assert not Webhook.objects.exists()


def test_names_are_unique_per_owner(submitter: Api, made: Any, api: Callable[..., Api]) -> None:
    assert submitter("POST", "webhooks/", WANTED, status=409).json()["code"] == "WebhookExists"
    api("submitter")("POST", "webhooks/", WANTED, status=201)


def test_webhooks_per_owner_are_limited(submitter: Api, monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    monkeypatch.setattr("hetsched.placement.actions.webhooks.MOST_WEBHOOKS", 1)
    answer = submitter("POST", "webhooks/", {**WANTED, "name": "more"}, status=409)
    assert answer.json()["code"] == "WebhooksTooMany"


def test_other_tokens_see_no_webhooks_and_deliveries(submitter: Api, made: Any, api: Callable[..., Api]) -> None:
    delivery, hook = delivery_of(submitter, made)["id"], made.json()["id"]
    for stranger in (api("submitter"), api("operator", "team")):
        assert stranger.get("webhooks/")["items"] == []
        assert stranger.get("deliveries/")["items"] == []
        for method, address in (
            ("GET", f"webhooks/{hook}/"), ("PUT", f"webhooks/{hook}/"), ("DELETE", f"webhooks/{hook}/"),
            ("POST", f"webhooks/{hook}/secret/"), ("POST", f"webhooks/{hook}/test/"),
            ("GET", f"deliveries/{delivery}/"), ("POST", f"deliveries/{delivery}/redeliver/"),
        ):  # fmt: skip
            body = {"reason": "x", **({"name": "n", "url": "https://ci.example/"} if method == "PUT" else {})}
            stranger(method, address, None if method == "GET" else body, if_match="*", status=404)


def test_operator_sees_all_webhooks(submitter: Api, made: Any, operator: Api) -> None:
    delivery = delivery_of(submitter, made)
    assert [row["id"] for row in operator.get("webhooks/")["items"]] == [made.json()["id"]]
    assert [row["id"] for row in operator.get("deliveries/")["items"]] == [delivery["id"]]


def test_limited_token_gets_events_of_its_namespaces_only(api: Callable[..., Api]) -> None:
    limited = api("submitter", "team")
    assert limited("POST", "webhooks/", WANTED, status=201).json()["namespaces"] == ["team"]
    refused = limited("POST", "webhooks/", {**WANTED, "name": "more", "namespaces": ["rest"]}, status=403)
    assert refused.json()["code"] == "NamespaceNotAllowed"


def test_delivery_is_shown_with_body_and_log(submitter: Api, made: Any) -> None:
    delivery = delivery_of(submitter, made)
    assert (delivery["event"], delivery["state"], delivery["webhook"]) == ("webhook.test", "due", made.json()["id"])
    Delivery.objects.get().log.create(at=Delivery.objects.get().created_at, took_millis=7, status=503, code="Answer503")
    shown = submitter.get(f"deliveries/{delivery['id']}/")
    assert shown["body"]["type"] == "webhook.test"
    assert [(item["status"], item["tookMillis"]) for item in shown["log"]] == [(503, 7)]


def test_deliveries_are_filtered(submitter: Api, made: Any) -> None:
    first, second = (delivery_of(submitter, made)["id"] for _ in range(2))
    Delivery.objects.filter(pk=first).update(state=Delivery.DEAD, workload="w-1")

    def listed(query: str) -> list[str]:
        return [row["id"] for row in submitter("GET", f"deliveries/{query}", status=200).json()["items"]]

    assert listed("") == [second, first]
    assert listed("?state=dead") == listed("?workload=w-1") == [first]
    assert listed("?webhook=wh-none") == []
    assert listed("?event=webhook.test&state=due") == [second]
    page = submitter.get("deliveries/?limit=1")
    assert [row["id"] for row in submitter("GET", page["next"], status=200).json()["items"]] == [first]
    assert listed("?state=delivered") == []


def test_failed_delivery_is_sent_again_once(
    submitter: Api, made: Any, local_messages: Any, django_capture_on_commit_callbacks: Any
) -> None:
    delivery = delivery_of(submitter, made)["id"]
    address = f"deliveries/{delivery}/redeliver/"
    assert submitter("POST", address, {"reason": "x"}, status=409).json()["code"] == "DeliveryUnderWay"
    Delivery.objects.update(state=Delivery.DEAD, attempts=10)
    connection.run_on_commit.clear()  # a transaction sends equal wake-ups once
    assert submitter("POST", address, {}, status=400).json()["code"] == "BodyInvalid"
    submitter("POST", address, {"reason": "x"}, if_match='"stale"', status=412)
    with django_capture_on_commit_callbacks(execute=True):
        again = submitter("POST", address, {"reason": "fixed"}, status=202).json()
    assert (again["id"], again["state"], again["attempts"]) == (delivery, "due", 0)
    assert ("workers.callback.run", ["ci.example"]) in local_messages
    assert AuditEntry.objects.get(action="delivery.again").reason == "fixed"


def test_paused_webhook_cannot_be_tested(submitter: Api, made: Any) -> None:
    Webhook.objects.update(enabled=False)
    answer = submitter("POST", f"webhooks/{made.json()['id']}/test/", status=409)
    assert answer.json()["code"] == "WebhookPaused"


def test_deliveries_of_a_submission_are_listed_with_it(submitter: Api, cluster: Any) -> None:
    from workers.schedule import run

    body = {"manifest": POD, "callbackUrl": "https://ci.example/done"}
    accepted = submitter("POST", "workloads/", body, status=202).json()["id"]
    run(cluster.pk)
    (row,) = submitter.get("deliveries/", workload=accepted)["items"]
    assert (row["event"], row["webhook"], row["url"]) == ("workload.placed", None, "https://ci.example/done")
    shown = submitter.get(f"deliveries/{row['id']}/")["body"]
    assert (shown["id"], shown["state"], shown["cluster"]) == (accepted, "placed", "lab")
