"""Several events of one topic as one message.

Problem: a hundred changes a second, sent to two hundred sockets one by one, are twenty thousand messages; nobody looks
a hundred times a second.
Rule: neighbouring merge patches are one merge patch: what the later one says of a key holds. The message names the
revision it ends at and, as `since`, the one it begins after; whoever has anything in between may apply it, because it
says of every key how it stood in the end. A key that was taken away and came back with content of its own cannot be
told by one patch, so there the span ends.
Source: RFC 7396.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

Event = tuple[int, str]
Span = tuple[int, int, str]
"""The revision it begins after, the one it ends at, and the text of the message."""


class _Delta(msgspec.Struct):
    data: dict[str, Any]


class _Message(msgspec.Struct, frozen=True):
    topic: str
    revision: int
    type: str
    data: dict[str, Any]
    since: int


class _CannotMerge(Exception):
    pass


_delta = msgspec.json.Decoder(_Delta)


def spans(topic: str, events: Iterable[Event]) -> Iterator[Span]:
    """Give these events as few messages, in order; a gap between them stays one between two messages."""
    run: list[Event] = []
    merged: dict[str, Any] = {}
    for revision, text in sorted(dict(events).items()):
        if run and revision == run[-1][0] + 1:
            try:
                merged = compose(merged or _patch(run[0]), _patch((revision, text)))
                run.append((revision, text))
                continue
            except _CannotMerge:
                pass
        if run:
            yield _span(topic, run, merged)
        run, merged = [(revision, text)], {}
    if run:
        yield _span(topic, run, merged)


def _span(topic: str, run: list[Event], merged: dict[str, Any]) -> Span:
    (first, text), (last, _) = run[0], run[-1]
    if len(run) > 1:
        text = msgspec.json.encode(_Message(topic, last, "delta", merged, first - 1)).decode()
    return first - 1, last, text


def _patch(event: Event) -> dict[str, Any]:
    return _delta.decode(event[1]).data


def compose(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch that does what `first` and then `second` do. Raises: where no patch does."""
    both = dict(first)
    for key, value in second.items():
        if key in first and isinstance(value, dict):
            before = first[key]
            if not isinstance(before, dict):
                raise _CannotMerge(key)
            value = compose(before, value)
        both[key] = value
    return both
