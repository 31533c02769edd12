"""Operations of users on webhooks: create, change, remove, rotate the secret, test, redeliver.

A webhook has the permissions of its owner and reports only workloads that the owner may see at that time. A secret is
returned once, when it is created. During the overlap that the owner chooses, messages are also signed with the previous
secret, so a receiver can verify every message while it switches secrets. Each action is one transaction with its audit
entry. The entry names only the host, because the rest of a URL may be a secret of the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import IntegrityError
from django.db.models import F
from django.utils import timezone

from hetsched.adapters.http.signed_messages import new_secret
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Actor, record
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Delivery, SigningSecret, Webhook
from hetsched.placement.models.webhooks import LONGEST_URL
from hetsched.placement.notifications.deliveries import purpose, webhook_holder
from hetsched.storage.named_locks import lock
from hetsched.storage.sealed_secrets import seal
from hetsched.storage.write_lock import write_transaction

from ..notifications import callbacks

MOST_WEBHOOKS = 50  # maximum per owner
LONGEST_OVERLAP = timedelta(days=7)
NOTIFIED_STATES = frozenset(State) - {State.PENDING}
TEST_EVENT = "webhook.test"


class WebhookSettings(msgspec.Struct, frozen=True):
    """The desired settings of a webhook."""

    name: str
    url: str
    cluster: Cluster | None = None
    namespaces: Sequence[str] = ()
    states: Sequence[str] = ()
    enabled: bool = True


def add_webhook(wanted: WebhookSettings, *, owner: str, actor: Actor, reason: str) -> tuple[Webhook, str]:
    """Create a webhook and return it with its secret, which cannot be read again.

    Raises: InputError `ReasonMissing`, `WebhookNameInvalid`, `WebhookExists`, `WebhooksTooMany`, `CallbackUrlInvalid`,
    `CallbackNotAllowed`, `StateUnknown` or `SecretKeyMissing`.
    """
    reason = require_reason(reason)
    _check(wanted)
    try:
        with write_transaction():
            lock([f"webhooks {owner}"])
            if Webhook.objects.filter(owner=owner).count() >= MOST_WEBHOOKS:
                text = Message("the maximum of {n} webhooks is reached", n=MOST_WEBHOOKS)
                raise InputError("WebhooksTooMany", text, place="name", hint="Remove a webhook first")
            hook = Webhook(owner=owner, created_by=actor.name, created_at=timezone.now())
            _set(hook, wanted)
            hook.save(force_insert=True)
            secret = _new_secret(webhook_holder(hook.pk))
            _audit(actor, "webhook.add", hook, reason)
    except IntegrityError:
        raise InputError(
            "WebhookExists", Message("webhook {text} already exists", text=repr(wanted.name)), place="name"
        ) from None
    return hook, secret


def change_webhook(hook: Webhook, wanted: WebhookSettings, *, actor: Actor, reason: str) -> None:
    """Change the settings of a webhook; setting `enabled` resumes a paused webhook.

    Pending deliveries are sent to the new URL. Raises: InputError, as `add_webhook` does.
    """
    reason = require_reason(reason)
    _check(wanted)
    try:
        with write_transaction():
            _set(hook, wanted)
            hook.version += 1
            hook.paused_because, hook.given_up_in_a_row = "", 0
            hook.save()
            waiting = hook.deliveries.filter(state=Delivery.DUE)
            waiting.update(url=hook.url, host=hook.host)
            _audit(actor, "webhook.change", hook, reason)
            if hook.enabled:
                callbacks.wake_worker(waiting)
    except IntegrityError:
        raise InputError(
            "WebhookExists", Message("webhook {text} already exists", text=repr(wanted.name)), place="name"
        ) from None


def remove_webhook(hook: Webhook, *, actor: Actor, reason: str) -> None:
    """Remove a webhook with its secret and all its deliveries. Raises: InputError `ReasonMissing`."""
    reason = require_reason(reason)
    with write_transaction():
        _audit(actor, "webhook.remove", hook, reason)
        SigningSecret.objects.filter(holder=webhook_holder(hook.pk)).delete()
        hook.delete()


def change_webhook_secret(hook: Webhook, *, overlap: timedelta, actor: Actor, reason: str) -> str:
    """Create a new secret for a webhook and return it; during `overlap` the previous secret also signs messages.

    Raises: InputError `ReasonMissing`, `OverlapInvalid` or `SecretKeyMissing`.
    """
    reason = require_reason(reason)
    with write_transaction():
        secret = _new_secret(webhook_holder(hook.pk), overlap)
        Webhook.objects.filter(pk=hook.pk).update(version=F("version") + 1)
        _audit(actor, "webhook.secret", hook, reason, overlapSeconds=int(overlap.total_seconds()))
    return secret


def change_callback_secret(owner: str, *, overlap: timedelta, actor: Actor, reason: str) -> str:
    """Create a secret that signs callbacks to the URLs in an owner's submissions, and return it.

    Raises: InputError `ReasonMissing`, `OverlapInvalid` or `SecretKeyMissing`.
    """
    reason = require_reason(reason)
    with write_transaction():
        secret = _new_secret(owner, overlap)
        details = {"overlapSeconds": int(overlap.total_seconds())}
        about = ("callback-secret", actor.name)
        record(
            actor=actor.name, role=actor.role, action="callback-secret.change", obj=about, reason=reason,
            details=details,
        )  # fmt: skip
    return secret


def end_callback_secret(owner: str, *, actor: Actor, reason: str) -> bool:
    """Stop signing callbacks to an owner's URLs; return True if they were signed before."""
    reason = require_reason(reason)
    with write_transaction():
        gone, _ = SigningSecret.objects.filter(holder=owner).delete()
        if gone:
            about = ("callback-secret", actor.name)
            record(actor=actor.name, role=actor.role, action="callback-secret.remove", obj=about, reason=reason)
    return bool(gone)


