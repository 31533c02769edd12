"""Events that a pending pod waits for, and their description for users.

An unschedulable pod is retried only when an event occurs that may change the result of a plugin that rejected the pod.
The events are few and coarse: a superfluous event costs a retry, but a missing event leaves a pod pending.
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from .message import Message, joined


class Event(enum.StrEnum):
    """Kind of cluster event. Add new kinds at the end, because the position of a kind is its bit."""

    NODE_ADDED = "node-added"
    NODE_REMOVED = "node-removed"
    NODE_CAPACITY = "node-capacity"
    NODE_LABELS = "node-labels"
    NODE_TAINTS = "node-taints"
    NODE_ISA = "node-isa"
    NODE_USE = "node-use"
    POD_RELEASED = "pod-released"
    POD_PLACED = "pod-placed"
    STORAGE_CHANGED = "storage-changed"
    QUOTA_CHANGED = "quota-changed"
    NAMES_CHANGED = "names-changed"
    GANG_MEMBER = "gang-member"
    IMAGE_READ = "image-read"
    POD_CHANGED = "pod-changed"
    POLICY_ACTIVATED = "policy-activated"
    TIME = "time"
    POD_LABELS = "pod-labels"
    NODE_FEATURES = "node-features"
    DEVICE_CLASS = "device-class"


NODE_FACTS = frozenset(
    {
        Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS, Event.NODE_TAINTS, Event.NODE_ISA,
        Event.NODE_FEATURES,
    }
)  # fmt: skip
INVENTORY = NODE_FACTS | {
    Event.NODE_USE,
    Event.STORAGE_CHANGED,
    Event.QUOTA_CHANGED,
    Event.NAMES_CHANGED,
    Event.DEVICE_CLASS,
}
LOADS = frozenset({Event.POD_RELEASED, Event.POD_PLACED, Event.POD_LABELS})
# For a plugin that does not register events: all events, including the passing of time.
ANYTHING = frozenset(Event)
# For pods that were rejected before events were recorded: every current and future event.
EVERY_BIT = 2**31 - 1
_BITS = {event: 1 << place for place, event in enumerate(Event)}


class WaitsFor(msgspec.Struct, frozen=True):
    """Events that a plugin registers for a rejected pod, and the condition as text (`a node with 2 free cards`)."""

    plugin: str
    events: tuple[Event, ...]
    text: Message


def bits(events: Iterable[Event]) -> int:
    """Return events as a bit mask, which a database can compare."""
    return sum(_BITS[event] for event in set(events))


def bits_of(waits: Iterable[WaitsFor]) -> int:
    """Return all registered events as a bit mask."""
    return bits(event for wait in waits for event in wait.events)


def describe_waits(waits: Iterable[WaitsFor]) -> Message:
    """Return the conditions as one phrase, joined by "or" because one condition may be sufficient."""
    return joined(", or ", dict.fromkeys(wait.text for wait in waits if wait.text))
