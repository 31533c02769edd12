"""Delivery of callbacks and webhooks: retries, back-off and results.

A host that does not answer must not delay other hosts, and a lost message must be retried, but not forever.
One process at a time calls a host. A host that does not answer is skipped for 2, 4, 8 s and so on up to 60 s, even if
it has due deliveries. A rejected delivery is retried after 5, 15, 45 s and so on up to 3 h, minus a random part of up
to half. After ten attempts or three days the delivery is dead until a user requests a redelivery. A webhook is paused
after 20 consecutive dead deliveries or a response of 410 Gone.
Invariants: a periodic task finds due deliveries after lost wake-ups; a delivery is sent until it is confirmed or given
up, always with the same id and body.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import msgspec
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from hetsched.contracts.message import Message
from hetsched.journal import audit, counters, metric_names
from hetsched.storage.batches import batched
from hetsched.storage.sealed_secrets import unseal
from hetsched.storage.write_lock import write_transaction

from ..models import CallbackHost, Delivery, DeliveryAttempt, SigningSecret, Webhook

MOST_ATTEMPTS = 10
LONGEST_AGE = timedelta(days=3)
_FIRST_WAIT_SECONDS, _GROWTH, _LONGEST_WAIT_SECONDS = 5, 3, 10_800
_LONGEST_ASKED_WAIT_SECONDS = 3600
_LONGEST_QUIET_SECONDS = 60
HELD_SECONDS = 60
PAUSED_AFTER = 20
GONE = 410


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """The result of one attempt.

    `status` is the HTTP status, or None if there was no response; `code` is the reason of a failure. `wait_seconds` is
    the delay that the host requests. `final` is True if no retry can succeed.
    """

    took_millis: int = 0
    status: int | None = None
    code: str = ""
    message: str = ""
    wait_seconds: float = 0.0
    final: bool = False

    @property
    def arrived(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def due_deliveries(host: str | None = None) -> QuerySet[Delivery]:
    """Return the due deliveries to one host or to all hosts, without those of paused webhooks."""
    enabled = Q(webhook=None) | Q(webhook__enabled=True)
    rows = Delivery.objects.filter(enabled, state=Delivery.DUE, not_before__lte=timezone.now())
    return rows if host is None else rows.filter(host=host).order_by("not_before", "id")


def due_hosts() -> list[str]:
    """Return the hosts with due deliveries that are neither locked nor currently skipped."""
    quiet = CallbackHost.objects.filter(Q(held_until__gt=Now()) | Q(quiet_until__gt=Now()))
    rows = due_deliveries().exclude(host__in=quiet.values("host")).order_by()
    return list(rows.values_list("host", flat=True).distinct())


def lock_host(host: str) -> bool:
    """Lock a host for this process for a limited time; return False if it is already locked or skipped."""
    CallbackHost.objects.get_or_create(host=host)
    free = Q(held_until=None) | Q(held_until__lt=Now())
    speaking = Q(quiet_until=None) | Q(quiet_until__lt=Now())
    until = Now() + timedelta(seconds=HELD_SECONDS)
    return CallbackHost.objects.filter(free, speaking, host=host).update(held_until=until) == 1


def unlock_host(host: str, *, answered: bool | None) -> None:
    """Unlock a host; `answered` is True if it answered the last call, and None if it was not called."""
    row = CallbackHost.objects.filter(host=host)
    if answered is None:
        row.update(held_until=None)
    elif answered:
        row.update(held_until=None, quiet_until=None, failures=0)
    else:
        failures = (row.values_list("failures", flat=True).first() or 0) + 1
        quiet = random.uniform(0.5, 1.0) * min(2 ** min(failures, 10), _LONGEST_QUIET_SECONDS)  # noqa: S311
        row.update(held_until=None, quiet_until=Now() + timedelta(seconds=quiet), failures=failures)


def secrets_of(delivery: Delivery) -> list[str]:
    """Return the secrets that sign a message, the newest first, or an empty list if its owner has no secret.

    Raises: InputError `SecretKeyChanged`.
    """
    holder = webhook_holder(delivery.webhook_id) if delivery.webhook_id else delivery.owner
    row = SigningSecret.objects.filter(holder=holder).first()
    if row is None:
        return []
    kept = [row.sealed]
    if row.sealed_before and row.before_until is not None and row.before_until > timezone.now():
        kept.append(row.sealed_before)
    return [unseal(sealed, purpose=purpose(holder)) for sealed in kept]


def webhook_holder(webhook_id: str) -> str:
    return f"webhook:{webhook_id}"


def purpose(holder: str) -> str:
    """Return the purpose label under which a holder's signing secret is encrypted."""
    return f"signing secret of {holder}"


