"""What is checked before Django sees a connection: body size and the origin of a WebSocket.

Problem: Django's ASGI handler stores a whole request body before any middleware runs, and a browser sends cookies with
a WebSocket handshake from any site.
Rule: a body is counted while it streams and refused with 413 once it passes the cap of its path. A handshake with an
`Origin` must name this very scheme, host and port (or a trusted origin); one without an `Origin` comes from a program
and brings its token as the subprotocol `bearer.<token>`, never a cookie; without one the socket itself says 4401.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog
from django.conf import settings
from django.http.request import split_domain_port, validate_host

from hetsched.contracts.agent_message import MOST_MESSAGE_BYTES

from .middleware import id_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[..., Any]
log = structlog.get_logger(__name__)


class _BodyTooLarge(Exception):
    pass


def cap_for(path: str) -> int:
    """Return how many bytes a request to this path may bring."""
    if path.startswith(settings.HETSCHED_REPORT_PATHS):
        return MOST_MESSAGE_BYTES
    if path.startswith(settings.HETSCHED_BINARY_PATHS):
        return int(settings.HETSCHED_BINARY_BYTES)
    large = path.startswith(settings.HETSCHED_LARGE_PATHS)
    return int(settings.HETSCHED_MANIFEST_BYTES if large else settings.HETSCHED_BODY_BYTES)


class BodyCap:
    """Refuse a request whose body is larger than the cap of its path."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cap = cap_for(scope["path"])
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:19]) > cap:
            await _refuse_body(send, cap, scope)
            return
        received = 0
        answered = False

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > cap:
                raise _BodyTooLarge
            return message

        async def noted_send(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted_receive, noted_send)
        except _BodyTooLarge:
            if not answered:
                await _refuse_body(send, cap, scope)


async def _refuse_body(send: Send, cap: int, scope: Any) -> None:
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    request_id = id_of(given)
    log.info("request", method=scope["method"], path=scope["path"], status=413, request_id=request_id)
    document = {
        "type": "about:blank",
        "title": "Content Too Large",
        "status": 413,
        "code": "BodyTooLarge",
        "detail": f"the body is larger than {cap} bytes",
        "requestId": request_id,
    }
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})


class SameOrigin:
    """Refuse a WebSocket handshake from a foreign page before it is accepted."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if handshake_allowed(scope):
            await self.app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 4403})


def handshake_allowed(scope: Any) -> bool:
    """Say whether this handshake comes from our own pages or from a program with a token of its own."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        return False
    origin = headers.get(b"origin")
    if origin is None:
        return b"cookie" not in headers
    text = origin.decode("latin-1").lower()
    scheme = "https" if settings.SESSION_COOKIE_SECURE or scope.get("scheme") == "wss" else "http"
    return text == f"{scheme}://{host}" or text in settings.CSRF_TRUSTED_ORIGINS
