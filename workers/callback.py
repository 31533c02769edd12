"""Send what is due to one host, outside any transaction.

Rule: one process at a time for a host, for a few seconds, then the next task goes on; a host that answers gets eight
messages at a time. An attempt takes five seconds at most and follows no redirect; the answer's status alone counts and
its body is never read. What its owner may not see any more is told to nobody, and what was to be signed is never sent
unsigned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.access.owners import may_be_told
from hetsched.adapters.http.outbound import Refused, call
from hetsched.adapters.http.signed_messages import signed_headers
from hetsched.contracts.errors import InputError
from hetsched.placement import dispatch
from hetsched.placement.callbacks import allowed
from hetsched.placement.deliveries import GONE, Outcome, due, hold, let_go, note, secrets_of
from hetsched.placement.models import Delivery

ROUND_SECONDS = 10.0
_AT_MOST = 200
_LANES = 8
_JSON = {"Content-Type": "application/json"}
_BUSY = (429, 503)
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
# What a host says by not answering; other refusals are our own, and no reason to leave it alone.
_UNHEARD = frozenset({"HostSlow", "HostUnreachable", "HostUntrusted"})
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CALLBACK)
def run(host: str) -> int:
    """Send what is due to a host; return how many deliveries arrived."""
    if not due(host).exists() or not hold(host):
        return 0
    arrived, answered = 0, None
    until, left, at_once = time.monotonic() + ROUND_SECONDS, _AT_MOST, 1
    try:
        with ThreadPoolExecutor(_LANES) as lanes:
            # Each time anew: what came of one may pause what else is due. The first goes alone: is anybody there?
            while left > 0 and time.monotonic() < until and (some := list(due(host)[:at_once])):
                outcomes = _attempt(some, lanes)
                for delivery, outcome in zip(some, outcomes, strict=True):
                    note(delivery, outcome)
                    arrived += outcome.arrived
                    if not outcome.arrived:
                        log.info("delivery failed", id=delivery.pk, host=host, status=outcome.status, code=outcome.code)
                answered = _heard(outcomes, answered)
                if answered is False or any(outcome.wait_seconds for outcome in outcomes):
                    break
                left, at_once = left - len(some), _LANES if answered else 1
    finally:
        let_go(host, answered=answered)
    if answered is not False and due(host).exists():
        dispatch.send(host, dispatch.CALLBACK)
    return arrived


def _heard(outcomes: Sequence[Outcome], before: bool | None) -> bool | None:
    """Say whether the host answered at last; None where nobody called it."""
    if any(outcome.code in _UNHEARD for outcome in outcomes):
        return False
    return True if any(outcome.status is not None for outcome in outcomes) else before


def _attempt(some: Sequence[Delivery], lanes: Executor) -> list[Outcome]:
    """Try once to deliver each of these, at the same time, and say how that came out."""
    prepared = [_prepared(delivery) for delivery in some]
    return list(lanes.map(_sent, some, prepared))


def _prepared(delivery: Delivery) -> dict[str, str] | Outcome:
    """Return the headers of a message, or why it is not sent at all."""
    # Who submitted something reaches all of it; a webhook tells of the work of others too.
    several = bool(delivery.webhook_id and delivery.workload and not delivery.namespace)
    if not may_be_told(delivery.owner, delivery.namespace, several=several):
        return Outcome(code="OwnerGone", message="whoever asked for this may not see it any more", final=True)
    try:
        secrets = secrets_of(delivery)
    except InputError as refused:
        return Outcome(code=refused.code, message=refused.message)
    now = int(timezone.now().timestamp())
    return {**_JSON, **signed_headers(secrets, delivery.pk, now, delivery.body.encode())}


def _sent(delivery: Delivery, headers: dict[str, str] | Outcome) -> Outcome:
    """Send a message; nothing is asked of the database here."""
    if isinstance(headers, Outcome):
        return headers
    began = time.monotonic()
    try:
        answer = call(delivery.url, allowed(), method="POST", headers=headers, body=delivery.body.encode(), most=0)
    except Refused as refused:
        return Outcome(_millis(began), code=refused.code, message=refused.message)
    if 200 <= answer.status < 300:
        return Outcome(_millis(began), answer.status)
    asked = answer.headers.get("retry-after", "")
    return Outcome(
        _millis(began),
        answer.status,
        f"Answer{answer.status}",
        wait_seconds=float(asked) if answer.status in _BUSY and _SECONDS.fullmatch(asked) else 0.0,
        final=answer.status == GONE,
    )


def _millis(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
