"""Rate limits of the REST API.

A write takes a token from a bucket that all web processes share, before the request's body is read. Submissions have a
separate bucket, whose size an API token may set. A read takes a token from a bucket of this process, and a request
without a credential takes one from the bucket of its client address. A request above a limit has no effect and gets 429
`RateLimited` with `Retry-After`. Agents have their own rate limit (`inventory.agent_messages`).
A write that waited in the server's queue longer than `HETSCHED_LONGEST_QUEUE_MILLIS`, because this process is
overloaded, gets 429 `ServerBusy` before anything is read, so that later requests are answered in time.
Invariant: writes that cannot be counted, because the database does not respond, are rejected (503).
"""

from __future__ import annotations

from typing import Any

from django.conf import settings

from hetsched.access.addresses import address_key
from hetsched.access.limits import Limit, LocalBuckets, RateLimitResult, take
from hetsched.access.subject import Subject
from hetsched.contracts.message import Message

from .monitoring.prometheus import RATE_LIMITED
from .problems import RequestRefused

SUBMIT = "submit"
WRITE = "write"
READ = "read"
STRANGER = "stranger"
BUSY = "busy"
BUSY_SECONDS = 1
AGAIN_WITH_KEY = "Try again in {n} s; repeat a submission with the same Idempotency-Key"
reads = LocalBuckets()


def refuse_late(request: Any) -> None:
    """Reject a write that waited too long in the server's queue, before its caller is authenticated.

    Raises: RequestRefused 429.
    """
    most = settings.HETSCHED_LONGEST_QUEUE_MILLIS
    waited = 1000 * getattr(request, "scope", {}).get("waited_seconds", 0.0)
    if not most or waited <= most:
        return
    RATE_LIMITED.labels(BUSY).inc()
    raise RequestRefused(
        429,
        "ServerBusy",
        "the server is overloaded; nothing was changed",
        hint=Message(AGAIN_WITH_KEY, n=BUSY_SECONDS),
        headers={"Retry-After": str(BUSY_SECONDS)},
    )


def limit_of(kind: str, subject: Subject) -> Limit:
    """Return the rate limit of a subject."""
    own = subject.token.submits_per_minute if subject.token is not None and kind == SUBMIT else None
    if own is not None:
        return Limit(own, max(1, min(own, settings.HETSCHED_SUBMITS_AT_ONCE)))
    names = {SUBMIT: "SUBMITS", WRITE: "WRITES", READ: "READS"}[kind]
    return Limit(getattr(settings, f"HETSCHED_{names}_PER_MINUTE"), getattr(settings, f"HETSCHED_{names}_AT_ONCE"))


def max_submissions(kind: str, subject: Subject) -> int | None:
    """Return the maximum number of submissions in one request, or None if there is no limit."""
    limit = limit_of(kind, subject)
    return limit.burst if limit.per_minute else None


def take_token(kind: str, subject: Subject, amount: int = 1) -> dict[str, str]:
    """Count a request of a subject, or `amount` submissions in one request.

    Returns: the rate-limit headers, which contain the number of remaining requests.
    Raises: RequestRefused 429, or 403 if the token must not submit.
    """
    limit = limit_of(kind, subject)
    if limit.per_minute == 0:
        if kind == SUBMIT and subject.token is not None and subject.token.submits_per_minute == 0:
            raise RequestRefused(
                403, "SubmissionsNotAllowed", "this token may not submit workloads", hint="Use another token"
            )
        return {}
    key = f"{kind} {subject.owner}"
    taken = reads.take(key, limit) if kind == READ else take(key, limit, amount)
    return _admit(kind, limit, taken, AGAIN_WITH_KEY)


def take_anonymous_token(request: Any) -> dict[str, str]:
    """Take a token for a request without authentication from the bucket of its client address, and return rate-limit
    headers.

    Raises: RequestRefused 429.
    """
    limit = Limit(settings.HETSCHED_STRANGERS_PER_MINUTE, settings.HETSCHED_STRANGERS_AT_ONCE)
    if limit.per_minute == 0:
        return {}
    return _admit(STRANGER, limit, reads.take(f"{STRANGER} {address_key(request)}", limit))


def _admit(kind: str, limit: Limit, taken: RateLimitResult, hint: str = "Try again in {n} s") -> dict[str, str]:
    if taken.admitted:
        return _headers(limit, taken)
    RATE_LIMITED.labels(kind).inc()
    template = "more than {n} requests of this kind per minute, or a burst of more than {m}"
    raise RequestRefused(
        429,
        "RateLimited",
        Message(template, n=f"{limit.per_minute:g}", m=limit.burst),
        hint=Message(hint, n=taken.wait_seconds),
        headers={"Retry-After": str(taken.wait_seconds), **_headers(limit, taken)},
    )


def _headers(limit: Limit, taken: RateLimitResult) -> dict[str, str]:
    return {"RateLimit-Limit": str(limit.burst), "RateLimit-Remaining": str(taken.remaining)}
