"""Publishing of changes to live clients.

A message sent before the commit may announce a change that is rolled back; a message sent after it may be lost.
`publish` numbers the event and writes it to the outbox in the caller's transaction. After the commit, all events of a
call are sent to the channel layer in one message. A periodic task calls `relay`, which sends the events of failed
messages. A delta is an RFC 7396 merge patch: old snapshot + deltas == fresh snapshot. Topics are numbered before
patches are computed, in name order, so the patches of one topic are computed one after the other and transactions never
deadlock.
Topics of single nodes and workloads are *on demand*: most have no subscriber, so they have no row and no events until
the first client subscribes and `placement.actions.open_topic` opens them.
Invariants: every event is sent at least once; a receiver discards duplicates by (topic, revision).
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import Error as DatabaseError
from django.db import close_old_connections, connection, transaction
from django.utils import timezone

from hetsched.contracts.documents import encode
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.statements import fetch
from hetsched.storage.write_lock import write_lock

from . import counters, metric_names
from .models import OutboxEvent, Topic

GROUP = "live"
MESSAGE_TYPE = "live.events"
_ON_DEMAND = ("node:", "workload:")
_MESSAGE_EVENTS = 200
_BATCH_SECONDS = 0.1
_MARK_SECONDS = 0.7  # well below the two seconds after which `relay` sends an event without a mark again
_LAST_SECONDS = 2.0
GIVEN_UP_AFTER = timedelta(minutes=1)

Patch = dict[str, Any]
_Waiting = queue.SimpleQueue["list[OutboxEvent] | None"]
_background: list[_Waiting] = []  # has at most one element: the queue of the sender thread of this process
log = structlog.get_logger(__name__)


def publish(topic: str, patch: Patch | Callable[[], Patch]) -> int:
    """Publish a change of one topic, inside a transaction; return the event's revision, or 0 if it is not open."""
    return publish_many({topic: patch}).get(topic, 0)


def publish_many(patches: Mapping[str, Patch | Callable[[], Patch]]) -> dict[str, int]:
    """Publish changes of several topics; call it once, as the last step of a transaction.

    Topics that are not open are left out. For topics of nodes and workloads, the transaction holds the lock of their
    cluster. A callable patch is computed once its topic is locked, and only if the topic is open. Use it if other
    transactions change the same document, or if the patch is expensive.
    Return the revisions of the published events.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("publish must be called in the transaction of the change")
    names = sorted(patches.keys() - closed_topics(patches))
    if not names:
        return {}
    revisions, now = _next_revisions(names), timezone.now()
    events = [
        _event(name, revisions[name], patch() if callable(patch) else patch, now)
        for name in names
        for patch in (patches[name],)
    ]
    insert(events)
    transaction.on_commit(lambda: _dispatch(events))
    return revisions


def _event(topic: str, revision: int, patch: Patch, now: datetime) -> OutboxEvent:
    # Encode the data once, for both the row and the message.
    return new(OutboxEvent, topic=topic, revision=revision, data=msgspec.Raw(encode(patch)), created_at=now)


def _dispatch(events: list[OutboxEvent]) -> None:
    if _background:
        _background[0].put(events)
    else:
        _send_and_mark(events)


def _next_revisions(names: list[str]) -> dict[str, int]:
    """Increment each topic's revision, creating new topics at 1, and return the new revisions."""
    revisions: dict[str, int] = {}
    table = Topic._meta.db_table
    for part in batched(names):
        rows = ", ".join(["(%s, 1)"] * len(part))
        raised = fetch(
            f"INSERT INTO {table} (name, revision) VALUES {rows} ON CONFLICT (name) "  # noqa: S608
            f"DO UPDATE SET revision = {table}.revision + 1 RETURNING name, revision",
            part,
        )
        revisions.update(raised)
    return revisions


def message(topic: str, revision: int, data: Any, kind: str = "delta") -> str:
    """Return one message of the live API as JSON text."""
    return encode({"topic": topic, "revision": revision, "type": kind, "data": data}).decode()


@contextmanager
def background_sender() -> Iterator[None]:
    """Send the events of this process from a thread during the block, so that publishers do not wait for the send."""
    waiting: _Waiting = queue.SimpleQueue()
    _background.append(waiting)
    thread = threading.Thread(target=_send_all, args=(waiting,), name="live events")
    thread.start()
    try:
        yield
    finally:
        _background.remove(waiting)
        waiting.put(None)
        thread.join()


def start_background_sender() -> None:
    """Start a thread that sends the events of this process until the process ends."""
    waiting: _Waiting = queue.SimpleQueue()
    thread = threading.Thread(target=_send_all, args=(waiting,), name="live events", daemon=True)

    def end() -> None:
        _background.clear()
        waiting.put(None)
        thread.join(_LAST_SECONDS)  # `relay` sends the remaining events

    _background.append(waiting)
    thread.start()
    atexit.register(end)


def _send_all(waiting: _Waiting) -> None:
    """Send queued events over one connection, with one message for all events of a short interval; stop at None.

    Sent events are marked in groups, because each mark is a transaction that delays those of the scheduler.
    """
    loop = asyncio.new_event_loop()
    batch: list[OutboxEvent] | None = []
    sent: list[OutboxEvent] = []
    marked_at = time.monotonic()
    while batch is not None:
        events: list[OutboxEvent] = []
        with suppress(queue.Empty):
            batch = waiting.get(timeout=max(0.0, marked_at + _MARK_SECONDS - time.monotonic()) if sent else None)
            events += batch or ()
        time.sleep(_BATCH_SECONDS if events and batch is not None else 0)
        while not waiting.empty():
            more = waiting.get()
            events += more or ()
            batch = more if more is None else batch
        if events and _try_to_send(events, loop.run_until_complete):
            marked_at = marked_at if sent else time.monotonic()
            sent += events
        if sent and (batch is None or time.monotonic() - marked_at >= _MARK_SECONDS):
            _mark(sent)
            sent = []
        if events:
            close_old_connections()
    connection.close()
    loop.close()


