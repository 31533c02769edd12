"""What is said of a node, by whom and since when; and what of it does not count yet.

Rule: of each fact the newest word of each source is kept, with when it was said first and last, and a bounded number of
words before. Sources rank: an operator's override, the node agent, objects that describe the node, its labels, its
status. What shrinks is quarantined at once: nothing new is placed on what is missing, what is held there stays held.
What grows beyond bounds does not count before an operator approves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

MOST_KEPT = 10  # words of one fact
_MOST_TEXT = 600


class Said(msgspec.Struct, frozen=True, rename="camel"):
    """What one source said of a fact, from when to when; `current` is what it says now."""

    source: str
    text: str
    first_at: str
    last_at: str
    current: bool = True


Claims = dict[str, tuple[Said, ...]]


class FactInQuarantine(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a node that is missing (`shrunk`), or is not believed yet (`grown`), and what an operator ruled.

    `known` is what counted before, `told` what is said now; `state` is open or rejected.
    """

    id: str
    fact: str
    item: str
    change: str
    known: str
    told: str
    source: str
    since: str
    state: str = "open"


class Override(msgspec.Struct, frozen=True, rename="camel"):
    """A fact as an operator states it, until a moment."""

    fact: str
    value: str
    until: str
    since: str
    by: str
    reason: str


def fact_id(fact: str, item: str, told: str) -> str:
    """Return the name of a quarantined fact: the same as long as the same is told."""
    return sha256("\0".join((fact, item, told)).encode()).hexdigest()[:12]


def noted(claims: Claims, source: str, words: Mapping[str, str], now: str) -> Claims:
    """Return the claims with what a source says now; a fact that it does not name any more is its past."""
    found = dict(claims)
    for fact in sorted({*claims, *words}):
        old = found.get(fact, ())
        last = next((said for said in old if said.source == source and said.current), None)
        text = words.get(fact, "")[:_MOST_TEXT]
        if last is not None and last.text == text:
            new = msgspec.structs.replace(last, last_at=now)
            found[fact] = tuple(new if said is last else said for said in old)
            continue
        past = [msgspec.structs.replace(said, current=False) if said is last else said for said in old]
        if text:
            past.insert(0, Said(source, text, now, now))
        if past:
            found[fact] = _bounded(past)
    return found


def _bounded(said: list[Said]) -> tuple[Said, ...]:
    current = [one for one in said if one.current]
    past = [one for one in said if not one.current]
    return (*current, *past[: MOST_KEPT - min(len(current), MOST_KEPT)])


def conflicts(said: Iterable[Said]) -> bool:
    """Tell whether sources contradict each other now; a lower bound contradicts nothing."""
    texts = {one.text for one in said if one.current and not one.text.startswith("at least ")}
    return len(texts) > 1
