"""Request ID on every response, and one log record per request.

A caller's `X-Request-ID` is used if it consists of 8-64 letters, digits, `-` and `_`; otherwise a new ID is generated.
Problem documents and logs contain the same ID.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse

PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
QUIET_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})
log = structlog.get_logger(__name__)


class BodyRequested(HttpResponse):
    """Result of the first pass of a request with a large body: read the body, or refuse the request with `refused`."""

    def __init__(self, refused: Exception | None = None) -> None:
        super().__init__(status=202)
        self.refused = refused


def choose_request_id(given: str) -> str:
    """Return the caller's request ID if it is valid, or else a new one."""
    return given if PLAIN_ID.fullmatch(given) else uuid.uuid4().hex


class RequestLog:
    """Outermost middleware that sets the request ID and its header, and logs method, path, status and duration."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = choose_request_id(request.headers.get("X-Request-ID", ""))
        request.request_id = request_id  # type: ignore[attr-defined]
        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
            if isinstance(response, BodyRequested):
                return response
            response["X-Request-ID"] = request_id
            record = log.debug if request.path in QUIET_PATHS else log.info
            record(
                "request",
                method=request.method,
                path=request.path,
                status=response.status_code,
                milliseconds=round((time.perf_counter() - started) * 1000, 1),
            )
        return response