def record_outcome(delivery: Delivery, outcome: DeliveryOutcome) -> None:
    """Store the result of an attempt and its consequences; do nothing if the delivery changed concurrently."""
    now = timezone.now()
    attempts = delivery.attempts + 1
    state = Delivery.DUE
    if outcome.arrived:
        state = Delivery.DELIVERED
    elif outcome.final or attempts >= MOST_ATTEMPTS or now - delivery.began_at > LONGEST_AGE:
        state = Delivery.DEAD
    result = {"status": outcome.status, "code": outcome.code[:63], "message": outcome.message}
    with write_transaction():
        row = Delivery.objects.filter(
            pk=delivery.pk, state=Delivery.DUE, attempts=delivery.attempts, began_at=delivery.began_at
        )
        ended = None if state == Delivery.DUE else now
        if not row.update(
            state=state, attempts=attempts, ended_at=ended,
            not_before=now + retry_delay(attempts, outcome.wait_seconds), **result,
        ):  # fmt: skip
            return
        DeliveryAttempt.objects.create(delivery=delivery, at=now, took_millis=outcome.took_millis, **result)
        if delivery.webhook_id and state != Delivery.DUE:
            _record_webhook_result(delivery.webhook_id, outcome)
    counters.add(metric_names.DELIVERIES, {Delivery.DUE: "failed"}.get(state, state))


def retry_delay(attempts: int, asked_seconds: float = 0.0) -> timedelta:
    """Return the delay before the next attempt: it triples with each attempt, minus a random part of up to half.

    A longer delay that the host requests is used instead, up to one hour.
    """
    longest = min(_FIRST_WAIT_SECONDS * _GROWTH ** (attempts - 1), _LONGEST_WAIT_SECONDS)
    own = longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, so that retries are spread
    return timedelta(seconds=max(own, min(asked_seconds, _LONGEST_ASKED_WAIT_SECONDS)))


def _record_webhook_result(webhook_id: str, outcome: DeliveryOutcome, number: int = 1) -> None:
    """Record that `number` deliveries of a webhook ended; pause it if its endpoint keeps failing or is gone."""
    row = Webhook.objects.filter(pk=webhook_id)
    if outcome.arrived:
        row.filter(given_up_in_a_row__gt=0).update(given_up_in_a_row=0)
        return
    row.update(given_up_in_a_row=F("given_up_in_a_row") + number)
    hook = row.filter(enabled=True).first()
    if hook is None:
        return
    because = ""
    if outcome.status == GONE:
        because = Message("the endpoint responds with 410 Gone")
    elif hook.given_up_in_a_row >= PAUSED_AFTER:
        because = Message("{n} consecutive deliveries failed", n=PAUSED_AFTER)
    if because:
        row.update(enabled=False, paused_because=because, version=F("version") + 1)
        actor = audit.SYSTEM
        audit.record(
            actor=actor.name, role=actor.role, action="webhook.pause", obj=("webhook", hook.pk), reason=because
        )


def fail_old_deliveries(now: datetime) -> int:
    """Give up deliveries older than `LONGEST_AGE`, for example to a host that never answered; return how many."""
    expired = DeliveryOutcome(code="TooOld", message=Message("the delivery expired after three days"))
    with write_transaction():
        old = Delivery.objects.select_for_update().filter(
            state=Delivery.DUE, began_at__lt=now - LONGEST_AGE, not_before__lte=now
        )
        webhooks = dict(old.order_by().values_list("id", "webhook_id"))
        for some in batched(list(webhooks)):
            rows = Delivery.objects.filter(pk__in=some)
            rows.update(state=Delivery.DEAD, ended_at=now, code=expired.code, message=expired.message)
        for webhook_id, number in sorted(Counter(filter(None, webhooks.values())).items()):
            _record_webhook_result(webhook_id, expired, number)
    if webhooks:
        counters.add(metric_names.DELIVERIES, Delivery.DEAD, amount=len(webhooks))
    return len(webhooks)


def prune_deliveries(*, ended_before: datetime, limit: int = 2000) -> int:
    """Delete deliveries that ended before a time, with their attempts; return how many were deleted."""
    ids = list(Delivery.objects.filter(ended_at__lt=ended_before).order_by().values_list("id", flat=True)[:limit])
    if ids:
        Delivery.objects.filter(pk__in=ids).delete()
    return len(ids)
