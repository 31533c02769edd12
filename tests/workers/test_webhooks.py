"""A webhook gets signed notifications of its selected workloads, as long as its owner may see them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from hetsched.access.models import Token
from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token, revoke_token
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import cancel
from hetsched.placement.actions.webhooks import (
    WebhookSettings,
    add_webhook,
    change_callback_secret,
    change_webhook,
    change_webhook_secret,
    redeliver,
    try_webhook,
)
from hetsched.placement.models import CallbackHost, Delivery, SigningSecret, Webhook
from hetsched.placement.notifications import callbacks, deliveries
from tests.builders import a_pod
from tests.recording_server import ReceivedRequest, Receiver, receiving
from tests.situations import ALICE, a_cluster, placing, recorded, submitted
from workers import callback

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.SECRET_KEY_GIVEN = True
    with receiving() as listening:
        settings.HETSCHED_CALLBACK_HOSTS = [listening.host]
        yield listening


@pytest.fixture
def ci() -> Token:
    return create_token(role="submitter", name="ci")[0]


def owner_of(token: Token) -> str:
    return Subject(token.user, token).owner


@pytest.fixture
def hooked(receiver: Receiver, ci: Token) -> Callable[..., tuple[Webhook, str]]:
    """Return a factory of webhooks of the token `ci`."""

    def make(name: str = "hook", **more: Any) -> tuple[Webhook, str]:
        wanted = WebhookSettings(name=name, url=receiver.url, **more)
        return add_webhook(wanted, owner=owner_of(ci), actor=ALICE, reason="for the tests")

    return make


def test_webhook_deleted_during_notification_is_skipped(
    hooked: Callable[..., tuple[Webhook, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a database with many writers, the notifying code may have read the webhook before its removal."""
    kept, removed = hooked("kept")[0], hooked("removed")[0]
    read = [kept, removed]
    monkeypatch.setattr(callbacks, "_enabled_webhooks", lambda cluster: read)
    Webhook.objects.get(pk=removed.pk).delete()
    place()
    assert {row.webhook_id for row in Delivery.objects.all()} == {kept.pk}


