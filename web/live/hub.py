"""One subscription per process, fanned out to sockets.

Problem: a group per socket costs a broker round trip per message and socket, drops silently when it is full, and lets
one slow reader hold memory without bound.
Rule: the hub receives every event once. A topic keeps its last events; a socket gets an event only if it is the next
one after what the socket has, is let through once, and has room. Anything else (a gap, a full queue) makes the topic
*stale* for that socket: its queued events are dropped and a fresh snapshot is sent instead. Snapshots are read once for
all sockets that wait for one. What the broker lost without a trace is found by looking at the topics' numbers every
second.
Invariant: what a socket is sent of a topic is a snapshot, then deltas numbered without a gap, then perhaps again.
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

from hetsched.journal.publish import GROUP
from web.api.prometheus import DROPPED, GAPS

ERROR = ""
RECENT_EVENTS = 128
QUEUE_EVENTS = 64
LOOK_SECONDS = 1.0
# Sockets that come at once share a snapshot; one who asks again later gets a fresh one.
KEPT_SECONDS = 2.0
log = structlog.get_logger(__name__)

# The revision and the document of a topic, read in one moment; None for a topic that there is not.
ReadSnapshot = Callable[[str], Awaitable["Snapshot | None"]]
ReadRevisions = Callable[[list[str]], Awaitable[dict[str, int]]]


class Snapshot(msgspec.Struct, frozen=True):
    """A topic's whole document as message text."""

    revision: int
    text: str


class _Head(msgspec.Struct):
    revision: int


_head = msgspec.json.Decoder(_Head)


class Listener:
    """What one socket has heard, and what waits to be sent to it; `ready` is set while anything does."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.heard: dict[str, int] = {}
        self.stale: dict[str, None] = {}
        self.queue: deque[tuple[str, str]] = deque()

    def offer(self, topic: str, revision: int, text: str) -> None:
        """Take the event if it is the next one of a topic that is not stale."""
        if topic in self.stale:
            return
        heard = self.heard[topic]
        if revision <= heard:
            return
        if revision > heard + 1:
            self.mark_stale(topic)
            return
        if len(self.queue) >= QUEUE_EVENTS:
            self.mark_stale(next((queued for queued, _ in self.queue if queued != ERROR), topic))
            if topic in self.stale:
                return
        self.heard[topic] = revision
        self.put(topic, text)

    def put(self, topic: str, text: str) -> None:
        """Queue a text; those that answer a wrong command stand under no topic."""
        self.queue.append((topic, text))
        self.ready.set()

    def mark_stale(self, topic: str) -> None:
        """Drop what is queued of a topic: a snapshot will replace it."""
        self.stale[topic] = None
        before = len(self.queue)
        self.queue = deque(item for item in self.queue if item[0] != topic)
        DROPPED.inc(before - len(self.queue))
        self.ready.set()

    def forget(self, topic: str) -> None:
        self.heard.pop(topic, None)
        self.stale.pop(topic, None)
        self.queue = deque(item for item in self.queue if item[0] != topic)


class _Topic:
    """One topic that somebody listens to."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.recent: deque[tuple[int, str]] = deque(maxlen=RECENT_EVENTS)
        self.newest = 0
        self.snapshot: Snapshot | None = None
        self.read_at = 0.0
        self.reading: asyncio.Task[Snapshot | None] | None = None

    def outdated(self) -> bool:
        """Say whether a snapshot must be read before one can be sent."""
        if self.snapshot is None or self.snapshot.revision < self.newest:
            return True
        return time.monotonic() - self.read_at > KEPT_SECONDS


class Hub:
    """All live topics of one event loop."""

    def __init__(self, read_snapshot: ReadSnapshot, read_revisions: ReadRevisions) -> None:
        self._read_snapshot = read_snapshot
        self._read_revisions = read_revisions
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._subscribed = asyncio.Event()

    async def start(self) -> None:
        """Subscribe once; the tasks run until `stop`."""
        if not self._tasks:
            for work in (self._pump(), self._look()):
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

    def join(self, listener: Listener, topics: Iterable[str]) -> None:
        """Let a socket listen to topics; each begins with a snapshot."""
        for topic in topics:
            self._topics.setdefault(topic, _Topic()).listeners.add(listener)
            listener.heard[topic] = -1
            listener.mark_stale(topic)

    def leave(self, listener: Listener, topics: Iterable[str]) -> None:
        """Stop listening; a topic without listeners is forgotten."""
        for topic in list(topics):
            listener.forget(topic)
            found = self._topics.get(topic)
            if found is not None:
                found.listeners.discard(listener)
                if not found.listeners:
                    del self._topics[topic]

    async def refresh(self, listener: Listener, topic: str) -> str | None:
        """Return the snapshot that makes a stale topic fresh, and queue what came after it.

        None when there is nothing to send: the topic is not stale any more, or, if it still is, there is no such topic.
        """
        found = self._topics.get(topic)
        if found is not None and found.outdated():
            if found.reading is None:
                found.reading = asyncio.create_task(self._read(topic, found))
            await asyncio.shield(found.reading)
        if found is None or found.snapshot is None or topic not in listener.stale:
            return None
        del listener.stale[topic]
        listener.heard[topic] = found.snapshot.revision
        for revision, text in list(found.recent):
            listener.offer(topic, revision, text)
        return found.snapshot.text

    async def _read(self, topic: str, found: _Topic) -> Snapshot | None:
        try:
            began = time.monotonic()
            found.snapshot = await self._read_snapshot(topic)
            found.read_at = began
            if found.snapshot is not None:
                found.newest = max(found.newest, found.snapshot.revision)
            return found.snapshot
        finally:
            found.reading = None

    def hear(self, topic: str, text: str) -> None:
        """Pass one event on."""
        found = self._topics.get(topic)
        if found is None:
            return
        revision = _head.decode(text).revision
        found.newest = max(found.newest, revision)
        found.recent.append((revision, text))
        for listener in found.listeners:
            listener.offer(topic, revision, text)

    async def _pump(self) -> None:
        layer = get_channel_layer()
        assert layer is not None, "live push needs a channel layer"
        while True:
            try:
                channel = await layer.new_channel()
                await layer.group_add(GROUP, channel)
                self._subscribed.set()
                while True:
                    message = await layer.receive(channel)
                    for topic, text in message["events"]:
                        self.hear(topic, text)
            except Exception as error:  # whatever the layer raises: subscribe anew, `_look` finds what was missed
                log.warning("live subscription lost", error=repr(error))
                self._subscribed.set()
                await asyncio.sleep(1)

    async def _look(self) -> None:
        """Compare what was heard with the topics' numbers in the database."""
        owed: dict[str, int] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name, revision in owed.items():
                found = self._topics.get(name)
                # It was in the database one look ago and was not heard since: it will not come any more.
                if found is not None and found.snapshot is not None and found.newest < revision:
                    GAPS.inc()
                    found.newest = revision
                    for listener in found.listeners:
                        listener.mark_stale(name)
            try:
                owed = await self._read_revisions(list(self._topics)) if self._topics else {}
            except Exception as error:  # the database is away: look again later
                log.warning("live topics not read", error=repr(error))


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


async def hub(read_snapshot: ReadSnapshot, read_revisions: ReadRevisions) -> Hub:
    """Return the running loop's hub, started."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub(read_snapshot, read_revisions)
    await found.start()
    return found


async def stop_hub() -> None:
    """Stop the running loop's hub, if there is one."""
    found = _hubs.pop(asyncio.get_running_loop(), None)
    if found is not None:
        with contextlib.suppress(asyncio.CancelledError):
            await found.stop()
