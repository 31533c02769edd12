"""Statements of sources about a node, quarantined changes, overrides and maintenance.

For each fact, the newest statement of each source is stored, with the times of its first and last report, and a bounded
number of earlier statements. The priority of sources is: an operator's override, the node agent, objects that describe
the node, the node's labels, the node's status. A decrease takes effect immediately and is quarantined: new pods do not
get the missing part, but existing allocations of that part stay. An increase beyond the bounds takes effect only after
an operator approves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from ..message import Message

MOST_KEPT = 10  # maximum number of statements about one fact
_MOST_TEXT = 600


class FactStatement(msgspec.Struct, frozen=True, rename="camel"):
    """Statement of one source about a fact, with the times of its first and last report.

    `current` marks the source's latest statement.
    """

    source: str
    text: str
    first_at: str
    last_at: str
    current: bool = True


Claims = dict[str, tuple[FactStatement, ...]]


class FactInQuarantine(msgspec.Struct, frozen=True, rename="camel"):
    """Quarantined change of a node: a missing part (`shrunk`) or an increase that is not yet accepted (`grown`).

    `known` is the previous value in effect and `reported` the new value. `state` is the operator's decision:
    `rejected`, or `open` if there is none yet.
    """

    id: str
    fact: str
    item: str
    change: str
    known: str
    reported: str = msgspec.field(name="told")  # the name of this field in the API and the database
    source: str
    since: str
    state: str = "open"


class Override(msgspec.Struct, frozen=True, rename="camel"):
    """Value of a fact that an operator set until a given time."""

    fact: str
    value: str
    until: str
    since: str
    by: str
    reason: str


def source_message(source: str) -> Message:
    """Describe a source of facts: its kind, and the key or name of the annotation, label or collector."""
    kind, _, name = source.partition(" ")
    return Message(_SOURCES[kind], name=name) if kind in _SOURCES and name else Message(source)


_SOURCES = {
    "annotation": "annotation {name}",
    "label": "label {name}",
    "collector": "collector {name}",
    "agent:": "agent: {name}",
}


def fact_id(fact: str, item: str, reported: str) -> str:
    """Return the ID of a quarantined fact, which stays the same while the same value is reported."""
    return sha256("\0".join((fact, item, reported)).encode()).hexdigest()[:12]


def record_claim(claims: Claims, source: str, words: Mapping[str, str], now: str) -> Claims:
    """Return the claims with a source's current statements; statements that it no longer makes become history."""
    found = dict(claims)
    for fact in sorted({*claims, *words}):
        old = found.get(fact, ())
        last = next((statement for statement in old if statement.source == source and statement.current), None)
        text = words.get(fact, "")[:_MOST_TEXT]
        if last is not None and last.text == text:
            new = msgspec.structs.replace(last, last_at=now)
            found[fact] = tuple(new if statement is last else statement for statement in old)
            continue
        past = [
            msgspec.structs.replace(statement, current=False) if statement is last else statement for statement in old
        ]
        if text:
            past.insert(0, FactStatement(source, text, now, now))
        if past:
            found[fact] = _bounded(past)
    return found


def _bounded(statements: list[FactStatement]) -> tuple[FactStatement, ...]:
    current = [statement for statement in statements if statement.current]
    past = [statement for statement in statements if not statement.current]
    return (*current, *past[: MOST_KEPT - min(len(current), MOST_KEPT)])


def conflicts(statements: Iterable[FactStatement]) -> bool:
    """Return whether current statements of sources contradict each other; lower bounds ("at least ...") are ignored."""
    texts = {
        statement.text for statement in statements if statement.current and not statement.text.startswith("at least ")
    }
    return len(texts) > 1


class Maintenance(msgspec.Struct, frozen=True, rename="camel"):
    """Maintenance of a GPU or a zone, which accepts no new pods, with its end and its reason."""

    part: str
    name: str
    until: str
    since: str
    by: str
    reason: str
