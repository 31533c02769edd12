"""Send what is due to one host, outside any transaction.

Rule: one process at a time for a host, for a few seconds, then the next task goes on. An attempt takes five seconds at
most and follows no redirect; the answer's status alone counts and its body is never read. What its owner may not see
any more is told to nobody, and what was to be signed is never sent unsigned.
"""

from __future__ import annotations

import re
import time

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.access.owners import may_be_told
from hetsched.adapters.outbound import Refused, call
from hetsched.adapters.signed_messages import signed_headers
from hetsched.contracts.errors import InputError
from hetsched.placement import dispatch
from hetsched.placement.callbacks import allowed
from hetsched.placement.deliveries import GONE, Outcome, due, hold, let_go, note, secrets_of
from hetsched.placement.models import Delivery

ROUND_SECONDS = 10.0
_AT_ONCE = 50
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
    until = time.monotonic() + ROUND_SECONDS
    try:
        for _ in range(_AT_ONCE):
            delivery = due(host).first()  # each time: what came of one may pause what else is due
            if delivery is None:
                break
            outcome = _attempt(delivery)
            note(delivery, outcome)
            arrived += outcome.arrived
            if not outcome.arrived:
                log.info("delivery failed", id=delivery.pk, host=host, status=outcome.status, code=outcome.code)
            if outcome.status is not None:
                answered = True
            elif outcome.code in _UNHEARD:
                answered = False
            if answered is False or outcome.wait_seconds or time.monotonic() > until:
                break
    finally:
        let_go(host, answered=answered)
    if answered is not False and due(host).exists():
        dispatch.send(host, dispatch.CALLBACK)
    return arrived


def _attempt(delivery: Delivery) -> Outcome:
    """Try once to deliver, and say how that came out."""
    if not may_be_told(delivery.owner, delivery.namespace):
        return Outcome(code="OwnerGone", message="whoever asked for this may not see it any more", final=True)
    body = delivery.body.encode()
    began = time.monotonic()
    try:
        headers = signed_headers(secrets_of(delivery), delivery.pk, int(timezone.now().timestamp()), body)
        sent = {"Content-Type": "application/json", **headers}
        answer = call(delivery.url, allowed(), method="POST", headers=sent, body=body, most=0)
    except (Refused, InputError) as refused:
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
