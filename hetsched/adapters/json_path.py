"""Paths to a value in a JSON document, such as `$.racks[0]["power state"].watts`, without evaluation.

A path has names after a dot, or in brackets and quotes, and whole numbers in brackets, negative ones counted from the
end. The leading `$` is optional. There are no wildcards, filters or expressions: a path leads to one value or to none.
Source: the member and index selectors of RFC 9535.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

MISSING: Any = object()
_MOST_STEPS = 16
_STEP = re.compile(
    r"""\.?(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|\[(?P<index>-?[0-9]{1,6})\]|\[(?P<q>["'])(?P<quoted>[^"'\\]{1,200})(?P=q)\]"""
)


@lru_cache(maxsize=512)
def parse(path: str) -> tuple[str | int, ...]:
    """Return the steps of a path. Raises: InputError `JsonPathMalformed`."""
    rest = path.strip().removeprefix("$")
    steps: list[str | int] = []
    while rest:
        match = _STEP.match(rest)
        if match is None or (steps and match["name"] and not rest.startswith(".")) or len(steps) >= _MOST_STEPS:
            hint = 'Write names and numbers only, as $.racks[0]["power state"].watts'
            raise InputError(
                "JsonPathMalformed", Message("{text} is no path to a value", text=repr(path[:80])), hint=hint
            )
        steps.append(int(match["index"]) if match["index"] else match["name"] or match["quoted"])
        rest = rest[match.end() :]
    return tuple(steps)


def find(document: Any, path: str) -> Any:
    """Return the value at a path, MISSING if there is none."""
    for step in parse(path):
        if isinstance(step, int):
            if not isinstance(document, list) or not -len(document) <= step < len(document):
                return MISSING
            document = document[step]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            return MISSING
    return document
