"""ASGI middleware in front of Django: body size limit and origin check of WebSockets.

A browser sends cookies with a WebSocket handshake from any site. The `Origin` of a handshake must therefore match
scheme, host and port of this server (or a trusted origin). A handshake without an `Origin` is sent by a program, which
passes its token as the subprotocol `bearer.<token>` and not as a cookie; without a token, the socket is closed with
4401. A body is counted while it streams and rejected with 413 when it exceeds the limit of its path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from hetsched.contracts.messages.agent_message import MOST_MESSAGE_BYTES
from hetsched.contracts.remedies import INSPECT_LOCALLY, SHORTEN_REPORT, SPLIT_REQUEST

from .bodies import BodyRefused, Message, Receive, Send, refuse

App = Callable[..., Any]


def body_limit(path: str) -> tuple[int, str]:
    """Return the maximum body size of a request to this path, in bytes, and the hint for larger bodies."""
    if path.startswith(settings.HETSCHED_REPORT_PATHS):
        return MOST_MESSAGE_BYTES, SHORTEN_REPORT
    if path.startswith(settings.HETSCHED_BINARY_PATHS):
        return settings.HETSCHED_BINARY_BYTES, INSPECT_LOCALLY
    large = path.startswith(settings.HETSCHED_LARGE_PATHS)
    return settings.HETSCHED_MANIFEST_BYTES if large else settings.HETSCHED_BODY_BYTES, SPLIT_REQUEST


class BodyCap:
    """ASGI middleware that rejects a request whose body is larger than the limit of its path."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        cap, hint = body_limit(scope["path"])
        too_large = BodyRefused(413, "BodyTooLarge", f"the body is larger than {cap} bytes", hint=hint)
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:19]) > cap:
            await refuse(too_large, scope, receive, send)
            return
        received = 0
        more, answered = True, False

        async def counted_receive() -> Message:
            nonlocal received, more
            message = await receive()
            more = message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > cap and not answered:
                raise too_large
            return message

        async def noted_send(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted_receive, noted_send)
        except BodyRefused as refused:
            if not answered:
                await refuse(refused, scope, receive if more else _disconnect_message, send)


async def _disconnect_message() -> Message:
    return {"type": "http.disconnect"}


class SameOrigin:
    """ASGI middleware that rejects a WebSocket handshake from a foreign page before it is accepted."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if handshake_allowed(scope):
            await self.app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 4403})


def handshake_allowed(scope: Any) -> bool:
    """Return whether this handshake comes from our own pages or from a program without cookies."""
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
