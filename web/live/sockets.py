"""Serve one live socket: `{"action":"subscribe|unsubscribe|refetch","topics":[…]}` in, numbered messages out.

A subscription may also contain `"since":{topic: revision}` and `"merge":true`.
Each socket has two tasks, a reader and a writer; the hub fills the writer's queue. Close codes: 4401 not or no longer
logged in, 4403 not or no longer permitted, 4404 unknown address, 4429 too many sockets or messages, 1003 not text, 1009
too long. Sockets are counted per address before authentication, and per user or token after it. Permissions are checked
again when they change (`recall.py`), and every 30 seconds. Database reads go through the single thread that Channels
reserves for them, so sockets never use more than one connection.
Invariant: a socket always leaves the hub, however it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import structlog
from django.conf import settings

from hetsched.access.addresses import counted_as
from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.journal.publish import message
from web.api.monitoring.prometheus import SOCKETS

from . import rights, socket_reads
from .hub import ERROR, Hub, Listener, hub
from .recall import until_rights_change

RECHECK_SECONDS = 30.0
MAX_TEXT = 64 * 1024
MAX_TOPICS = 200
MESSAGES_PER_SECOND = 10
BURST = 20
MOST_WAITING = 500
PROTOCOL = "hetsched.live.v1"

UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, TOO_MANY, NOT_TEXT, TOO_LONG = 4401, 4403, 4404, 4429, 1003, 1009
log = structlog.get_logger(__name__)
_open: Counter[str] = Counter()


class SocketCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of a client.

    For subscriptions, `since` has the revisions that the client already has; `merge`: the client accepts merged events
    from now on.
    """

    action: Literal["subscribe", "unsubscribe", "refetch"]
    topics: list[str]
    since: dict[str, int] = {}
    merge: bool = False


_command = msgspec.json.Decoder(SocketCommand)


class SocketClosed(Exception):
    """End this socket with a code."""

    def __init__(self, code: int) -> None:
        self.code = code


async def live(scope: Any, receive: Any, send: Any) -> None:
    """Serve one WebSocket; an ASGI application."""
    if (await receive())["type"] != "websocket.connect":
        return
    # A browser receives the close code only if the socket was accepted first.
    await send({"type": "websocket.accept", "subprotocol": _chosen(scope.get("subprotocols", ()))})
    address = counted_as((scope.get("client") or ("",))[0])
    try:
        with _counted(f"address {address}", settings.HETSCHED_SOCKETS_PER_ADDRESS):
            known = await rights.who(rights.brought(scope))
            asker = _checked(known.asker)
            with _counted(asker.owner, settings.HETSCHED_SOCKETS_PER_USER), SOCKETS.track_inprogress():
                await _Socket(known, asker, receive, send).run()
    except SocketClosed as closed:
        await send({"type": "websocket.close", "code": closed.code})
    except OSError:
        pass  # the client disconnected during a send


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    """Close a WebSocket at an address that does not exist; an ASGI application."""
    if (await receive())["type"] == "websocket.connect":
        await send({"type": "websocket.accept", "subprotocol": _chosen(scope.get("subprotocols", ()))})
        await send({"type": "websocket.close", "code": NOT_FOUND})


@contextmanager
def _counted(key: str, most: int) -> Iterator[None]:
    """Count an open socket under a key. Raises: SocketClosed if there are too many."""
    if _open[key] >= most:
        log.warning("live.too_many", counted=key, most=most)
        raise SocketClosed(TOO_MANY)
    _open[key] += 1
    try:
        yield
    finally:
        _open[key] -= 1
        if not _open[key]:
            del _open[key]


def _chosen(offered: Any) -> str | None:
    """Select our own subprotocol, else the first offered one, because browsers abort without a selection."""
    return PROTOCOL if PROTOCOL in offered else next(iter(offered), None)


def _checked(asker: Subject | None) -> Subject:
    """Return the subject of a socket. Raises: SocketClosed without permission."""
    if asker is None:
        raise SocketClosed(UNAUTHENTICATED)
    if not asker.may(Action.VIEW):
        raise SocketClosed(FORBIDDEN)
    return asker


