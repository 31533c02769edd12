"""Preview of a candidate pod on a node page: the pod's allocation is read from the query string.

`?ghost=cpus:0-3;gpu:0/500` names CPUs and thousandths of GPUs. Invalid or unknown parts are ignored, because a link may
be older than the current state of the node.
"""

from __future__ import annotations

import re

import msgspec

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError

_CARD = re.compile(r"([0-9]{1,4})(?:/([0-9]{1,4}))?")


class CandidateUse(msgspec.Struct, frozen=True):
    """Allocation of a candidate pod: CPUs, and thousandths of each GPU by GPU index."""

    cpus: frozenset[int] = frozenset()
    cards: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.cpus or self.cards)


def parse_candidate(text: str) -> CandidateUse:
    """Parse the value of `?ghost=`; invalid or unknown parts are ignored."""
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
    return CandidateUse(cpus, cards)
