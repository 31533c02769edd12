"""Events are sent after the commit, normally once each, and by a sweep after a failure."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from django.utils import timezone

from hetsched.journal import counters, metric_names
from hetsched.journal import publish as publishing
from hetsched.journal.models import OutboxEvent, Topic
from hetsched.journal.publish import GROUP, insert_topic, publish, publish_many
from hetsched.placement.actions import open_topic
from tests.builders import a_pod
from tests.situations import a_cluster, submitted

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def empty_outbox() -> None:
    OutboxEvent.objects.all().delete()
    Topic.objects.all().delete()


def _listening() -> Any:
    layer: Any = get_channel_layer()

    async def join() -> str:
        channel: str = await layer.new_channel()
        await layer.group_add(GROUP, channel)
        return channel

    return layer, async_to_sync(join)()


def _received(layer: Any, channel: str) -> list[dict[str, Any]]:
    async def drain() -> list[Any]:
        messages = []
        try:
            while True:
                messages.append(await asyncio.wait_for(layer.receive(channel), 0.05))
        except TimeoutError:
            return messages

    texts = [text for message in async_to_sync(drain)() for _topic, text in message["events"]]
    return [msgspec.json.decode(text) for text in texts]


def test_events_of_a_transaction_are_sent_after_its_commit() -> None:
    layer, channel = _listening()
    with transaction.atomic():
        publish_many({"b": {"x": 1}, "a": {"y": 2}})
        assert _received(layer, channel) == []
    assert _received(layer, channel) == [
        {"topic": "a", "revision": 1, "type": "delta", "data": {"y": 2}},
        {"topic": "b", "revision": 1, "type": "delta", "data": {"x": 1}},
    ]
    assert not OutboxEvent.objects.filter(published_at=None).exists()


def test_rolled_back_change_is_never_published() -> None:
    layer, channel = _listening()
    with transaction.atomic():
        publish("a", {"x": 1})
        transaction.set_rollback(True)
    assert _received(layer, channel) == []
    assert not OutboxEvent.objects.filter(topic="a").exists()
    assert not Topic.objects.filter(name="a").exists()


def test_topic_revision_counts_its_events() -> None:
    for expected in (1, 2, 3):
        with transaction.atomic():
            assert publish("a", {"n": expected}) == expected
    assert Topic.objects.get(name="a").revision == 3


def test_patch_is_computed_after_its_topic_is_locked() -> None:
    with transaction.atomic():
        publish("a", lambda: {"revision": Topic.objects.get(name="a").revision})
    assert OutboxEvent.objects.get(topic="a").data == {"revision": 1}


def test_publishing_outside_a_transaction_is_an_error() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        publish("a", {})


def test_unsent_event_is_kept_and_sent_by_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ConnectionError("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "get_channel_layer", broken)
        with transaction.atomic():
            publish("a", {"x": 1})
        assert publishing.relay(older_than_seconds=0) == 0
    layer, channel = _listening()
    assert publishing.relay(older_than_seconds=0) == 1
    assert [message["data"] for message in _received(layer, channel)] == [{"x": 1}]
    assert publishing.relay(older_than_seconds=0) == 0


def test_sweep_skips_recent_events(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_send_and_mark", lambda events: False)
        with transaction.atomic():
            publish("a", {"x": 1})
    assert publishing.relay() == 0


def test_only_events_that_were_sent_long_ago_are_pruned() -> None:
    now = timezone.now()
    for topic, age, sent in (("old", 2, True), ("unsent", 2, False), ("new", 0, True)):
        event = OutboxEvent.objects.create(topic=topic, revision=1, data={}, published_at=now if sent else None)
        OutboxEvent.objects.filter(pk=event.pk).update(created_at=now - timedelta(hours=age))
    assert publishing.prune() == 1
    assert set(OutboxEvent.objects.values_list("topic", flat=True)) == {"unsent", "new"}


def test_background_sender_sends_at_once_and_marks_events_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[list[str]] = []
    mark = publishing._mark
    monkeypatch.setattr(publishing, "_MARK_SECONDS", 60.0)
    monkeypatch.setattr(
        publishing, "_mark", lambda events: (marked.append([event.topic for event in events]), mark(events))[1]
    )
    layer, channel = _listening()
    with publishing.background_sender():
        for topic in ("a", "b"):
            with transaction.atomic():
                publish(topic, {})
            until = time.monotonic() + 10
            while not _received(layer, channel):
                assert time.monotonic() < until
        assert marked == []
    assert marked == [["a", "b"]]
    assert not OutboxEvent.objects.filter(published_at=None).exists()


def test_other_writers_run_between_the_marks_of_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    locks: list[int] = []
    lock = publishing.write_lock
    monkeypatch.setattr(publishing, "write_lock", lambda: (locks.append(1), lock())[1])
    with transaction.atomic():
        publish_many({f"t{number}": {} for number in range(1001)})
    assert not OutboxEvent.objects.filter(published_at=None).exists()
    assert len(locks) == 3


def test_background_sender_marks_the_last_events_without_further_events(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = threading.Event()
    mark = publishing._mark
    monkeypatch.setattr(publishing, "_MARK_SECONDS", 0.05)
    monkeypatch.setattr(publishing, "_mark", lambda events: (mark(events), marked.set()))
    with publishing.background_sender():
        with transaction.atomic():
            publish("a", {})
        # Queries that run meanwhile lock the table of an SQLite database in memory, and the mark fails.
        assert marked.wait(10)
        assert not OutboxEvent.objects.filter(published_at=None).exists()


def _refuses(monkeypatch: pytest.MonkeyPatch, topic: str) -> list[str]:
    """Make the channel layer reject messages with an event of one topic; return the topics that it accepted."""
    taken: list[str] = []
    send = publishing._send

    def odd(events: list[OutboxEvent], run: Any) -> None:
        if any(event.topic == topic for event in events):
            raise ValueError("this cannot be sent")
        taken.extend(event.topic for event in events)
        send(events, run)

    monkeypatch.setattr(publishing, "_send", odd)
    return taken


def _unsent(topic: str, age: timedelta) -> OutboxEvent:
    event = OutboxEvent.objects.create(topic=topic, revision=1, data={})
    Topic.objects.create(name=topic, revision=1)
    OutboxEvent.objects.filter(pk=event.pk).update(created_at=timezone.now() - age)
    return event


def test_unsendable_event_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = _unsent("odd", timedelta(seconds=10))
    others = [_unsent(name, timedelta(seconds=10)) for name in ("a", "b")]
    taken = _refuses(monkeypatch, "odd")
    assert publishing.relay() == len(others)
    assert taken == ["a", "b"]
    assert list(OutboxEvent.objects.filter(published_at=None)) == [odd]


def test_event_rejected_for_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    _unsent("odd", publishing.GIVEN_UP_AFTER + timedelta(seconds=1))
    _refuses(monkeypatch, "odd")
    counters.flush()
    before = sum(sample.value for sample in counters.samples(metric_names.EVENTS_GIVEN_UP))
    assert publishing.relay() == 0
    assert not OutboxEvent.objects.filter(published_at=None).exists()
    counters.flush()
    assert sum(sample.value for sample in counters.samples(metric_names.EVENTS_GIVEN_UP)) == before + 1


def test_no_event_is_dropped_during_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = _unsent("a", publishing.GIVEN_UP_AFTER + timedelta(hours=1))

    def down(events: list[OutboxEvent], run: Any) -> None:
        raise ConnectionError("connection refused")

    monkeypatch.setattr(publishing, "_send", down)
    assert publishing.relay() == 0
    assert list(OutboxEvent.objects.filter(published_at=None)) == [waiting]


def test_topic_of_a_node_has_events_once_it_is_open() -> None:
    layer, channel = _listening()
    with transaction.atomic():
        assert publish_many({"node:c/n": lambda: 1 / 0, "cluster:c": {"x": 1}}) == {"cluster:c": 1}
    assert [event["topic"] for event in _received(layer, channel)] == ["cluster:c"]
    with transaction.atomic():
        insert_topic("node:c/n")
        insert_topic("node:c/n")
    with transaction.atomic():
        assert publish("node:c/n", {"x": 2}) == 2
    assert [(event["revision"], event["data"]) for event in _received(layer, channel)] == [(2, {"x": 2})]


def test_change_of_closed_topics_sends_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_send", lambda *_: pytest.fail("a message without events"))
    with transaction.atomic():
        assert publish_many({"node:c/n": {"x": 1}}) == {}


def test_topic_of_a_deleted_workload_is_not_opened() -> None:
    """The workload may be deleted after the subscription has found it; nothing deletes the topic afterwards."""
    workload = submitted(a_cluster(), a_pod("p"))
    open_topic(f"workload:{workload.pk}")
    open_topic(f"workload:{workload.pk}x")
    open_topic("node:unknown/n1")
    assert list(Topic.objects.values_list("name", flat=True).filter(name__startswith="workload:")) == [
        f"workload:{workload.pk}"
    ]
    assert not Topic.objects.filter(name__startswith="node:").exists()
