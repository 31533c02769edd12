"""The ghost of a candidate on a node's page: what it would hold, out of the address.

Rule: `?ghost=cpus:0-3;gpu:0/500` names CPUs and thousandths of cards. What cannot be read, or is not there, is left
out: a link may be older than the node.
"""

from __future__ import annotations

import re

import msgspec

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError

_CARD = re.compile(r"([0-9]{1,4})(?:/([0-9]{1,4}))?")


class Ghost(msgspec.Struct, frozen=True):
    """CPUs, and thousandths of cards by index, that a candidate would hold."""

    cpus: frozenset[int] = frozenset()
    cards: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.cpus or self.cards)


def ghost_of(text: str) -> Ghost:
    """Read a ghost; an empty one where nothing of it can be read."""
    cpus: frozenset[int] = frozenset()
    cards: dict[int, int] = {}
    for part in text.split(";"):
        kind, _, value = part.strip().partition(":")
        if kind == "cpus":
            try:
                cpus |= parse_cpuset(value)
            except InputError:
                continue
        elif kind == "gpu" and (found := _CARD.fullmatch(value)):
            cards[int(found[1])] = min(int(found[2] or 1000), 1000)
    return Ghost(cpus, cards)
