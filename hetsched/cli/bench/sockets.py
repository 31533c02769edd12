"""Many WebSocket clients that behave like pages, for `bench console`.

Every socket accepts several events in one message, resumes at its last revision after a disconnect, and records when
each revision arrived; a few sockets also store the whole document. If a message starts after the revision of its
socket, events are missing (a detected gap), and the socket requests the snapshot. If a document differs at the end, a
gap was not detected. Frames are parsed on arrival, without a task or a queue for each message, because the clients
share the machine with the server under test.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import msgspec
from websockets import Subprotocol
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError

_WHOLE = 3
_START_SECONDS = 120.0
_PAUSE_SECONDS = (0.5, 2.0)  # pages reconnect with the same random pause


class _EventHead(msgspec.Struct):
    topic: str
    revision: int
    type: str
    since: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"{}")


_head = msgspec.json.Decoder(_EventHead)
_silent = logging.getLogger(f"{__name__}.frames")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def merged(document: Any, patch: Any) -> Any:
    """Apply an RFC 7396 merge patch, in place where possible."""
    if not isinstance(patch, dict):
        return patch
    result = document if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class _SocketClient:
    """WebSocket client of one topic, with its revision and, if `whole`, its document; it reconnects when closed."""

    def __init__(self, url: str, token: str, topic: str, *, whole: bool) -> None:
        self.uri = parse_uri(url.replace("http", "ws", 1) + "/ws/live/")
        self.token = token
        self.topic = topic
        self.whole = whole
        self.revision = -1
        self.document: Any = {}
        self.deltas: list[tuple[int, int, float]] = []
        self.greeted: list[float] = []
        self.gaps = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):  # TimeoutError is a subclass
                async with asyncio.timeout(_START_SECONDS):
                    _, line = await loop.create_connection(
                        lambda: _SocketConnection(self), self.uri.host, self.uri.port
                    )
                try:
                    async with asyncio.timeout(_START_SECONDS):
                        await line.greeted.wait()
                    await line.over.wait()
                finally:
                    line.end()
            await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 - jitter, not a secret

    def take(self, text: Any) -> str:
        """Process a message; return the action to request from the server ("refetch" after a gap), or ""."""
        message = _head.decode(text)
        if message.type == "snapshot":
            self.revision = message.revision
            if self.whole:
                self.document = msgspec.json.decode(message.data)
        elif message.type == "delta" and message.revision > self.revision >= 0:
            since = message.revision - 1 if message.since is None else message.since
            if since > self.revision:
                self.gaps += 1
                self.revision = -1
                return "refetch"
            self.deltas.append((self.revision, message.revision, time.time()))
            self.revision = message.revision
            if self.whole:
                self.document = merged(self.document, msgspec.json.decode(message.data))
        return ""


class _SocketConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client: _SocketClient) -> None:
        self.greeted, self.over = asyncio.Event(), asyncio.Event()
        self._client = client
        self._frames = ClientProtocol(
            client.uri, subprotocols=[Subprotocol(f"bearer.{client.token}")], max_size=None, logger=_silent
        )
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._frames.send_request(self._frames.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Response):
                if self._frames.state is State.OPEN:
                    since = {self._client.topic: self._client.revision} if self._client.revision >= 0 else {}
                    self._ask(action="subscribe", since=since, merge=True)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                if not self.greeted.is_set():
                    self.greeted.set()
                    self._client.greeted.append(time.time())
                if asked := self._client.take(event.data):
                    self._ask(action=asked)
        self._send()
        if self._frames.close_expected():
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        self.greeted.set()
        self.over.set()

    def end(self) -> None:
        self._transport.abort()

    def _ask(self, **command: Any) -> None:
        self._frames.send_text(encode({"topics": [self._client.topic], **command}))

    def _send(self) -> None:
        """Send pending frames, including pongs."""
        if found := b"".join(self._frames.data_to_send()):
            self._transport.write(found)


class Sockets:
    """WebSocket clients of one topic, whose event loop runs in a separate thread."""

    def __init__(self, url: str, token: str, topic: str, count: int) -> None:
        self._clients = [_SocketClient(url, token, topic, whole=number < _WHOLE) for number in range(count)]
        self._one = lambda: _SocketClient(url, token, topic, whole=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._began = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        for made in self._clients:
            self._start(made)
        until = time.monotonic() + _START_SECONDS
        while any(made.revision < 0 for made in self._clients):
            if time.monotonic() > until:
                raise InputError("BenchmarkFailed", "some sockets received no response")
            time.sleep(0.1)
        self._began = time.time()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, made: _SocketClient) -> Any:
        return asyncio.run_coroutine_threadsafe(made.run(), self._loop)

    def received(self) -> Iterator[tuple[int, float]]:
        """Yield, for every socket, each revision that it received as an event, and the time of arrival."""
        for made in self._clients:
            for before, revision, at in list(made.deltas):
                for number in range(before + 1, revision + 1):
                    yield number, at

    def rates(self) -> list[float]:
        """Return the average number of messages per second of each socket."""
        took = max(time.time() - self._began, 1e-9)
        return [len(made.deltas) / took for made in self._clients]

    @property
    def gaps(self) -> int:
        """The number of gaps that the sockets detected; each was followed by a request for the snapshot."""
        return sum(made.gaps for made in self._clients)

    @property
    def compared(self) -> int:
        return len(self._clients)

    def fresh_document(self) -> Any:
        """Return the document that a new socket gets."""
        made = self._one()
        future = self._start(made)
        until = time.monotonic() + _START_SECONDS
        while made.revision < 0 and time.monotonic() < until:
            time.sleep(0.05)
        future.cancel()
        if made.revision < 0:
            raise InputError("BenchmarkFailed", "a new socket received no response")
        return made.document

    def behind(self, newest: int, fresh: Any) -> int:
        """Return the number of sockets without the newest revision, or with a different document."""
        return sum(made.revision != newest or (made.whole and made.document != fresh) for made in self._clients)