class _Socket:
    def __init__(self, known: rights.SubjectLookup, asker: Subject, receive: Any, send: Any) -> None:
        self.known = known
        self.asker = asker
        self.receive = receive
        self.send = send
        self.listener = Listener()
        # Topic in the hub -> the topic name that this client used.
        self.names: dict[str, str] = {}
        self.hub: Hub
        self.tokens = float(BURST)
        self.last_message = time.monotonic()

    async def run(self) -> None:
        self.hub = await hub(socket_reads.snapshot, socket_reads.revisions, socket_reads.recent)
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._recheck())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.hub.leave(self.listener, list(self.names))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- in ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            event = await self.receive()
            if event["type"] == "websocket.disconnect":
                return
            self._throttle()
            text = event.get("text")
            if text is None:
                raise SocketClosed(NOT_TEXT)
            if len(text) > MAX_TEXT or len(text.encode(errors="replace")) > MAX_TEXT:
                raise SocketClosed(TOO_LONG)
            try:
                command = _command.decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                self._send_error("", "MessageInvalid", str(error)[:300])
                continue
            await self._obey(command)

    def _throttle(self) -> None:
        now = time.monotonic()
        self.tokens = min(BURST, self.tokens + (now - self.last_message) * MESSAGES_PER_SECOND) - 1
        self.last_message = now
        if self.tokens < 0:
            raise SocketClosed(TOO_MANY)

    async def _obey(self, command: SocketCommand) -> None:
        wanted = list(dict.fromkeys(command.topics))[: MAX_TOPICS + 1]
        if command.action == "subscribe":
            self.listener.merges = self.listener.merges or command.merge
            await self._subscribe(wanted, command.since)
            return
        known = {asked: topic for topic, asked in self.names.items()}
        for asked in wanted:
            topic = known.get(asked)
            if topic is None:
                self._send_error(asked, "TopicNotSubscribed", "this socket does not listen to it")
            elif command.action == "refetch":
                self.listener.mark_stale(topic)
            else:
                self._drop(topic)

    async def _subscribe(self, wanted: list[str], since: dict[str, int]) -> None:
        if len(self.names) + len(wanted) > MAX_TOPICS:
            self._send_error("", "TooManyTopics", f"a socket listens to at most {MAX_TOPICS} topics")
            return
        for found in await asyncio.gather(*map(socket_reads.resolve, wanted)):
            denied = found.denied or rights.may_listen(self.asker, found.topic, found.namespaces)
            if denied is not None:
                self._send_error(found.asked, denied.code, denied.detail)
            elif found.topic not in self.names:
                self.names[found.topic] = found.asked
                self.hub.join(self.listener, [found.topic], since.get(found.asked))
            else:
                if found.asked in since:
                    self.listener.since[found.topic] = since[found.asked]
                self.listener.mark_stale(found.topic)

    def _drop(self, topic: str) -> None:
        del self.names[topic]
        self.hub.leave(self.listener, [topic])

    # -- out -----------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        listener = self.listener
        while True:
            await listener.ready.wait()
            listener.ready.clear()
            while listener.queue or listener.stale:
                if listener.queue:
                    await self._send(*listener.queue.popleft())
                else:
                    await self._refresh(next(iter(listener.stale)))

    async def _refresh(self, topic: str) -> None:
        try:
            text = await self.hub.refresh(self.listener, topic)
        except Exception as error:  # without the database the client keeps its data
            log.warning("live snapshot not read", topic=topic, error=repr(error))
            await asyncio.sleep(1)
            return
        if text is not None:
            await self._send(topic, text)
        elif topic in self.listener.stale and topic in self.names:
            asked = self.names[topic]
            self._drop(topic)
            self._send_error(asked, "TopicUnknown", "there is no such topic any more")

    async def _send(self, topic: str, text: str) -> None:
        asked = self.names.get(topic, topic if topic == ERROR else None)
        if asked is None:
            return
        if asked != topic:
            text = socket_reads.renamed(text, topic, asked)
        if self.asker.namespaces is not None:
            text = socket_reads.redacted(topic, text, self.asker.namespaces)
            if topic != ERROR:
                await socket_reads.watch(topic, text, self.asker.namespaces)
        await self.send({"type": "websocket.send", "text": text})

    def _send_error(self, asked: str, code: str, detail: str) -> None:
        if len(self.listener.queue) > MOST_WAITING:
            raise SocketClosed(TOO_MANY)
        self.listener.put(ERROR, message(asked, 0, {"code": code, "detail": detail}, "error"))

    # -- rights --------------------------------------------------------------------------------------------------

    async def _recheck(self) -> None:
        while True:
            await until_rights_change(self.known.number, RECHECK_SECONDS)
            self.known = await rights.who_still(self.known.held)
            asker = _checked(self.known.asker)
            narrowed = asker.namespaces != self.asker.namespaces
            self.asker = asker
            if narrowed:
                asked = list(self.names.values())
                for topic in list(self.names):
                    self._drop(topic)
                await self._subscribe(asked, {})