def fits(secret: str, request: ReceivedRequest) -> bool:
    """Verify a signature as a receiver does."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return wanted in request.headers["webhook-signature"].split()


def place(*namespaces: str) -> None:
    cluster = a_cluster()
    for number, namespace in enumerate(namespaces or ("default",)):
        submitted(cluster, a_pod(f"p{number}", namespace=namespace))
    recorded(cluster, placing(cluster, "n1"))


def test_every_workload_event_is_sent_and_signed(receiver: Receiver, hooked: Any) -> None:
    _, secret = hooked()
    place("default", "team")
    assert callback.run(receiver.host) == 2
    assert sorted(document["namespace"] for document in receiver.documents) == ["default", "team"]
    assert all(fits(secret, request) for request in receiver.requests)
    assert {document["type"] for document in receiver.documents} == {"workload.placed"}


def test_webhook_gets_only_its_selected_workloads(receiver: Receiver, hooked: Any) -> None:
    hooked("one", namespaces=("team",), states=("cancelled",))
    hooked("off", enabled=False)
    cluster = a_cluster()
    ours, theirs = (submitted(cluster, a_pod("p", namespace=name)) for name in ("team", "rest"))
    recorded(cluster, placing(cluster, "n1"))
    for workload in (ours, theirs):
        cancel(workload, actor=ALICE, reason="enough")
    assert [(delivery.workload, delivery.event) for delivery in Delivery.objects.all()] == [
        (ours.pk, "workload.cancelled")
    ]


def test_webhook_of_another_cluster_gets_nothing(receiver: Receiver, hooked: Any) -> None:
    hooked(cluster=a_cluster(name="other"))
    place()
    assert not Delivery.objects.exists()


def test_callback_is_signed_with_the_secret_of_its_owner(receiver: Receiver, ci: Token) -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p"), callback_url=receiver.url, owner=owner_of(ci))
    secret = change_callback_secret(owner_of(ci), overlap=timedelta(0), actor=ALICE, reason="x")
    recorded(cluster, placing(cluster, "n1"))
    callback.run(receiver.host)
    assert fits(secret, receiver.requests[0])


def test_without_a_secret_nothing_is_signed(receiver: Receiver, ci: Token) -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p"), callback_url=receiver.url, owner=owner_of(ci))
    recorded(cluster, placing(cluster, "n1"))
    callback.run(receiver.host)
    assert "webhook-signature" not in receiver.requests[0].headers


def test_previous_secret_signs_until_it_expires(receiver: Receiver, hooked: Any) -> None:
    hook, before = hooked()
    after = change_webhook_secret(hook, overlap=timedelta(hours=1), actor=ALICE, reason="it leaked")
    try_webhook(hook, actor=ALICE)
    SigningSecret.objects.update(before_until=timezone.now() + timedelta(hours=1))
    callback.run(receiver.host)
    SigningSecret.objects.update(before_until=timezone.now() - timedelta(seconds=1))
    try_webhook(hook, actor=ALICE)
    callback.run(receiver.host)
    assert [(fits(before, request), fits(after, request)) for request in receiver.requests] == [
        (True, True),
        (False, True),
    ]


def test_leaked_secret_is_revoked_immediately(receiver: Receiver, hooked: Any) -> None:
    hook, before = hooked()
    after = change_webhook_secret(hook, overlap=timedelta(0), actor=ALICE, reason="it leaked")
    try_webhook(hook, actor=ALICE)
    callback.run(receiver.host)
    assert (fits(before, receiver.requests[0]), fits(after, receiver.requests[0])) == (False, True)


def test_undecryptable_secret_sends_nothing_unsigned(receiver: Receiver, hooked: Any) -> None:
    hook, _ = hooked()
    SigningSecret.objects.update(sealed="gAAAAA")
    try_webhook(hook, actor=ALICE)
    assert callback.run(receiver.host) == 0
    assert receiver.requests == []
    assert Delivery.objects.get().code == "SecretKeyChanged"


def test_secrets_are_stored_encrypted(hooked: Any) -> None:
    _, secret = hooked()
    row = SigningSecret.objects.get()
    assert secret not in row.sealed
    assert secret.removeprefix("whsec_") not in row.sealed


def _revoked(token: Token) -> None:
    revoke_token(token, actor=None, reason="it leaked")


def _over(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(expiry=timezone.now() - timedelta(seconds=1))


def _closed(token: Token) -> None:
    User.objects.filter(pk=token.user_id).update(is_active=False)


def _without_role(token: Token) -> None:
    token.user.groups.remove(*Group.objects.all())


def _limited(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(namespaces=["other"])


@pytest.mark.parametrize("lose", [_revoked, _over, _closed, _without_role, _limited])
def test_owner_without_read_access_gets_nothing(receiver: Receiver, hooked: Any, ci: Token, lose: Any) -> None:
    hooked()
    place()
    lose(ci)
    assert callback.run(receiver.host) == 0
    assert receiver.requests == []
    row = Delivery.objects.get()
    assert (row.state, row.code) == (Delivery.DEAD, "OwnerGone")


def test_workload_of_several_namespaces_requires_access_to_all(receiver: Receiver, hooked: Any, ci: Token) -> None:
    hooked()
    Token.objects.filter(pk=ci.pk).update(namespaces=["default"])
    cluster = a_cluster()
    submitted(cluster, a_pod("ours", namespace="default"), a_pod("theirs", namespace="rest"))
    recorded(cluster, placing(cluster, "n1"))
    assert callback.run(receiver.host) == 0
    assert [(row.namespace, row.code) for row in Delivery.objects.all()] == [("", "OwnerGone")]


def test_response_410_pauses_the_webhook(receiver: Receiver, hooked: Any) -> None:
    hook, _ = hooked()
    receiver.status = 410
    place("default", "team")
    callback.run(receiver.host)
    hook.refresh_from_db()
    assert (hook.enabled, hook.paused_because) == (False, "the endpoint responds with 410 Gone")
    # Its other deliveries wait until the webhook is resumed.
    assert len(receiver.requests) == 1
    assert sorted(Delivery.objects.values_list("state", flat=True)) == ["dead", "due"]
    assert AuditEntry.objects.filter(action="webhook.pause", object_name=hook.pk).count() == 1
    receiver.status = 204
    change_webhook(hook, WebhookSettings(name=hook.name, url=hook.url), actor=ALICE, reason="it is back")
    assert callback.run(receiver.host) == 1


def test_unreachable_webhook_is_paused(receiver: Receiver, hooked: Any) -> None:
    hook, _ = hooked()
    Webhook.objects.update(given_up_in_a_row=deliveries.PAUSED_AFTER - 1)
    receiver.status = 500
    place()
    for _ in range(deliveries.MOST_ATTEMPTS):
        callback.run(receiver.host)
        Delivery.objects.update(not_before=timezone.now())
    hook.refresh_from_db()
    assert (hook.enabled, hook.paused_because) == (False, "20 consecutive deliveries failed")


def test_expired_deliveries_count_towards_the_pause(receiver: Receiver, hooked: Any) -> None:
    hook, _ = hooked()
    Webhook.objects.update(given_up_in_a_row=deliveries.PAUSED_AFTER - 2)
    place("default", "team")
    assert deliveries.fail_old_deliveries(timezone.now() + timedelta(days=3, minutes=1)) == 2
    hook.refresh_from_db()
    assert (hook.enabled, hook.paused_because) == (False, "20 consecutive deliveries failed")


def test_successful_delivery_resets_the_failure_count(receiver: Receiver, hooked: Any) -> None:
    hook, _ = hooked()
    Webhook.objects.update(given_up_in_a_row=7)
    place()
    callback.run(receiver.host)
    hook.refresh_from_db()
    assert hook.given_up_in_a_row == 0


def test_redelivery_has_the_same_id_and_a_new_timestamp(receiver: Receiver, hooked: Any) -> None:
    _, secret = hooked()
    receiver.statuses = [500]
    place()
    callback.run(receiver.host)
    Delivery.objects.update(state=Delivery.DEAD, attempts=10, not_before=timezone.now() + timedelta(hours=3))
    redeliver(Delivery.objects.get(), actor=ALICE, reason="fixed")
    assert callback.run(receiver.host) == 1
    first, second = receiver.requests
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    assert fits(secret, second)
    row = Delivery.objects.get()
    assert (row.state, row.attempts, row.log.count()) == (Delivery.DELIVERED, 1, 2)


def test_dead_host_does_not_delay_others(receiver: Receiver, hooked: Any, settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = [receiver.host, "127.0.0.1:9"]
    hooked()
    cluster = a_cluster()
    for number in range(5):
        submitted(cluster, a_pod(f"p{number}"), callback_url="http://127.0.0.1:9/")
    recorded(cluster, placing(cluster, "n1"))
    callback.run("127.0.0.1:9")
    assert callback.run(receiver.host) == 5
    assert Delivery.objects.filter(host="127.0.0.1:9", attempts__gt=0).count() == 1
    assert CallbackHost.objects.get(host=receiver.host).failures == 0


def test_responding_host_gets_all_due_deliveries(receiver: Receiver, hooked: Any) -> None:
    hooked()
    place(*("default" for _ in range(20)))
    # The test's nodes have 8 CPUs; these are the notifications of 20 workloads that this test placed.
    assert callback.run(receiver.host) == 20
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 20
    assert not Delivery.objects.exclude(state=Delivery.DELIVERED).exists()