def _send_and_mark(events: list[OutboxEvent]) -> bool:
    """Send committed events and mark them as sent; on failure `relay` sends them."""
    return _try_to_send(events) and _mark(events)


def _try_to_send(events: list[OutboxEvent], run: Callable[[Any], Any] | None = None) -> bool:
    """Send committed events; return False on failure. `run` runs an awaitable."""
    try:
        _send(events, run)
    except Exception as error:  # any error of the channel layer: the periodic task retries
        log.warning("live events not sent", events=len(events), error=repr(error))
        return False
    return True


def _mark(events: list[OutboxEvent]) -> bool:
    """Mark events as sent; return False on failure, after which `relay` sends them again."""
    try:
        for some in batched([event.pk for event in events]):
            with write_lock():  # for each batch: other writers do not wait for the events of a whole cluster
                OutboxEvent.objects.filter(pk__in=some).update(published_at=timezone.now())
    except DatabaseError as error:
        log.warning("live events not marked as sent", events=len(events), error=repr(error))
        return False
    return True


def _send(events: list[OutboxEvent], run: Callable[[Any], Any] | None) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    group_send = layer.group_send
    send = async_to_sync(group_send) if run is None else lambda *what: run(group_send(*what))
    # test with an empty message whether the channel layer accepts messages
    for start in range(0, max(len(events), 1), _MESSAGE_EVENTS):
        part = events[start : start + _MESSAGE_EVENTS]
        texts = [[event.topic, message(event.topic, event.revision, event.data)] for event in part]
        send(GROUP, {"type": MESSAGE_TYPE, "events": texts})


def relay(older_than_seconds: float = 2.0, limit: int = 1000) -> int:
    """Send events that are still unsent after `older_than_seconds`; return the number sent."""
    before = timezone.now() - timedelta(seconds=older_than_seconds)
    unsent = OutboxEvent.objects.filter(published_at=None, created_at__lt=before).order_by("id")
    events = list(unsent[:limit])
    if not events:
        return 0
    return len(events) if _send_and_mark(events) else _relay_one_by_one(events)


def _relay_one_by_one(events: list[OutboxEvent]) -> int:
    """Send the events of a rejected batch one by one, so that one bad event does not block the others.

    An event that is rejected for `GIVEN_UP_AFTER` while other events are accepted is dropped; clients detect the gap.
    """
    try:
        _send([], None)
    except Exception:  # the channel layer accepts no messages at the moment
        return 0
    refused = [event for event in events if not _send_and_mark([event])]
    given_up = [event for event in refused if event.created_at < timezone.now() - GIVEN_UP_AFTER]
    for event in given_up:
        log.error("live event dropped", topic=event.topic, revision=event.revision)
    OutboxEvent.objects.filter(pk__in=[event.pk for event in given_up]).update(published_at=timezone.now())
    counters.add(metric_names.EVENTS_GIVEN_UP, amount=len(given_up))
    return len(events) - len(refused)


def prune(keep_seconds: float = 3600.0) -> int:
    """Delete events that were sent long ago; a client that missed any of them fetches a new snapshot."""
    before = timezone.now() - timedelta(seconds=keep_seconds)
    deleted, _ = OutboxEvent.objects.filter(published_at__isnull=False, created_at__lt=before).delete()
    return deleted


def delete_topics(topics: Sequence[str]) -> None:
    """Delete topics without further events, and their stored events; pass at most a few hundred topics."""
    OutboxEvent.objects.filter(topic__in=topics).delete()
    Topic.objects.filter(name__in=topics).delete()


def closed_topics(topics: Iterable[str]) -> set[str]:
    """Return those of these topics that are not open: no client has ever subscribed to them."""
    closed = {name for name in topics if name.startswith(_ON_DEMAND)}
    for part in batched(sorted(closed)):
        places = ", ".join(["%s"] * len(part))
        opened = fetch(f"SELECT name FROM {Topic._meta.db_table} WHERE name IN ({places})", part)  # noqa: S608
        closed.difference_update(name for (name,) in opened)
    return closed


def insert_topic(topic: str) -> None:
    """Open a topic, inside a transaction that holds the lock of its cluster.

    The first revision is 1, so that a client with a document of the closed topic gets a new snapshot.
    """
    Topic.objects.bulk_create([Topic(name=topic, revision=1)], ignore_conflicts=True)


def revision_of(topic: str) -> int:
    """Return the revision of the topic's latest event, or 0 if it has no events."""
    found: int | None = Topic.objects.filter(name=topic).values_list("revision", flat=True).first()
    return found or 0


def merge(document: Any, patch: Any) -> Any:
    """Apply an RFC 7396 merge patch and return the new document; the old document is unchanged."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Patch:
    """Return the merge patch that turns `old` into `new`; neither may contain nulls."""
    patch: Patch = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if key in old and before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            patch[key] = difference(before, value)
        else:
            patch[key] = value
    return patch
