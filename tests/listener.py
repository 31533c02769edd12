"""A client of the live WebSocket that keeps the documents of its topics."""

from __future__ import annotations

from hetsched.journal.models import OutboxEvent
from hetsched.journal.publish import merge
from hetsched.placement.actions import open_topic
from hetsched.placement.queries.topics import resolve_topic, snapshot


class Listener:
    """Subscribe to a topic once, and then only receive."""

    def __init__(self, topic: str) -> None:
        open_topic(resolve_topic(topic))
        first = snapshot(topic)
        self.topic, self.revision, self.document = first.topic, first.revision, first.data

    def listen(self) -> None:
        for event in OutboxEvent.objects.filter(topic=self.topic, revision__gt=self.revision).order_by("revision"):
            assert event.revision == self.revision + 1
            self.revision = event.revision
            self.document = merge(self.document, event.data)