def try_webhook(hook: Webhook, *, actor: Actor) -> Delivery:
    """Send a test event to a webhook. Raises: InputError `WebhookPaused`."""
    if not hook.enabled:
        raise InputError(
            "WebhookPaused", Message("webhook {name} is paused", name=hook.name), hint="Enable the webhook first"
        )
    now = timezone.now()
    at = rfc3339(now)
    body = {"type": TEST_EVENT, "timestamp": at, "webhook": hook.pk, "name": hook.name, "askedBy": actor.name}
    with write_transaction():
        row = callbacks.build_delivery(
            hook.url, TEST_EVENT, encode(body).decode(), now, owner=hook.owner, webhook_id=hook.pk
        )
        row.save(force_insert=True)
        _audit(actor, "webhook.test", hook, "", delivery=row.pk)
        callbacks.wake_worker([row])
    return row


def redeliver(row: Delivery, *, actor: Actor, reason: str) -> Delivery:
    """Send a delivery again to the webhook's current URL: same id and body, new timestamp and signature.

    Raises: InputError `ReasonMissing`, `DeliveryUnderWay`, `WebhookPaused` or `CallbackNotAllowed`.
    """
    reason = require_reason(reason)
    now = timezone.now()
    with write_transaction():
        found = Delivery.objects.select_for_update().select_related(None).get(pk=row.pk)
        hook = found.webhook
        if hook is not None and not hook.enabled:
            raise InputError(
                "WebhookPaused", Message("webhook {name} is paused", name=hook.name), hint="Enable the webhook first"
            )
        if found.state == Delivery.DUE:
            raise InputError("DeliveryUnderWay", Message("delivery {delivery} is already in flight", delivery=found.pk))
        if hook is not None:  # the webhook's URL may have changed since
            found.url, found.host = hook.url, hook.host
        callbacks.check_callback_url(found.url, "url")
        found.state, found.attempts, found.ended_at = Delivery.DUE, 0, None
        found.not_before = found.began_at = now
        found.save()
        about = {"host": found.host, "event": found.event, **({"workload": found.workload} if found.workload else {})}
        record(
            actor=actor.name, role=actor.role, action="delivery.again", obj=("delivery", found.pk), reason=reason,
            details=about,
        )  # fmt: skip
        callbacks.wake_worker([found])
    return found


def _check(wanted: WebhookSettings) -> None:
    if not 0 < len(wanted.name.strip()) <= 100 or "\0" in wanted.name:
        raise InputError("WebhookNameInvalid", "the name must have 1 to 100 characters", place="name")
    if not wanted.url or len(wanted.url) > LONGEST_URL:
        raise InputError("CallbackUrlInvalid", "the value is not an http or https URL", place="url")
    callbacks.check_callback_url(wanted.url, "url")
    unknown = sorted(set(wanted.states) - NOTIFIED_STATES)
    if unknown:
        known = joined(", ", [state.value for state in State if state in NOTIFIED_STATES])
        raise InputError(
            "StateUnknown",
            Message("webhooks do not report the state {text}", text=repr(unknown[0][:40])),
            place="states",
            hint=Message("Use {names}", names=known),
        )


def _set(hook: Webhook, wanted: WebhookSettings) -> None:
    hook.name, hook.url, hook.host = wanted.name.strip(), wanted.url, callbacks.host_of(wanted.url)
    hook.cluster, hook.enabled = wanted.cluster, wanted.enabled
    hook.namespaces, hook.states = sorted(set(wanted.namespaces)), sorted(set(wanted.states))


def _new_secret(holder: str, overlap: timedelta = timedelta(0)) -> str:
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        most = int(LONGEST_OVERLAP.total_seconds())
        raise InputError(
            "OverlapInvalid", Message("the value must be from 0 to {n} seconds", n=most), place="overlapSeconds"
        )
    now: datetime = timezone.now()
    secret = new_secret()
    row = SigningSecret.objects.select_for_update().filter(holder=holder).first() or SigningSecret(holder=holder)
    row.sealed_before, row.before_until = (row.sealed, now + overlap) if row.sealed and overlap else ("", None)
    row.sealed, row.made_at = seal(secret, purpose=purpose(holder)), now
    row.save()
    return secret


def _audit(actor: Actor, action: str, hook: Webhook, reason: str, **more: Any) -> None:
    details = {
        "name": hook.name, "host": hook.host, "enabled": hook.enabled, "states": hook.states,
        "namespaces": hook.namespaces, **more,
    }  # fmt: skip
    record(actor=actor.name, role=actor.role, action=action, obj=("webhook", hook.pk), reason=reason, details=details)
