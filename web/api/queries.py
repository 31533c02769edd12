"""Types of the query parameters by name, for OpenAPI.

A parameter has the same type in all operations; a parameter that is not listed here is a text without NUL. A parameter
whose description begins with a method exists only for that method, and parameters for paging and waiting only for GET.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hetsched.placement.lifecycle import State
from hetsched.placement.queries.pending_order import QueueState

from .pagination import MAX_LIMIT

LONGEST_WAIT_SECONDS = 60

YES_OR_NO = {"type": "boolean"}
_VERSION = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_MOMENT = {"type": "string", "anyOf": [{"format": "date"}, {"format": "date-time"}, {"maxLength": 0}]}
KINDS: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "wait": {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS},
    "for": {"type": "string", "enum": ["placed", "running", "finished"]},
    "priority": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "version": _VERSION,
    "since": _MOMENT,
    "until": _MOMENT,
    "change": {"type": "string", "enum": ["infeasible", "moved", "feasible"]},
    "standing": {"type": "string", "enum": [queue_state.value for queue_state in QueueState]},
    "seconds": {"type": "integer", "minimum": 1, "maximum": 604_800},
    "anonymise": YES_OR_NO,
    "explain": YES_OR_NO,
    "nearestFit": YES_OR_NO,
    "noPreempt": YES_OR_NO,
    "outlook": YES_OR_NO,
    "strict": YES_OR_NO,
}
STATE = {"type": "string", "enum": [state.value for state in State]}  # state of a pod or workload
TEXT = {"type": "string", "pattern": r"^[^\x00]*$"}

_OF_LISTS = {"limit", "cursor", "wait", "for"}
_METHOD = re.compile(r"(?:Of a )?(GET|POST|PUT|DELETE)\b")


def serves(name: str, text: str, method: str) -> bool:
    """Return whether a query parameter exists for `method`; its description `text` may begin with its only method."""
    found = _METHOD.match(text)
    only = found[1] if found else "GET" if name in _OF_LISTS else method
    return only == method


def kind_of(name: str, own: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of a query parameter; `own`, the schemas of the view, take precedence."""
    return own.get(name) or KINDS.get(name) or TEXT
