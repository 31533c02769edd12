"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .message import Message, joined

LONGEST = 100


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.7) -> str:
    """Return the known name with the closest spelling, or "" if none is close enough."""
    lower = {each.lower(): each for each in sorted(known)}
    found = get_close_matches(name[:LONGEST].lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else ""


def suggestion(*meant: str) -> Message:
    """Return a hint that names the probable correction."""
    return Message("Did you mean {name}?", name=joined(" or ", meant))
