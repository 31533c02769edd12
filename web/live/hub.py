"""Receive events through one subscription per process and fan them out to sockets.

Channel-layer groups of sockets would cost a broker round trip per message and socket, would drop messages silently when
a channel is full, and would let one slow reader hold unbounded memory. The hub receives every event once, and keeps the
latest events of each topic. A socket gets an event only if the event directly follows the socket's revision and the
socket's queue has space. After a gap or with a full queue the topic is *stale* for that socket: its queued events are
dropped and a fresh snapshot is sent instead. One read of a snapshot serves all sockets that wait for it. The hub
compares the topics' revisions with the database every second to detect events that the broker lost silently. On
request, a socket gets the events of each tick (0.1 s) as one delta, composed and encoded once for all sockets. A socket
that sends the revision that it already has gets the later events if the hub still has them.
Invariant: for each topic a socket gets either a snapshot or the message "resumed", then deltas without a gap. This
sequence may repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import structlog
from channels.layers import get_channel_layer

from hetsched.journal.publish import GROUP, message
from web.api.monitoring.prometheus import DROPPED, GAPS

from .spans import Event, Span, spans

ERROR = ""
RECENT_EVENTS = 512
MOST_RESUMPTIONS = 64
TICK_SECONDS = 0.1
QUEUE_EVENTS = 64
LOOK_SECONDS = 1.0
# Sockets that join at about the same time share a snapshot; after this time a new one is read.
KEPT_SECONDS = 2.0
log = structlog.get_logger(__name__)

# Reads the revision and the document of a topic in one database snapshot; returns None for an unknown topic.
ReadSnapshot = Callable[[str], Awaitable["SnapshotMessage | None"]]
ReadRevisions = Callable[[list[str]], Awaitable[dict[str, int]]]
# Reads the latest events of a topic, at most the given number; also returns the revision of the last event.
ReadRecent = Callable[[str, int], Awaitable[tuple[int, list[Event]]]]


class SnapshotMessage(msgspec.Struct, frozen=True):
    """A topic's whole document as message text."""

    revision: int
    text: str


class _Head(msgspec.Struct):
    revision: int


_head = msgspec.json.Decoder(_Head)


class Listener:
    """State of one socket: the revision received for each topic, and its send queue.

    `ready` is set while the queue has messages. `merges` is true if the socket accepts merged events. `since` maps each
    topic that the client has just joined to the revision that the client already has.
    """

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.merges = False
        self.since: dict[str, int] = {}
        self.revisions: dict[str, int] = {}
        self.stale: dict[str, None] = {}
        self.queue: deque[tuple[str, str]] = deque()

    def offer(self, topic: str, revision: int, text: str, since: int | None = None) -> None:
        """Queue an event if it directly follows the last event queued for its topic; otherwise mark the topic as stale.

        `since` is the revision that the event follows, by default `revision` - 1. If the queue is full, the topic of
        its oldest event becomes stale. Events that the socket already has, and events of stale topics, are ignored.
        """
        if topic in self.stale:
            return
        known = self.revisions[topic]
        if revision <= known:
            return
        if (revision - 1 if since is None else since) > known:
            self.mark_stale(topic)
            return
        if len(self.queue) >= QUEUE_EVENTS:
            self.mark_stale(next((queued for queued, _ in self.queue if queued != ERROR), topic))
            if topic in self.stale:
                return
        self.revisions[topic] = revision
        self.put(topic, text)

    def put(self, topic: str, text: str) -> None:
        """Queue a message; error replies to invalid commands have the topic `ERROR`."""
        self.queue.append((topic, text))
        self.ready.set()

    def mark_stale(self, topic: str) -> None:
        """Drop the queued events of a topic; a snapshot will replace them."""
        self.stale[topic] = None
        before = len(self.queue)
        self.queue = deque(item for item in self.queue if item[0] != topic)
        DROPPED.inc(before - len(self.queue))
        self.ready.set()

    def forget(self, topic: str) -> None:
        self.revisions.pop(topic, None)
        self.stale.pop(topic, None)
        self.since.pop(topic, None)
        self.queue = deque(item for item in self.queue if item[0] != topic)


