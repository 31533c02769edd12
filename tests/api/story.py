"""A fleet on which every operation is called once, while the requests and responses are recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.test import Client

from web.api.examples import JSON, Example

from .conftest import Api

_MOST_ENTRIES = 2
_TAG = '"5f1c0b6f0a1b2c3d4e5f6071"'
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_MADE = re.compile(r"\b(w|d|wh|h)-[0-9a-hjkmnp-tv-z]{26}\b")
_KEY = re.compile(r"\bhs_[0-9a-f]{12}\b")
_SECRET = re.compile(r"\b(hs|whsec)_[0-9A-Za-z+/=]{20,}")


class Story:
    """Call operations with a permitted user, and record the first call of each."""

    def __init__(self, api: Callable[..., Api], root: Client) -> None:
        self._api, self._root = api, root
        self._callers: dict[str, Api] = {}
        self.examples: dict[str, tuple[Example, Any]] = {}

    def caller(self, role: str) -> Api:
        if role not in self._callers:
            made = self._api(role) if role != "root" else Api()
            if role == "root":
                made.client = self._root
            self._callers[role] = made
        return self._callers[role]

    def __call__(
        self, role: str, method: str, route: str, body: Any = None, *, status: int = 200, kind: str = JSON,
        match: str | None = None, query: dict[str, Any] | None = None, **path: Any,
    ) -> Any:  # fmt: skip
        """Call one operation; `match` is `*`, an ETag, or the path of a resource whose ETag is sent."""
        caller = self.caller(role)
        if match is not None and match != "*" and not match.startswith('"'):
            match = caller.tag(match)
        asked = "?" + urlencode(query) if query else ""
        headers = {} if match is None else {"If_Match": match}
        answer = caller(method, route.format(**path) + asked, body, kind=kind, status=status, **headers)
        document = answer.json() if answer.content else None
        example = Example(
            status=status,
            path=plain(path),
            query=query or {},
            headers={} if match is None else {"If-Match": _TAG if match != "*" else match},
            media=kind,
            request=None if isinstance(body, bytes) else plain(msgspec.json.decode(msgspec.json.encode(body))),
            answer=plain(document),
        )
        self.examples.setdefault(f"{method} {route}", (example, document))
        return document


def plain(value: Any) -> Any:
    """Return a value as it appears in an example: shortened, and without random and time-dependent parts."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value[:_MOST_ENTRIES]]
    if isinstance(value, str):
        value = _MOMENT.sub("2026-11-22T10:00:00Z", value)
        value = _MADE.sub(lambda made: f"{made[1]}-06f8k2x4n6q8s0t2v4w6y8z0b2", value)
        value = _KEY.sub("hs_3f9c01d2a7b4", value)
        return _SECRET.sub(lambda made: f"{made[1]}_shown-this-once", value)
    return value


def shape(value: Any) -> Any:
    """Return the shape of a response one level deep: its fields, or the fields of the items in its list."""
    if isinstance(value, dict):
        items = value.get("items")
        inner = sorted(items[0]) if isinstance(items, list) and items and isinstance(items[0], dict) else None
        return sorted(value), inner
    return type(value).__name__
