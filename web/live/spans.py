"""Merge events of one topic into one message.

A hundred changes a second, each sent to two hundred sockets, are twenty thousand messages a second, far more than a
page needs. So adjacent merge patches are composed into one merge patch, in which the later value of a key wins. The
message contains its last revision and, as `since`, the revision before its first. A client at any revision in between
can apply the message, because it contains the final value of every changed key. The removal of a key followed by its
addition with other content cannot be expressed in one patch, so the span ends there.
Source: RFC 7396.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from hetsched.contracts.documents import encode

Event = tuple[int, str]
Span = tuple[int, int, str]
"""Revision before the first event, revision of the last event, and text of the message."""


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
    """Yield these events merged into as few messages as possible, in order. Events with a gap between them are not
    merged.
    """
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
        text = encode(_Message(topic, last, "delta", merged, first - 1)).decode()
    return first - 1, last, text


def _patch(event: Event) -> dict[str, Any]:
    return _delta.decode(event[1]).data


def compose(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch equal to `first` followed by `second`. Raises: _CannotMerge if there is none."""
    both = dict(first)
    for key, value in second.items():
        if key in first and isinstance(value, dict):
            before = first[key]
            if not isinstance(before, dict):
                raise _CannotMerge(key)
            value = compose(before, value)
        both[key] = value
    return both
