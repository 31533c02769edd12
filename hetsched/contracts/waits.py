"""What a waiting pod waits for: the kinds of change that may let it in, and the same in words.

Rule: a pod that found no node is tried again when something happens that may help a plugin which refused it, and not
before. Kinds are few and coarse: one that is told once too often costs a try, one that is never told costs a pod.
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Event(enum.StrEnum):
    """One kind of change. New ones go to the end: the place of each is its bit."""

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


NODE_FACTS = frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS, Event.NODE_TAINTS, Event.NODE_ISA})
INVENTORY = NODE_FACTS | {Event.NODE_USE, Event.STORAGE_CHANGED, Event.QUOTA_CHANGED, Event.NAMES_CHANGED}
LOADS = frozenset({Event.POD_RELEASED, Event.POD_PLACED})
# Where nobody says what may help: any change, and waiting.
ANYTHING = frozenset(Event)
# Whoever was refused before anybody noted what helps waits for whatever there is or will be.
EVERY_BIT = 2**31 - 1
_BITS = {event: 1 << place for place, event in enumerate(Event)}


class WaitsFor(msgspec.Struct, frozen=True):
    """What one plugin that refused has to see before it may let the pod in, in words: `a node with 2 free cards`."""

    plugin: str
    events: tuple[Event, ...]
    text: str


def bits(events: Iterable[Event]) -> int:
    """Return kinds of change as one number, so that a database can compare them."""
    return sum(_BITS[event] for event in set(events))


def bits_of(waits: Iterable[WaitsFor]) -> int:
    """Return all that is waited for as one number."""
    return bits(event for one in waits for event in one.events)


def in_words(waits: Iterable[WaitsFor]) -> str:
    """Return what is waited for as one phrase; any one of it may be enough."""
    return ", or ".join(dict.fromkeys(one.text for one in waits if one.text))
