"""Many sockets that listen as pages do: for `bench console`.

Rule: every socket takes several events as one, goes on after what it has when it was cut off, and notes when which
revisions reached it; a few also keep the whole document. A message that begins after what a socket has is a gap that is
noticed, and asked for again; a document that differs in the end is one that nobody noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import websockets

from hetsched.contracts.errors import InputError

_WHOLE = 3
_START_SECONDS = 120.0
_PAUSE_SECONDS = (0.5, 2.0)  # pages come back as spread out


class _Head(msgspec.Struct):
    topic: str
    revision: int
    type: str
    since: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"{}")


_head = msgspec.json.Decoder(_Head)


def merged(document: Any, patch: Any) -> Any:
    """Apply an RFC 7396 merge patch, in place where that is possible."""
    if not isinstance(patch, dict):
        return patch
    result = document if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class _Socket:
    def __init__(self, url: str, token: str, topic: str, *, whole: bool) -> None:
        self._url = url.replace("http", "ws", 1) + "/ws/live/"
        self._token = token
        self._topic = topic
        self.whole = whole
        self.revision = -1
        self.document: Any = {}
        self.heard: list[tuple[int, int, float]] = []
        self.greeted: list[float] = []
        self.gaps = 0

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException):
                protocols = [websockets.Subprotocol(f"bearer.{self._token}")]
                async with websockets.connect(
                    self._url, subprotocols=protocols, max_size=None, compression=None, open_timeout=_START_SECONDS
                ) as socket:
                    since = {self._topic: self.revision} if self.revision >= 0 else {}
                    await self._ask(socket, action="subscribe", since=since, merge=True)
                    text = await socket.recv()
                    self.greeted.append(time.time())
                    await self._take(socket, _head.decode(text))
                    async for text in socket:
                        await self._take(socket, _head.decode(text))
            await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 - jitter, not a secret

    async def _ask(self, socket: Any, **command: Any) -> None:
        await socket.send(msgspec.json.encode({"topics": [self._topic], **command}).decode())

    async def _take(self, socket: Any, message: _Head) -> None:
        if message.type == "snapshot":
            self.revision = message.revision
            if self.whole:
                self.document = msgspec.json.decode(message.data)
        elif message.type == "delta" and message.revision > self.revision >= 0:
            since = message.revision - 1 if message.since is None else message.since
            if since > self.revision:
                self.gaps += 1
                self.revision = -1
                await self._ask(socket, action="refetch")
                return
            self.heard.append((self.revision, message.revision, time.time()))
            self.revision = message.revision
            if self.whole:
                self.document = merged(self.document, msgspec.json.decode(message.data))


class Sockets:
    """So many sockets on one topic, in a thread of their own."""

    def __init__(self, url: str, token: str, topic: str, count: int) -> None:
        self._made = [_Socket(url, token, topic, whole=number < _WHOLE) for number in range(count)]
        self._one = lambda: _Socket(url, token, topic, whole=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._began = 0.0

    def __enter__(self) -> Sockets:
        self._thread.start()
        for made in self._made:
            self._start(made)
        until = time.monotonic() + _START_SECONDS
        while any(made.revision < 0 for made in self._made):
            if time.monotonic() > until:
                raise InputError("BenchmarkFailed", "not all sockets were answered")
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

    def _start(self, made: _Socket) -> Any:
        return asyncio.run_coroutine_threadsafe(made.run(), self._loop)

    def heard(self) -> Iterator[tuple[int, float]]:
        """Give each revision that reached a socket live, with the moment, for every socket."""
        for made in self._made:
            for before, revision, at in list(made.heard):
                for number in range(before + 1, revision + 1):
                    yield number, at

    def back_after(self, moment: float) -> list[float]:
        """Return for each socket in how many seconds after this moment it was answered anew; those that were."""
        return [min(at) - moment for made in self._made if (at := [at for at in made.greeted if at > moment])]

    def rates(self) -> list[float]:
        """Return the messages a second of each socket so far."""
        took = max(time.time() - self._began, 1e-9)
        return [len(made.heard) / took for made in self._made]

    @property
    def gaps(self) -> int:
        """How many gaps the sockets noticed and closed."""
        return sum(made.gaps for made in self._made)

    @property
    def compared(self) -> int:
        return len(self._made)

    def fresh_document(self) -> Any:
        """Return the document that a new socket gets."""
        made = self._one()
        future = self._start(made)
        until = time.monotonic() + _START_SECONDS
        while made.revision < 0 and time.monotonic() < until:
            time.sleep(0.05)
        future.cancel()
        if made.revision < 0:
            raise InputError("BenchmarkFailed", "a new socket was not answered")
        return made.document

    def behind(self, newest: int, fresh: Any) -> int:
        """Return how many sockets do not have the newest revision, or the whole document as it is."""
        return sum(made.revision != newest or (made.whole and made.document != fresh) for made in self._made)
