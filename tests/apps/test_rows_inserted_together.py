"""Rows of several models that are inserted together."""

from __future__ import annotations

import pytest

from hetsched.journal.models import AuditEntry, OutboxEvent, Topic
from hetsched.storage.bulk_rows import insert_together, new

pytestmark = pytest.mark.django_db


def _rows(events: int) -> tuple[list[Topic], list[OutboxEvent], list[AuditEntry]]:
    topics = [new(Topic, name=f"t{number}", revision=number) for number in range(2)]
    return (
        topics,
        [new(OutboxEvent, topic="t0", revision=number, data={"n": number}) for number in range(events)],
        [new(AuditEntry, actor="it's 100 %", action="a", object_kind="k", object_name=str(n)) for n in range(2)],
    )


@pytest.mark.parametrize("events", [3, 300])
def test_stored_rows_have_the_ids_of_the_objects(events: int) -> None:
    topics, outbox, entries = _rows(events)
    insert_together(topics, [], outbox, entries)
    assert dict(Topic.objects.filter(name__in=["t0", "t1"]).values_list("name", "revision")) == {"t0": 0, "t1": 1}
    stored = {event.pk: (event.revision, event.data) for event in OutboxEvent.objects.filter(topic="t0")}
    assert stored == {event.pk: (event.revision, {"n": event.revision}) for event in outbox}
    assert [event.pk for event in outbox] == sorted(stored)
    named = dict(AuditEntry.objects.filter(actor="it's 100 %").values_list("pk", "object_name"))
    assert named == {entry.pk: entry.object_name for entry in entries}
    assert not any(row._state.adding for rows in (topics, outbox, entries) for row in rows)


def test_rows_without_generated_ids_are_stored() -> None:
    topics, _, _ = _rows(0)
    insert_together(topics)
    insert_together()
    assert Topic.objects.filter(name__in=["t0", "t1"]).count() == 2
