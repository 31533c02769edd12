"""Limits of request bodies: size before authentication, transfer rate and total memory.

Django's ASGI handler stores a whole body before any middleware runs, without a deadline. Here at most `MOST_UNVERIFIED`
bytes are read before the credential check of `project.handler`, and the rest after it. If the declared length is larger
than that, no part of the body is read before the check. A body must arrive with at least
`HETSCHED_BODY_BYTES_PER_SECOND`, counted from `GRACE_SECONDS` after its start, and end within `HETSCHED_BODY_SECONDS`.
The total size of the bodies in one process, and of the bodies from one address, is limited; a body counts until its
request is answered. The first `MOST_UNVERIFIED` bytes of each body are not counted, so that clients without a
credential cannot use up the capacity of others. A client that is refused while it sends its body has `LINGER_SECONDS`
to read the response; data that it sends in that time is discarded.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import RequestAborted

from hetsched.access.addresses import peer_key

from .middleware import choose_request_id

MOST_UNVERIFIED = 64 << 10
GRACE_SECONDS = 10.0
LINGER_SECONDS = 2.0
_RETRY_SECONDS = 10
_SEND_FEWER = "Send fewer requests at the same time, or try again later"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
log = structlog.get_logger(__name__)


class BodyRefused(Exception):
    """Raised if a request body is refused before it is read completely; the response contains the reason."""

    def __init__(self, status: int, code: str, detail: str, *, hint: str, retry: bool = False) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint = status, code, detail, hint
        self.retry = retry


class BodyMemory:
    """Account of the memory for request bodies in this process, in bytes by address; only the event loop changes it."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()

    def take(self, address: str, size: int) -> None:
        """Reserve bytes for a body.

        Raises: BodyRefused with status 429 if the limit of the process or of the address would be exceeded.
        """
        most = settings.HETSCHED_BODIES_BYTES_PER_ADDRESS
        if self.held[address] + size > most:
            message = f"the bodies of this address exceed {most} bytes"
            raise BodyRefused(429, "BodiesTooMany", message, hint=_SEND_FEWER, retry=True)
        if self.held.total() + size > settings.HETSCHED_BODIES_BYTES:
            message = "the bodies of all clients exceed the limit"
            raise BodyRefused(429, "BodiesTooMany", message, hint=_SEND_FEWER, retry=True)
        self.held[address] += size

    def release(self, address: str, size: int) -> None:
        self.held[address] -= size
        if self.held[address] <= 0:
            del self.held[address]


body_memory = BodyMemory()


class RequestBody:
    """Body of one request; `file` contains the part that was read."""

    def __init__(self, scope: Any, receive: Receive) -> None:
        self._receive = receive
        self._address = peer_key((scope.get("client") or ("",))[0])
        stated = dict(scope["headers"]).get(b"content-length", b"")
        self._stated = int(stated[:19]) if stated.isdigit() else 0
        self._began = time.monotonic()
        self._received = self._counted = 0
        self.complete = False
        self.file = tempfile.SpooledTemporaryFile(max_size=settings.FILE_UPLOAD_MAX_MEMORY_SIZE, mode="w+b")  # noqa: SIM115

    async def read_first(self) -> None:
        """Read all of a small body, the first part of a chunked body, or nothing of a large body.

        Raises: BodyRefused; RequestAborted if the client disconnected.
        """
        while not self.complete and self._stated <= MOST_UNVERIFIED and self._received < MOST_UNVERIFIED:
            await self._read()
        self.file.seek(0)

    async def read_rest(self) -> None:
        """Read the rest of the body.

        Raises: BodyRefused; RequestAborted.
        """
        self.file.seek(self._received)
        while not self.complete:
            await self._read()
        self.file.seek(0)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._seconds_left()):
                message = await self._receive()
        except TimeoutError:
            detail, hint = "the body arrives too slowly or takes too long", "Send it again over a faster connection"
            raise BodyRefused(408, "BodyTooSlow", detail, hint=hint) from None
        if message["type"] == "http.disconnect":
            raise RequestAborted
        piece = message.get("body", b"")
        beyond = max(0, self._received + len(piece) - MOST_UNVERIFIED) - self._counted
        if beyond > 0:
            body_memory.take(self._address, beyond)
            self._counted += beyond
        self.file.write(piece)
        self._received += len(piece)
        self.complete = not message.get("more_body", False)

    def _seconds_left(self) -> float:
        passed = time.monotonic() - self._began
        by_rate = GRACE_SECONDS + self._received / settings.HETSCHED_BODY_BYTES_PER_SECOND
        return max(0.0, min(by_rate, settings.HETSCHED_BODY_SECONDS) - passed)

    def close(self) -> None:
        self.file.close()
        if self._counted:
            body_memory.release(self._address, self._counted)
            self._counted = 0


class UnreadBody:
    """Placeholder for the body of a request whose credential is checked first."""

    def read(self, *_sizes: int) -> bytes:
        raise OSError("the body was not read")

    readline = read

    def close(self) -> None:
        pass


def send_and_drain(send: Send, receive: Receive) -> Send:
    """Wrap `send` so that a client that is still sending its body can read the response before the close."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0].lower() != b"connection"]
            await send({**message, "headers": [*headers, (b"connection", b"close")]})
            return
        if message.get("more_body"):
            await send(message)
            return
        await send({**message, "more_body": True})
        await _drain(receive)
        await send({"type": "http.response.body", "body": b""})

    return sent


async def _drain(receive: Receive) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass


async def refuse(refused: BodyRefused, scope: Any, receive: Receive, send: Send) -> None:
    """Respond with a problem document instead of reading the rest of a body."""
    request_id = choose_request_id(dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1"))
    log.info("request", method=scope["method"], path=scope["path"], status=refused.status, request_id=request_id)
    document = {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase if refused.status != 413 else "Content Too Large",
        "status": refused.status,
        "code": refused.code,
        "detail": refused.detail,
        "hint": refused.hint,
        "requestId": request_id,
    }
    content = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(content)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
        *([(b"retry-after", str(_RETRY_SECONDS).encode())] if refused.retry else []),
    ]
    held = send_and_drain(send, receive)
    await held({"type": "http.response.start", "status": refused.status, "headers": headers})
    await held({"type": "http.response.body", "body": content})
