"""Text forms of times (RFC 3339 in UTC) and durations (in their two largest units, rounded up)."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_NOISE = 1e-9  # rounding error of floating-point sums


def whole_seconds(seconds: float) -> int:
    """Round seconds up to a whole number that `in_units` can show exactly.

    Each unit is rounded up in turn: 59 min 59.5 s is 1 h, 23 h 59 min 1 s is 1 d.
    """
    whole = math.ceil(seconds - _NOISE)
    for size, _, below, _ in reversed(_UNITS):
        if whole >= size:
            whole = math.ceil(whole / below) * below
    return whole


def in_units(whole: int) -> str:
    """Return whole seconds in their two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    for size, unit, below, name in _UNITS:
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def rfc3339(moment: datetime) -> str:
    """Return an aware datetime as `2026-11-20T10:00:00.123456Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, or None if it cannot be parsed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
