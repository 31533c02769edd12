"""Send the due webhook deliveries of one host, outside any transaction.

One process at a time sends to a host, for up to `ROUND_SECONDS`; then the next task continues. A host that responds
receives eight deliveries at a time. An attempt takes at most five seconds and does not follow redirects. Only the
response status is used, and the body is never read. Data that the owner may not see is not sent, and a delivery that
requires a signature is never sent unsigned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.access.owners import may_receive
from hetsched.adapters.http.outbound import OutboundError, call
from hetsched.adapters.http.signed_messages import signed_headers
from hetsched.contracts.errors import InputError
from hetsched.placement import dispatch
from hetsched.placement.models import Delivery
from hetsched.placement.notifications.callbacks import allowed_hosts
from hetsched.placement.notifications.deliveries import (
    GONE,
    DeliveryOutcome,
    due_deliveries,
    lock_host,
    record_outcome,
    secrets_of,
    unlock_host,
)

ROUND_SECONDS = 10.0
_AT_MOST = 200
_LANES = 8
_JSON = {"Content-Type": "application/json"}
_BUSY = (429, 503)
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
# Error codes of host failures, which pause deliveries to the host. With other codes, hetsched itself rejected the
# delivery.
_HOST_FAILURES = frozenset({"HostSlow", "HostUnreachable", "HostUntrusted"})
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.CALLBACK)
def run(host: str) -> int:
    """Send the due deliveries of a host; return how many succeeded."""
    if not due_deliveries(host).exists() or not lock_host(host):
        return 0
    arrived, answered = 0, None
    until, remaining, at_once = time.monotonic() + ROUND_SECONDS, _AT_MOST, 1
    try:
        with ThreadPoolExecutor(_LANES) as lanes:
            # Query again in each iteration, because an outcome may pause other deliveries. The first delivery is sent
            # alone, as a probe.
            while remaining > 0 and time.monotonic() < until and (batch := list(due_deliveries(host)[:at_once])):
                outcomes = _attempt_deliveries(batch, lanes)
                for delivery, outcome in zip(batch, outcomes, strict=True):
                    record_outcome(delivery, outcome)
                    arrived += outcome.arrived
                    if not outcome.arrived:
                        log.info("delivery failed", id=delivery.pk, host=host, status=outcome.status, code=outcome.code)
                answered = _responds(outcomes, answered)
                if answered is False or any(outcome.wait_seconds for outcome in outcomes):
                    break
                remaining, at_once = remaining - len(batch), _LANES if answered else 1
    finally:
        unlock_host(host, answered=answered)
    if answered is not False and due_deliveries(host).exists():
        dispatch.send(host, dispatch.CALLBACK)
    return arrived


def _responds(outcomes: Sequence[DeliveryOutcome], before: bool | None) -> bool | None:
    """Return whether the host responds, or `before` if the outcomes do not show it."""
    if any(outcome.code in _HOST_FAILURES for outcome in outcomes):
        return False
    return True if any(outcome.status is not None for outcome in outcomes) else before


def _attempt_deliveries(batch: Sequence[Delivery], lanes: Executor) -> list[DeliveryOutcome]:
    """Attempt these deliveries in parallel and return their outcomes."""
    headers = [_prepare(delivery) for delivery in batch]
    return list(lanes.map(_send, batch, headers))


def _prepare(delivery: Delivery) -> dict[str, str] | DeliveryOutcome:
    """Return the headers of a delivery, or the outcome if it must not be sent."""
    # A submitter may see all pods of the workload, but a webhook also reports workloads of other users. So the owner
    # of the webhook needs access to all namespaces if the workload has pods in several.
    several = bool(delivery.webhook_id and delivery.workload and not delivery.namespace)
    if not may_receive(delivery.owner, delivery.namespace, several=several):
        return DeliveryOutcome(code="OwnerGone", message="the requester no longer has access", final=True)
    try:
        secrets = secrets_of(delivery)
    except InputError as refused:
        return DeliveryOutcome(code=refused.code, message=refused.message)
    now = int(timezone.now().timestamp())
    return {**_JSON, **signed_headers(secrets, delivery.pk, now, delivery.body.encode())}


def _send(delivery: Delivery, headers: dict[str, str] | DeliveryOutcome) -> DeliveryOutcome:
    """Send one delivery; runs in a thread without database access."""
    if isinstance(headers, DeliveryOutcome):
        return headers
    began = time.monotonic()
    try:
        answer = call(
            delivery.url, allowed_hosts(), method="POST", headers=headers, body=delivery.body.encode(), most=0
        )
    except OutboundError as refused:
        return DeliveryOutcome(_millis(began), code=refused.code, message=refused.message)
    if 200 <= answer.status < 300:
        return DeliveryOutcome(_millis(began), answer.status)
    retry_after = answer.headers.get("retry-after", "")
    return DeliveryOutcome(
        _millis(began),
        answer.status,
        f"Answer{answer.status}",
        wait_seconds=float(retry_after) if answer.status in _BUSY and _SECONDS.fullmatch(retry_after) else 0.0,
        final=answer.status == GONE,
    )


def _millis(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
