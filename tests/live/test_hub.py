"""The hub with a simulated database and broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from hetsched.journal.publish import message
from web.live import hub
from web.live.hub import Hub, Listener, SnapshotMessage
from web.live.spans import spans

from .conftest import PATIENCE_SECONDS


class Database:
    """Topics whose document is their revision; counts reads and can delay them."""

    def __init__(self) -> None:
        self.revision = 1
        self.reads = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def snapshot(self, topic: str) -> SnapshotMessage | None:
        self.reads += 1
        revision = self.revision
        await self.go_on.wait()
        return SnapshotMessage(revision, f"snapshot {revision}")

    async def revisions(self, topics: list[str]) -> dict[str, int]:
        return dict.fromkeys(topics, self.revision)


@pytest.fixture
async def database() -> Database:
    return Database()


@pytest.fixture
async def running(database: Database) -> AsyncIterator[Hub]:
    made = Hub(database.snapshot, database.revisions)
    await made.start()
    yield made
    await made.stop()


def event(revision: int) -> str:
    return message("t", revision, {"n": revision})


async def sent(running: Hub, listener: Listener) -> list[str]:
    """Send like a socket's writer until the queue is empty."""
    out: list[str] = []
    while listener.queue or listener.stale:
        if listener.queue:
            out.append(listener.queue.popleft()[1])
        else:
            text = await running.refresh(listener, next(iter(listener.stale)))
            out += [text] if text else []
    return out


def joined(running: Hub) -> Listener:
    listener = Listener()
    running.join(listener, ["t"])
    return listener


async def test_hundred_concurrent_subscriptions_cost_one_read(running: Hub, database: Database) -> None:
    database.go_on.clear()
    listeners = [joined(running) for _ in range(100)]
    writers = [asyncio.create_task(sent(running, listener)) for listener in listeners]
    await asyncio.sleep(0)
    database.go_on.set()
    assert await asyncio.gather(*writers) == [["snapshot 1"]] * 100
    assert database.reads == 1


async def test_events_during_the_snapshot_read_follow_it(running: Hub, database: Database) -> None:
    database.go_on.clear()
    listener = joined(running)
    writer = asyncio.create_task(sent(running, listener))
    await asyncio.sleep(0.01)
    for revision in (2, 3):
        database.revision = revision
        running.forward("t", event(revision))
    database.go_on.set()
    assert await writer == ["snapshot 1", event(2), event(3)]


async def test_events_out_of_order_end_in_the_newest_state(running: Hub, database: Database) -> None:
    listener = joined(running)
    assert await sent(running, listener) == ["snapshot 1"]
    database.revision = 3
    running.forward("t", event(3))
    running.forward("t", event(2))
    assert await sent(running, listener) == ["snapshot 3"]
    running.forward("t", event(4))
    assert await sent(running, listener) == [event(4)]


async def test_duplicate_event_is_sent_once(running: Hub) -> None:
    listener = joined(running)
    await sent(running, listener)
    for revision in (2, 2, 1):
        running.forward("t", event(revision))
    assert await sent(running, listener) == [event(2)]


async def test_disconnected_client_gets_no_messages(running: Hub) -> None:
    listener = joined(running)
    await sent(running, listener)
    running.leave(listener, ["t"])
    running.forward("t", event(2))
    assert not listener.queue
    assert not running._topics


async def test_subscription_is_restored_after_failures(
    running: Hub, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LOOK_SECONDS", 0.01)

    async def away(topics: list[str]) -> dict[str, int]:
        raise OSError("database unavailable")

    listener = joined(running)
    await sent(running, listener)
    listener.ready.clear()
    monkeypatch.setattr(running, "_read_revisions", away)
    await asyncio.sleep(1.1)
    monkeypatch.setattr(running, "_read_revisions", database.revisions)
    database.revision = 2
    await asyncio.wait_for(listener.ready.wait(), PATIENCE_SECONDS)
    assert await sent(running, listener) == ["snapshot 2"]


async def test_lost_subscription_is_renewed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer:
        subscriptions = 0

        async def new_channel(self) -> str:
            self.subscriptions += 1
            return "c"

        async def group_add(self, group: str, channel: str) -> None:
            pass

        async def receive(self, channel: str) -> Any:
            if self.subscriptions == 1:
                raise ConnectionError("the broker went away")
            await asyncio.sleep(3600)

    layer = Layer()
    monkeypatch.setattr(hub, "get_channel_layer", lambda: layer)
    made = Hub(database.snapshot, database.revisions)
    await made.start()
    while layer.subscriptions < 2:
        await asyncio.sleep(0.01)
    await made.stop()
    assert layer.subscriptions == 2


async def test_clients_that_resume_at_one_revision_share_a_message(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(topic: str, events: Any) -> Any:
        found = list(spans(topic, events))
        made.append(len(found))
        return found

    async def recent(_topic: str, _most: int) -> tuple[int, list[tuple[int, str]]]:
        return 5, [(revision, event(revision)) for revision in range(1, 6)]

    monkeypatch.setattr(hub, "spans", counted)
    running = Hub(database.snapshot, database.revisions, recent)
    listeners = [Listener() for _ in range(6)]
    for number, listener in enumerate(listeners):
        listener.merges = True
        running.join(listener, ["t"], 2 if number % 2 else 4)
    received = [await sent(running, listener) for listener in listeners]
    assert [msgspec.json.decode(texts[-1])["since"] for texts in received if "since" in texts[-1]] == [2, 2, 2]
    assert {texts[-1] for texts in received} == {received[0][-1], received[1][-1]}
    assert made == [1, 1]
    running.forward("t", event(6))
    late = Listener()
    late.merges = True
    running.join(late, ["t"], 4)
    (_, text) = await sent(running, late)
    assert msgspec.json.decode(text)["revision"] == 6
