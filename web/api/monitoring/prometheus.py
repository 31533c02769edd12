"""`/metrics`: Prometheus metrics, without names of nodes, pods or users.

Fleet metrics are read from the database (`fleet.py`); process metrics (requests, sockets) are counted in this module.
Access is allowed for requests from this machine, for `HETSCHED_METRICS_TOKEN`, for tokens with view permission and for
logged-in users with view permission. A request that a proxy on this machine forwards for a client does not count as a
request from this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import structlog
from django.conf import settings
from django.db import Error
from django.http import HttpResponse
from django.urls import path
from django.utils.crypto import constant_time_compare
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.access.tokens import resolve

from ..problems import RequestRefused, read_only, response
from .fleet import Fleet

REGISTRY = CollectorRegistry()
REQUESTS = Histogram(
    "hetsched_request_seconds",
    "Response time of REST requests, by route.",
    ["method", "route", "status"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SOCKETS = Gauge("hetsched_sockets", "Open live sockets of this process.", registry=REGISTRY)
GAPS = Counter("hetsched_live_gaps", "Live events lost by the broker and found by polling.", registry=REGISTRY)
DROPPED = Counter("hetsched_live_dropped", "Live events dropped because a client was too slow.", registry=REGISTRY)
RATE_LIMITED = Counter("hetsched_rate_limited", "Requests rejected by the rate limit.", ["kind"], registry=REGISTRY)
OUT_OF_SCOPE = Counter(
    "hetsched_out_of_scope_names",
    "Responses and live messages that name a pod outside the namespaces of the token; expected to be 0.",
    ["route"],
    registry=REGISTRY,
)
REGISTRY.register(Fleet())
log = structlog.get_logger(__name__)
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-Ip")


def scrape(request: Any) -> HttpResponse:
    """Return the metrics, or a problem document if the caller may not read them."""
    if refused := _refusal(request):
        return response(refused, request)
    try:
        figures = generate_latest(REGISTRY if _is_unlimited(request) else _LimitedRegistry())
    except Error:
        log.warning("metrics cannot be read", exc_info=True)
        return response(RequestRefused(503, "StorageUnavailable", "the database does not respond"), request)
    return HttpResponse(figures, content_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})


class _LimitedRegistry:
    """Metrics registry for tokens that are limited to namespaces; it omits the counter of redacted names.

    From that counter, a client could learn whether a pod name that it guessed occurs in a response.
    """

    def collect(self) -> Iterator[Metric]:
        alarms = {metric.name for metric in OUT_OF_SCOPE.describe()}
        return (metric for metric in REGISTRY.collect() if metric.name not in alarms)


def _is_unlimited(request: Any) -> bool:
    """Return whether the request has no token that is limited to namespaces."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    token = resolve(given) if kind.lower() == "bearer" else None
    return token is None or not token.namespaces


def _refusal(request: Any) -> RequestRefused | None:
    """Return the error for a caller that may not read metrics, or None if it may."""
    detail = "metrics require a request from the server's machine, the server's metrics token or a viewer token"
    unknown = RequestRefused(401, "NotAuthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="hetsched"'})
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        expected = settings.HETSCHED_METRICS_TOKEN
        if expected and constant_time_compare(given, expected):
            return None
        token = resolve(given)
        if token is None:
            return unknown
        return None if Subject(token.user, token).may(Action.VIEW) else RequestRefused(403, "PermissionDenied", detail)
    return None if _is_local(request) or subject_of(request).may(Action.VIEW) else unknown


def _is_local(request: Any) -> bool:
    if any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


routes = [path("metrics", read_only(scrape))]
