"""Serve one live socket: the client sends `{"action":"subscribe|unsubscribe|refetch","topics":[…]}` and receives
numbered messages.

A subscription may also contain `"since":{topic: revision}` and `"merge":true`.
The consumer receives commands. Two tasks of each socket send the messages that the hub has queued for it, and check
permissions. Close codes: 4401 not logged in, 4403 not permitted, 4404 unknown URL, 4429 too many sockets or messages,
1003 not text, 1009 message too long. Sockets are counted per address before authentication, and per user or token after
it. Permissions are checked when they change, and every 30 seconds. Database reads run in the single thread that
Channels reserves for them, so sockets never use more than one connection.
Invariant: a socket always leaves the hub, however it ends.

Each revocation raises the revision of the topic `access` in the same transaction (`hetsched/access/changes.py`). One
task per process reads that revision from the database every second while sockets are open. Revocation therefore does
not depend on a message that may be lost, and a thousand sockets cost one query. A socket passes the revision that the
topic had before its permissions were read, so a new socket does not check them twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec
import structlog
from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from hetsched.access.addresses import peer_key
from hetsched.access.changes import TOPIC
from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.journal.publish import message
from web.api.monitoring.prometheus import SOCKETS

from . import rights, socket_reads
from .hub import ERROR, Hub, Listener, hub

LOOK_SECONDS = 1.0


class _RevisionWatch:
    def __init__(self) -> None:
        self.number = -1
        self.changed = asyncio.Event()
        self.waiting = 0
        self.task: asyncio.Task[None] | None = None

    async def look(self) -> None:
        while self.waiting:
            try:
                number = (await socket_reads.revisions([TOPIC])).get(TOPIC, 0)
            except Exception as error:  # the database is unavailable, so permissions cannot have changed
                log.warning("permissions not read", error=repr(error))
            else:
                if number != self.number:
                    self.number, seen = number, self.changed
                    self.changed = asyncio.Event()
                    seen.set()
            await asyncio.sleep(LOOK_SECONDS)
        self.task = None


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _RevisionWatch] = WeakKeyDictionary()


async def until_rights_change(number: int, at_most_seconds: float) -> None:
    """Wait until the topic `access` has a later revision than `number`, or until the timeout."""
    watch = _watches.setdefault(asyncio.get_running_loop(), _RevisionWatch())
    watch.waiting += 1
    try:
        if watch.task is None:
            watch.number = -1  # the stored revision may be outdated, because it is not read while no socket waits
            watch.task = asyncio.create_task(watch.look())
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_seconds):
                # Wait for a later revision, not for a different one: for up to a second, the caller may have read a
                # later revision than this task.
                while watch.number <= number:
                    await watch.changed.wait()
    finally:
        watch.waiting -= 1


RECHECK_SECONDS = 30.0
MAX_TEXT = 64 * 1024
MAX_TOPICS = 200
MESSAGES_PER_SECOND = 10
BURST = 20
MOST_WAITING = 500
PROTOCOL = "hetsched.live.v1"
# An alias that is not configured, so that sockets have no channel: otherwise the layer would send each event once per
# socket.
NO_LAYER = ""

UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, TOO_MANY, NOT_TEXT, TOO_LONG = 4401, 4403, 4404, 4429, 1003, 1009
log = structlog.get_logger(__name__)
_open: Counter[str] = Counter()


class SocketCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of a client.

    For subscriptions, `since` contains the revisions that the client already has. `merge` is true if the client accepts
    merged events from now on.
    """

    action: Literal["subscribe", "unsubscribe", "refetch"]
    topics: list[str]
    since: dict[str, int] = {}
    merge: bool = False


_command = msgspec.json.Decoder(SocketCommand)
_COMMAND_HINT = 'Send {"action": "subscribe", "topics": ["cluster:<name>"]}, or the action unsubscribe or refetch'


class SocketClosed(Exception):
    """Raised to close this socket with a code."""

    def __init__(self, code: int) -> None:
        self.code = code


@contextmanager
def _count_socket(key: str, most: int) -> Iterator[None]:
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


def _select_protocol(offered: Any) -> str | None:
    """Return hetsched's subprotocol if offered, else the first offered subprotocol, else None.

    Browsers close a socket for which the server selects none of the offered subprotocols.
    """
    return PROTOCOL if PROTOCOL in offered else next(iter(offered), None)