class _Topic:
    """State of a topic that has at least one listener."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.recent: deque[Event] = deque(maxlen=RECENT_EVENTS)
        # Revision -> the merged events after it, shared by all sockets that resume from that revision.
        self.resumptions: dict[int, list[Span]] = {}
        self.filling: asyncio.Task[None] | None = None
        self.pending: list[Event] = []
        self.sent_at = 0.0
        self.flushing: asyncio.TimerHandle | None = None
        self.newest = 0
        self.snapshot: SnapshotMessage | None = None
        self.read_at = 0.0
        self.reading: asyncio.Task[SnapshotMessage | None] | None = None

    def after(self, name: str, revision: int) -> list[Span]:
        """Return the events after a revision, merged into as few messages as possible."""
        found = self.resumptions.get(revision)
        if found is None:
            if len(self.resumptions) >= MOST_RESUMPTIONS:
                self.resumptions.clear()
            found = self.resumptions[revision] = list(
                spans(name, [event for event in self.recent if event[0] > revision])
            )
        return found

    def outdated(self) -> bool:
        """Return whether the cached snapshot is too old to be sent."""
        if self.snapshot is None or self.snapshot.revision < self.newest:
            return True
        return time.monotonic() - self.read_at > KEPT_SECONDS


class Hub:
    """Distributor of live events to the sockets of one event loop."""

    def __init__(
        self, read_snapshot: ReadSnapshot, read_revisions: ReadRevisions, read_recent: ReadRecent | None = None
    ) -> None:
        self._read_snapshot = read_snapshot
        self._read_revisions = read_revisions
        self._read_recent = read_recent
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._subscribed = asyncio.Event()

    async def start(self) -> None:
        """Subscribe to the channel layer once; the tasks run until `stop`."""
        if not self._tasks:
            for work in (self._receive_events(), self._poll_revisions()):
                task = asyncio.create_task(work)
                self._tasks.add(task)
        await self._subscribed.wait()

    async def stop(self) -> None:
        """End the subscription and its tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._subscribed.clear()

    def join(self, listener: Listener, topics: Iterable[str], since: int | None = None) -> None:
        """Subscribe a socket to topics. Each topic starts with a snapshot, or after revision `since` if the hub has all
        later events.
        """
        for topic in topics:
            self._topics.setdefault(topic, _Topic()).listeners.add(listener)
            listener.revisions[topic] = -1
            if since is not None:
                listener.since[topic] = since
            listener.mark_stale(topic)

    def leave(self, listener: Listener, topics: Iterable[str]) -> None:
        """Remove a socket from topics; a topic without listeners is removed."""
        for topic in list(topics):
            listener.forget(topic)
            found = self._topics.get(topic)
            if found is not None:
                found.listeners.discard(listener)
                if not found.listeners:
                    if found.flushing is not None:
                        found.flushing.cancel()
                    del self._topics[topic]

    async def refresh(self, listener: Listener, topic: str) -> str | None:
        """Return the snapshot of a stale topic, or the message "resumed", and queue the later events.

        Return None if there is nothing to send: the topic is not stale, or it does not exist.
        """
        found = self._topics.get(topic)
        if found is not None and topic in listener.since:
            since = listener.since.pop(topic)
            if await self._can_continue(listener, topic, found, since):
                return message(topic, since, {}, "resumed")
        if found is not None and found.outdated():
            if found.reading is None:
                found.reading = asyncio.create_task(self._read(topic, found))
            await asyncio.shield(found.reading)
        if found is None or found.snapshot is None or topic not in listener.stale:
            return None
        del listener.stale[topic]
        listener.revisions[topic] = found.snapshot.revision
        self._catch_up(listener, topic, found)
        return found.snapshot.text

    async def _can_continue(self, listener: Listener, topic: str, found: _Topic, since: int) -> bool:
        """Queue the events after revision `since` and return True if all of them are available and fit in the queue."""
        if self._read_recent is None:
            return False
        if found.filling is None:
            found.filling = asyncio.create_task(self._load_recent(topic, found))
        try:
            await asyncio.shield(found.filling)
        # the database is unavailable: the next socket tries again, and this socket gets a snapshot
        except Exception as error:
            log.warning("live events not read", topic=topic, error=repr(error))
            found.filling = None
            return False
        if topic not in listener.stale or not since <= found.newest:
            return False
        later = [revision for revision, _ in found.recent if revision > since]
        if later != list(range(since + 1, found.newest + 1)):
            return False
        if len(later) > QUEUE_EVENTS // 2 and not listener.merges:
            return False
        del listener.stale[topic]
        listener.revisions[topic] = since
        self._catch_up(listener, topic, found)
        return True

    def _catch_up(self, listener: Listener, topic: str, found: _Topic) -> None:
        """Queue the recent events of a topic that are newer than the revision that the socket has."""
        known = listener.revisions[topic]
        if listener.merges:
            for since, revision, text in found.after(topic, known):
                listener.offer(topic, revision, text, since)
            return
        for revision, text in [event for event in found.recent if event[0] > known]:
            listener.offer(topic, revision, text)

    async def _load_recent(self, topic: str, found: _Topic) -> None:
        """Load the events that were published before the first listener joined."""
        assert self._read_recent is not None
        newest, earlier = await self._read_recent(topic, RECENT_EVENTS)
        known = dict(earlier) | dict(found.recent)
        found.recent = deque(sorted(known.items()), maxlen=RECENT_EVENTS)
        found.resumptions.clear()
        found.newest = max(found.newest, newest)

    async def _read(self, topic: str, found: _Topic) -> SnapshotMessage | None:
        try:
            began = time.monotonic()
            found.snapshot = await self._read_snapshot(topic)
            found.read_at = began
            if found.snapshot is not None:
                found.newest = max(found.newest, found.snapshot.revision)
            return found.snapshot
        finally:
            found.reading = None

    def forward(self, topic: str, text: str) -> None:
        """Queue an event from the channel layer for the sockets of its topic, now or in the next merged message."""
        found = self._topics.get(topic)
        if found is None:
            return
        revision = _head.decode(text).revision
        found.newest = max(found.newest, revision)
        found.recent.append((revision, text))
        found.resumptions.clear()
        found.pending.append((revision, text))
        for listener in found.listeners:
            if not listener.merges:
                listener.offer(topic, revision, text)
        if found.flushing is None:
            loop = asyncio.get_running_loop()
            wait = max(0.0, found.sent_at + TICK_SECONDS - loop.time())
            found.flushing = loop.call_later(wait, self._send, topic, found)

    def _send(self, topic: str, found: _Topic) -> None:
        """Send the events since the last tick, merged, to sockets that accept merged events."""
        found.flushing, found.sent_at = None, asyncio.get_running_loop().time()
        events, found.pending = found.pending, []
        merging = [listener for listener in found.listeners if listener.merges]
        if merging:
            for since, revision, text in spans(topic, events):
                for listener in merging:
                    listener.offer(topic, revision, text, since)

    async def _receive_events(self) -> None:
        layer = get_channel_layer()
        assert layer is not None, "live push requires a channel layer"
        while True:
            try:
                channel = await layer.new_channel()
                await layer.group_add(GROUP, channel)
                self._subscribed.set()
                while True:
                    message = await layer.receive(channel)
                    for topic, text in message["events"]:
                        self.forward(topic, text)
            # on any error of the channel layer, subscribe again; `_poll_revisions` finds missed events
            except Exception as error:
                log.warning("live subscription lost", error=repr(error))
                self._subscribed.set()
                await asyncio.sleep(1)

    async def _poll_revisions(self) -> None:
        """Compare the received revisions with those in the database, and mark topics with lost events as stale."""
        owed: dict[str, int] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name, revision in owed.items():
                found = self._topics.get(name)
                # The revision was already in the database at the last check, and its event has not arrived since
                # then, so the event is lost.
                if found is not None and found.snapshot is not None and found.newest < revision:
                    GAPS.inc()
                    found.newest = revision
                    for listener in found.listeners:
                        listener.mark_stale(name)
            try:
                owed = await self._read_revisions(list(self._topics)) if self._topics else {}
            except Exception as error:  # the database is unavailable: poll again later
                log.warning("topic revisions not read", error=repr(error))


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


async def hub(read_snapshot: ReadSnapshot, read_revisions: ReadRevisions, read_recent: ReadRecent | None = None) -> Hub:
    """Return the hub of the running event loop; create and start it if necessary."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub(read_snapshot, read_revisions, read_recent)
    await found.start()
    return found


async def stop_hub() -> None:
    """Stop the hub of the running event loop, if there is one."""
    found = _hubs.pop(asyncio.get_running_loop(), None)
    if found is not None:
        with contextlib.suppress(asyncio.CancelledError):
            await found.stop()
