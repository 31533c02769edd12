"""`/metrics`: figures for Prometheus, without names of nodes, pods or people.

Rule: what concerns the fleet comes from the database (`fleet.py`); what concerns this process (requests, sockets) is
counted here. It answers this machine, whoever presents `HETSCHED_METRICS_TOKEN` or a token that may view, and people
who are logged in and may view. A proxy on this machine says for whom it asks; what it asks for others is not local.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import structlog
from django.conf import settings
from django.db import Error
from django.http import HttpResponse
from django.urls import path
from django.utils.crypto import constant_time_compare
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.access.tokens import resolve

from .fleet import Fleet
from .problems import Refused, read_only, response

REGISTRY = CollectorRegistry()
REQUESTS = Histogram(
    "hetsched_request_seconds",
    "Time to answer a REST request, by route.",
    ["method", "route", "status"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SOCKETS = Gauge("hetsched_sockets", "Live sockets open in this process.", registry=REGISTRY)
GAPS = Counter("hetsched_live_gaps", "Live events that the broker lost and a look found.", registry=REGISTRY)
DROPPED = Counter("hetsched_live_dropped", "Live events not sent because a reader was too slow.", registry=REGISTRY)
RATE_LIMITED = Counter(
    "hetsched_rate_limited", "Requests refused because one asker asked too often.", ["kind"], registry=REGISTRY
)
REGISTRY.register(Fleet())
log = structlog.get_logger(__name__)
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-Ip")


def scrape(request: Any) -> HttpResponse:
    """Answer a scrape, or say what is missing."""
    if refused := _refusal(request):
        return response(refused, request)
    try:
        figures = generate_latest(REGISTRY)
    except Error:
        log.warning("figures cannot be read", exc_info=True)
        return response(Refused(503, "StorageUnavailable", "the database does not answer"), request)
    return HttpResponse(figures, content_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})


def _refusal(request: Any) -> Refused | None:
    """Return why somebody gets no figures, if so."""
    detail = "figures are for this machine, and for a bearer token of the server's or of a viewer"
    unknown = Refused(401, "NotAuthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="hetsched"'})
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        expected = settings.HETSCHED_METRICS_TOKEN
        if expected and constant_time_compare(given, expected):
            return None
        token = resolve(given)
        if token is None:
            return unknown
        return None if Subject(token.user, token).may(Action.VIEW) else Refused(403, "PermissionDenied", detail)
    return None if _is_local(request) or subject_of(request).may(Action.VIEW) else unknown


def _is_local(request: Any) -> bool:
    if any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


routes = [path("metrics", read_only(scrape))]