def _require_subject(subject: Subject | None) -> Subject:
    """Return the subject of a socket. Raises: SocketClosed if it is not logged in or has no permission."""
    if subject is None:
        raise SocketClosed(UNAUTHENTICATED)
    if not subject.may(Action.VIEW):
        raise SocketClosed(FORBIDDEN)
    return subject


class UnknownAddressConsumer(AsyncWebsocketConsumer):
    """Consumer that closes WebSockets with an unknown URL."""

    channel_layer_alias = NO_LAYER

    async def connect(self) -> None:
        await self.accept(_select_protocol(self.scope.get("subprotocols", ())))
        await self.close(NOT_FOUND)
        raise StopConsumer


class LiveConsumer(AsyncWebsocketConsumer):
    """Consumer of one live socket; it has no channel, because the hub subscribes once for all sockets."""

    channel_layer_alias = NO_LAYER

    known: rights.SubjectLookup
    subject: Subject
    hub: Hub
    language: str

    def __init__(self) -> None:
        super().__init__()
        self.listener = Listener()
        # Maps the published name of a topic to the name that this client used.
        self.names: dict[str, str] = {}
        self.tokens = float(BURST)
        self.last_message = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._counts = ExitStack()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._counts:
                try:
                    await super().__call__(scope, partial(self._next, receive), send)
                finally:
                    await self._leave()
        except SocketClosed as closed:
            await self.close(closed.code)
        except OSError:
            pass  # the client disconnected during a send

    async def dispatch(self, message: Any) -> None:
        """Handle a message without the base class's check of database connections.

        `web.live.database` manages the connection of the sockets. The check would use the database thread once per
        message and split the batches of lookups.
        """
        await getattr(self, get_handler_name(message))(message)

    async def websocket_disconnect(self, message: Any) -> None:
        raise StopConsumer

    async def connect(self) -> None:
        # A browser receives the close code only if the socket was accepted first.
        await self.accept(_select_protocol(self.scope.get("subprotocols", ())))
        count = self._counts.enter_context
        address = peer_key((self.scope.get("client") or ("",))[0])
        count(_count_socket(f"address {address}", settings.HETSCHED_SOCKETS_PER_ADDRESS))
        self.language = rights.language_of(self.scope)
        self.known = await rights.look_up_subject(rights.read_credentials(self.scope))
        self.subject = _require_subject(self.known.subject)
        count(_count_socket(self.subject.owner, settings.HETSCHED_SOCKETS_PER_USER))
        count(SOCKETS.track_inprogress())
        self.hub = await hub(socket_reads.snapshot, socket_reads.revisions, socket_reads.recent)
        self._tasks = [asyncio.create_task(work) for work in (self._write(), self._recheck())]

    async def _next(self, receive: Any) -> Any:
        """Return the next message of the client. Raises: the exception that ended one of the tasks."""
        incoming = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([incoming, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    task.result()
            return incoming.result()
        finally:
            incoming.cancel()

    async def _leave(self) -> None:
        if self._tasks:
            self.hub.leave(self.listener, list(self.names))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- in ------------------------------------------------------------------------------------------------------

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Process a command of the client. Raises: SocketClosed."""
        self._throttle()
        if text_data is None:
            raise SocketClosed(NOT_TEXT)
        if len(text_data) > MAX_TEXT or len(text_data.encode(errors="replace")) > MAX_TEXT:
            raise SocketClosed(TOO_LONG)
        try:
            command = _command.decode(text_data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            self._send_error("", "MessageInvalid", str(error)[:300], _COMMAND_HINT)
        else:
            await self._run_command(command)

    def _throttle(self) -> None:
        now = time.monotonic()
        self.tokens = min(BURST, self.tokens + (now - self.last_message) * MESSAGES_PER_SECOND) - 1
        self.last_message = now
        if self.tokens < 0:
            raise SocketClosed(TOO_MANY)

    async def _run_command(self, command: SocketCommand) -> None:
        wanted = list(dict.fromkeys(command.topics))[: MAX_TOPICS + 1]
        if command.action == "subscribe":
            self.listener.merges = self.listener.merges or command.merge
            await self._subscribe(wanted, command.since)
            return
        known = {asked: topic for topic, asked in self.names.items()}
        for asked in wanted:
            topic = known.get(asked)
            if topic is None:
                detail = "this socket is not subscribed to the topic"
                self._send_error(asked, "TopicNotSubscribed", detail, "Subscribe to it first")
            elif command.action == "refetch":
                self.listener.mark_stale(topic)
            else:
                self._drop(topic)

    async def _subscribe(self, wanted: list[str], since: dict[str, int]) -> None:
        if len(self.names) + len(wanted) > MAX_TOPICS:
            detail = f"a socket can subscribe to at most {MAX_TOPICS} topics"
            self._send_error("", "TooManyTopics", detail, "Unsubscribe from some, or open another socket")
            return
        permitted = [asked for asked in wanted if self._is_kind_permitted(asked)]
        lookups = await asyncio.gather(*map(socket_reads.resolve, permitted))
        closed = [found.topic for found in lookups if not found.open and self._denial_of(found) is None]
        await asyncio.gather(*map(socket_reads.open_topic, closed))
        for found in lookups:
            denied = self._denial_of(found)  # the rights may have changed while topics were opened
            if denied is not None:
                self._send_error(found.asked, denied.code, denied.detail, denied.hint)
            elif found.topic not in self.names:
                self.names[found.topic] = found.asked
                self.hub.join(self.listener, [found.topic], since.get(found.asked))
            else:
                if found.asked in since:
                    self.listener.since[found.topic] = since[found.asked]
                self.listener.mark_stale(found.topic)

    def _is_kind_permitted(self, asked: str) -> bool:
        """Return False and send an error if the client may not subscribe to topics of this kind.

        The topic is not resolved then, because an error of the lookup can name other objects.
        """
        denied = rights.denial_of_kind(self.subject, asked)
        if denied is not None:
            self._send_error(asked, denied.code, denied.detail, denied.hint)
        return denied is None

    def _denial_of(self, found: socket_reads.TopicLookup) -> rights.Denied | None:
        return found.denied or rights.denial_of(self.subject, found.topic, found.namespaces)

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
                    await self._send_event(*listener.queue.popleft())
                else:
                    await self._refresh(next(iter(listener.stale)))

    async def _refresh(self, topic: str) -> None:
        try:
            text = await self.hub.refresh(self.listener, topic)
        except Exception as error:  # the database is unavailable: the client keeps the data that it has
            log.warning("live snapshot not read", topic=topic, error=repr(error))
            await asyncio.sleep(1)
            return
        if text is not None:
            await self._send_event(topic, text)
        elif topic in self.listener.stale and topic in self.names:
            asked = self.names[topic]
            self._drop(topic)
            hint = "Subscribe again if the object is created again"
            self._send_error(asked, "TopicUnknown", "the topic no longer exists", hint)

    async def _send_event(self, topic: str, text: str) -> None:
        asked = self.names.get(topic, topic if topic == ERROR else None)
        if asked is None:
            return
        text = socket_reads.in_language(topic, text, self.language)
        if asked != topic:
            text = socket_reads.renamed(text, topic, asked)
        text = socket_reads.redacted(topic, text, self.subject.namespaces)
        if self.subject.namespaces is not None and topic != ERROR:
            await socket_reads.watch(topic, text, self.subject.namespaces)
        await self.send(text)

    def _send_error(self, asked: str, code: str, detail: str, hint: str) -> None:
        if len(self.listener.queue) > MOST_WAITING:
            raise SocketClosed(TOO_MANY)
        self.listener.put(ERROR, message(asked, 0, {"code": code, "detail": detail, "hint": hint}, "error"))

    # -- rights --------------------------------------------------------------------------------------------------

    async def _recheck(self) -> None:
        while True:
            await until_rights_change(self.known.number, RECHECK_SECONDS)
            self.known = await rights.refresh_subject(self.known.held)
            subject = _require_subject(self.known.subject)
            narrowed = subject.namespaces != self.subject.namespaces
            self.subject = subject
            if narrowed:
                asked = list(self.names.values())
                for topic in list(self.names):
                    self._drop(topic)
                await self._subscribe(asked, {})
