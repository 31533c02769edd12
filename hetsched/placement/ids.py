"""Public ids of rows: sortable by time and not guessable."""

from __future__ import annotations

import secrets
import time

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def sortable_id(prefix: str) -> str:
    """Return an id that sorts by time: `prefix-`, 48 bits of milliseconds, 80 random bits, base 32."""
    value = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return f"{prefix}-" + "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))
