"""What kind of value each query parameter takes, by its name, for OpenAPI.

Rule: a parameter of one name takes the same kind of value everywhere; what is not listed here is a text without NUL.
"""

from __future__ import annotations

from typing import Any

from .paging import MAX_LIMIT

LONGEST_WAIT_SECONDS = 60

_YES_OR_NO = {"type": "boolean"}
_VERSION = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
KINDS: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "wait": {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS},
    "for": {"type": "string", "enum": ["placed", "running", "finished"]},
    "priority": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "version": _VERSION,
    "explain": _YES_OR_NO,
    "nearestFit": _YES_OR_NO,
    "noPreempt": _YES_OR_NO,
    "outlook": _YES_OR_NO,
}
TEXT = {"type": "string", "pattern": r"^[^\x00]*$"}


def kind_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a query parameter."""
    return KINDS.get(name, TEXT)
